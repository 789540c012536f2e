"""Lists of jobs: filters, orders and pages as SQL."""

from collections.abc import Sequence
from typing import Any, Final, NoReturn

import sqlalchemy as sa
from sqlalchemy.sql.elements import ColumnElement

from jobs.store.records import Job, JobFilter, SortOrder
from jobs.store.tables import JOBS
from model.errors import RequestInvalidError

# Nullable fields are not allowed in an order: a page token could not hold their position.
ORDER_FIELDS: Final = ("id", "state", "topic", "created_by", "created_at")
# An id begins with its creation time.
_NEWEST_FIRST: Final = SortOrder("id", descending=True)


def matches(where: JobFilter) -> list[ColumnElement[bool]]:
    """Return the filter's SQL conditions, with bound values.

    Raises:
        RequestInvalidError: no job can have such a label.
    """
    equal = {JOBS.c.topic: where.topic, JOBS.c.created_by: where.created_by, JOBS.c.subject: where.subject}
    found: list[ColumnElement[bool]] = [column == value for column, value in equal.items() if value is not None]
    if len(where.kinds) == 1:
        found.append(JOBS.c.kind == where.kinds[0])
    elif where.kinds:
        # The newest of several kinds are found by the index by creation. With a plain column, SQLite would use an
        # index by kind and sort all jobs.
        found.append((JOBS.c.kind + "").in_(where.kinds))
    if where.states:
        # The states are listed, so that the index by state is used.
        found.append(JOBS.c.state.in_([state.value for state in where.states]))
    for key, value in where.labels:
        # SQLite quotes a key in a JSON path, so a key can't contain quotes.
        if not key or '"' in key:
            _refuse(f"Jobs have no label {key[:60]!r}.", "/label")
        found.append(JOBS.c.labels[key].as_string() == value)
    if where.created_since is not None:
        found.append(JOBS.c.created_at >= where.created_since)
    if where.ended_since is not None:
        found.append(JOBS.c.finished_at >= where.ended_since)
    if where.id_prefix:
        # Not LIKE, which ignores case in SQLite only.
        found.append(sa.func.substr(JOBS.c.id, 1, len(where.id_prefix)) == where.id_prefix)
    return found


def complete_order(order: Sequence[SortOrder]) -> tuple[SortOrder, ...]:
    """Append the id, as tie-breaker, to an order without it.

    Raises:
        RequestInvalidError: jobs can't be sorted by such a field.
    """
    for part in order:
        if part.field not in ORDER_FIELDS:
            _refuse(f"Jobs can't be sorted by {part.field[:60]!r}.", "/order_by")
    if any(part.field == "id" for part in order):
        return tuple(order)
    return (*order, _NEWEST_FIRST)


def sort_key(job: Job, order: Sequence[SortOrder]) -> tuple[Any, ...]:
    """Return the job's values of the order's fields: the argument ``after`` of the next page."""
    values = {
        "id": job.id,
        "state": job.state.value,
        "topic": str(job.request.get("topic") or ""),
        "created_by": job.created_by,
        "created_at": job.created_at,
    }
    return tuple(values[part.field] for part in complete_order(order))


def order_by(order: Sequence[SortOrder]) -> list[ColumnElement[Any]]:
    """Return a complete order as SQL."""
    return [JOBS.c[part.field].desc() if part.descending else JOBS.c[part.field].asc() for part in order]


def behind(order: Sequence[SortOrder], after: Sequence[Any]) -> ColumnElement[bool]:
    """Return the SQL condition for jobs after the values ``after``, in a complete order.

    Raises:
        RequestInvalidError: there are not as many values as fields.
    """
    if len(after) != len(order):
        _refuse("The page_token belongs to another order.", "/page_token")
    either: list[ColumnElement[bool]] = []
    equal: list[ColumnElement[bool]] = []
    for part, value in zip(order, after, strict=True):
        column = JOBS.c[part.field]
        either.append(sa.and_(*equal, column < value if part.descending else column > value))
        equal.append(column == value)
    return sa.or_(*either)


def _refuse(message: str, pointer: str) -> NoReturn:
    raise RequestInvalidError.of(pointer[1:] + "_invalid", message, pointer)
