"""What changed lately: one list of the histories that the store has, newest first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Row

from jobs.store.database import Database
from jobs.store.events import JobEventType
from jobs.store.tables import EVENTS, JOBS, KEYS, MANIFESTS, STREAM_EVENTS

_DIGITS: Final = 18
# What a verdict or a merge's report says is not a change of the job.
_JOB_TYPES: Final = tuple(kind.value for kind in JobEventType if kind is not JobEventType.FOUND)


@dataclass(frozen=True, slots=True)
class StoredChange:
    """One change; ``resource`` is the kind of the thing, ``id`` its name or id, ``type`` what programs read.

    ``actor`` is None where nobody wrote down who it was. ``place`` orders the changes of one moment.
    """

    at: datetime
    resource: str
    id: str
    type: str
    actor: str | None
    what: str
    why: str | None
    place: tuple[int, str]


@dataclass(frozen=True, slots=True)
class ChangeCursor:
    """Where a page ended: the time and the place of its last change."""

    at: datetime
    place: tuple[int, str]


@dataclass(frozen=True, slots=True)
class _History:
    """One of the histories: the rows of ``query``, by when they were written and by ``key`` within a moment."""

    query: sa.Select[Any]
    at: sa.ColumnElement[Any]
    key: sa.ColumnElement[Any]
    read: Callable[[Row[Any], int], StoredChange]


class Changes:
    """Reads the histories of jobs, streams, manifests and keys as one list."""

    _database: Database

    def list_changes(
        self, since: datetime, *, limit: int, after: ChangeCursor | None = None, with_keys: bool = False
    ) -> list[StoredChange]:
        """Return up to ``limit`` changes from ``since`` on, newest first, of those that come after ``after``.

        Of a manifest only its last change is known. Keys are there ``with_keys`` alone.
        """
        found: list[StoredChange] = []
        with self._database.read() as connection:
            for rank, history in enumerate(_HISTORIES):
                if history.query is _KEY_CHANGES and not with_keys:
                    continue
                query = history.query.where(history.at >= since)
                if after is not None:
                    query = query.where(_comes_after(history, rank, after))
                query = query.order_by(history.at.desc(), history.key.desc()).limit(limit)
                found += [history.read(row, rank) for row in connection.execute(query)]
        found.sort(key=lambda change: (change.at, change.place), reverse=True)
        return found[:limit]


def _comes_after(history: _History, rank: int, after: ChangeCursor) -> sa.ColumnElement[bool]:
    last_rank, last_key = after.place
    if rank > last_rank:
        return history.at < after.at
    if rank < last_rank:
        return history.at <= after.at
    is_text = isinstance(history.key.type, sa.String)
    key = last_key if is_text else int(last_key)
    comes_after = sa.or_(history.at < after.at, sa.and_(history.at == after.at, history.key < key))
    # Said once more in terms of the time alone, which an index of it can begin at.
    return sa.and_(history.at <= after.at, comes_after)


def _read_event(row: Row[Any], rank: int) -> StoredChange:
    place = (rank, f"{row.number:0{_DIGITS}d}")
    return StoredChange(row.at, row.resource, row.id, row.type, row.actor, row.what, row.why, place)


def _read_manifest(row: Row[Any], rank: int) -> StoredChange:
    is_first = row.created_at == row.changed_at
    kind = (
        "removed" if row.removed_at else "applied" if is_first else "changed" if row.paused is None else "paused"
    )
    # Who removed, paused or resumed it is in the audit log alone.
    actor = row.applied_by if is_first else None
    why = row.paused or f"last applied by {row.applied_by}"
    what = f"{kind}, version {row.version}"
    return StoredChange(row.changed_at, "manifest", row.name, kind, actor, what, why, (rank, row.name))


# A key has two lines at most: when it was made, and when it was revoked.
_KEY_EVENTS: Final = sa.union_all(
    sa.select(KEYS.c.id, KEYS.c.name, KEYS.c.created_at.label("at"), sa.literal("created").label("type")),
    sa.select(KEYS.c.id, KEYS.c.name, KEYS.c.revoked_at.label("at"), sa.literal("revoked").label("type")).where(
        KEYS.c.revoked_at.is_not(None)
    ),
).subquery()


def _read_key(row: Row[Any], rank: int) -> StoredChange:
    return StoredChange(row.at, "key", row.name, row.type, None, row.type, None, (rank, f"{row.type} {row.id}"))


# What a job with a subject does is in its subject's history.
_JOB_CHANGES: Final = (
    sa.select(EVENTS, JOBS.c.kind.label("resource"), JOBS.c.id)
    .join(JOBS, JOBS.c.id == EVENTS.c.job_id)
    .where(EVENTS.c.type.in_(_JOB_TYPES), JOBS.c.subject.is_(None))
)
_STREAM_CHANGES: Final = sa.select(
    STREAM_EVENTS, sa.literal("stream").label("resource"), STREAM_EVENTS.c.stream.label("id")
)
_KEY_CHANGES: Final = sa.select(_KEY_EVENTS)
_HISTORIES: Final[Sequence[_History]] = (
    _History(_JOB_CHANGES, EVENTS.c.at, EVENTS.c.number, _read_event),
    _History(_STREAM_CHANGES, STREAM_EVENTS.c.at, STREAM_EVENTS.c.number, _read_event),
    _History(sa.select(MANIFESTS), MANIFESTS.c.changed_at, MANIFESTS.c.name, _read_manifest),
    _History(_KEY_CHANGES, _KEY_EVENTS.c.at, _KEY_EVENTS.c.type + " " + _KEY_EVENTS.c.id, _read_key),
)


def is_change_place(rank: int, key: str) -> bool:
    """Whether there may be such a place in a list of changes: a page's token comes from outside."""
    if not 0 <= rank < len(_HISTORIES):
        return False
    if isinstance(_HISTORIES[rank].key.type, sa.String):
        return key.isprintable()
    return key.isascii() and key.isdecimal() and len(key) == _DIGITS
