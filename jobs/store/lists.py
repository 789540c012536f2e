"""Lists of jobs: conditions, orders and pages as SQL."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

import sqlalchemy as sa
from sqlalchemy.sql.elements import ColumnElement

from jobs.store.records import Condition, Job, SortOrder
from jobs.store.tables import JOBS
from model.errors import RequestInvalidError

_TIMES: Final = frozenset({"created_at", "started_at", "finished_at"})
_FIELDS: Final = frozenset({"id", "state", "topic", "created_by"}) | _TIMES
# A field that may be missing has no place in an order: a page could not say where it ended.
_ORDERS: Final = frozenset({"id", "state", "topic", "created_by", "created_at"})
_SIGNS: Final = {
    "=": lambda left, right: left == right,
    # A job without the field differs from every value.
    "!=": lambda left, right: left.is_distinct_from(right),
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}
_NEWEST_FIRST: Final = SortOrder("id", descending=True)


def where(conditions: Sequence[Condition]) -> list[ColumnElement[bool]]:
    """Return the conditions as SQL, values bound.

    Raises:
        RequestInvalidError: a field, a sign or a value is none.
    """
    return [_condition(condition) for condition in conditions]


def complete_order(order: Sequence[SortOrder]) -> tuple[SortOrder, ...]:
    """Return the order with the id in it, which decides between equals.

    Raises:
        RequestInvalidError: jobs can't be sorted by such a field.
    """
    for part in order:
        if part.field not in _ORDERS:
            _refuse(f"Jobs can't be sorted by {part.field[:60]!r}.", "/order_by")
    if any(part.field == "id" for part in order):
        return tuple(order)
    return (*order, _NEWEST_FIRST)


def sort_key(job: Job, order: Sequence[SortOrder]) -> tuple[Any, ...]:
    """Return the job's values in the order of a list: what ``after`` of the next page takes."""
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
    """Return what holds for jobs behind the one with the values ``after``, in a complete order.

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


def _condition(condition: Condition) -> ColumnElement[bool]:
    column = _column(condition.field)
    if condition.op == ":":
        if condition.value != "*":
            _refuse(f"{condition.field[:60]}: takes * alone.", "/filter")
        return column.is_not(None)
    sign = _SIGNS.get(condition.op)
    if sign is None:
        _refuse(f"{condition.op[:5]!r} is no sign of a condition.", "/filter")
    values = condition.value if isinstance(condition.value, tuple) else (condition.value,)
    wanted = datetime if condition.field in _TIMES else str
    if not values or not all(isinstance(value, wanted) for value in values):
        _refuse(f"{condition.field[:60]} is not compared with such a value.", "/filter")
    found: ColumnElement[bool] = sa.or_(*(sign(column, value) for value in values))
    return found


def _column(field: str) -> ColumnElement[Any]:
    if field in _FIELDS:
        return JOBS.c[field]
    prefix, _, key = field.partition(".")
    # SQLite names a key in a path with quotes around it.
    if prefix != "labels" or not key or '"' in key:
        _refuse(f"Jobs have no field {field[:60]!r}.", "/filter")
    label: ColumnElement[Any] = JOBS.c.labels[key].as_string()
    return label


def _refuse(message: str, pointer: str) -> NoReturn:
    error = {"code": pointer[1:] + "_invalid", "message": message, "pointer": pointer}
    raise RequestInvalidError(message, errors=[error])
