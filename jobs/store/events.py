"""The histories of jobs, streams, manifests, topics, sources and keys: one table of lines."""

from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from jobs.store.database import Database
from jobs.store.rows import read_row
from jobs.store.tables import EVENTS
from model.event import HistoryEvent, HistoryEventType

STREAM: Final = "stream"
MANIFEST: Final = "manifest"
KEY: Final = "key"
TOPIC: Final = "topic"
SOURCE: Final = "source"
# More than a day of a stream whose process dies as often as possible.
KEPT_LINES: Final = 5000
# Lines of jobs in steps are not listed: the history of the stream has them too.
_LISTED: Final = ("backfill", "merge", "compaction", STREAM, MANIFEST, TOPIC, SOURCE)


class Events:
    """Reads the histories of all objects as one list; only the newest lines of each object are kept."""

    _database: Database

    def list_last_events(
        self,
        since: datetime | None = None,
        *,
        limit: int,
        of: tuple[str | None, str | None] | None = None,
        before: tuple[datetime, int] | None = None,
        after: int = 0,
        with_keys: bool = False,
    ) -> list[HistoryEvent]:
        """Return up to ``limit`` lines, newest first, of all objects or of ``of``.

        ``of`` is a resource and an id: for a job the resource may be None, and without an id all objects of the
        resource are meant. ``before`` is the time and number of the last line of the page before; only lines with
        a number above ``after`` are returned. Lines of keys need ``with_keys``. Lists of many objects leave out
        the findings of jobs, which change nothing.
        """
        columns = EVENTS.c
        query = sa.select(EVENTS).order_by(columns.at.desc(), columns.number.desc()).limit(limit)
        if since is not None:
            query = query.where(columns.at >= since)
        if before is not None:
            at, number = before
            # The condition on the time alone lets the query start in the index by time.
            is_before = sa.or_(columns.at < at, columns.number < number)
            query = query.where(columns.at <= at, is_before)
        if after:
            query = query.where(columns.number > after)
        if not with_keys:
            query = query.where(columns.resource != KEY)
        resource, name = of or (None, None)
        if name is not None:
            is_job = columns.resource.not_in((STREAM, MANIFEST, KEY, TOPIC, SOURCE))
            query = query.where(columns.id == name, is_job if resource is None else columns.resource == resource)
        else:
            listed = (*_LISTED, KEY) if resource is None else (resource,)
            query = query.where(columns.resource.in_(listed), columns.type != HistoryEventType.FOUND)
        with self._database.read() as connection:
            return [read_row(HistoryEvent, row) for row in connection.execute(query)]

    def note_event(
        self,
        resource: str,
        name: str,
        what: str,
        *,
        actor: str,
        kind: HistoryEventType = HistoryEventType.NOTED,
        at: datetime | None = None,
        **fields: Any,
    ) -> None:
        """Append a line to the history of a topic or source, unless it has one with the same text and ``at``."""
        with self._database.write(f"{resource} {name}") as connection:
            known = () if at is None else read_events(connection, resource, name, 0)
            if all((each.at, each.what) != (at, what) for each in known):
                at = at or self._database.now(connection)
                append_event(connection, resource, name, kind, at, actor=actor, what=what, **fields)


def append_event(
    connection: Connection,
    resource: str,
    name: str,
    kind: HistoryEventType,
    at: datetime,
    *,
    actor: str | None,
    what: str,
    why: str | None = None,
    generation: int | None = None,
    **fields: Any,
) -> None:
    """Append a line to the history of an object, and delete its oldest lines beyond the limit.

    The caller must hold the object's row, so that lines become visible in the order of their numbers.
    """
    columns = EVENTS.c
    given = {field: value for field, value in fields.items() if value is not None}
    line = {"resource": resource, "id": name, "at": at, "actor": actor, "type": kind, "what": what, "why": why}
    connection.execute(EVENTS.insert().values(**line, generation=generation, fields=given))
    is_its = (columns.resource == resource, columns.id == name)
    newest = sa.select(columns.number).where(*is_its).order_by(columns.number.desc())
    last = connection.scalar(newest.offset(KEPT_LINES).limit(1))
    if last is not None:
        connection.execute(EVENTS.delete().where(*is_its, columns.number <= last))


def read_events(connection: Connection, resource: str, name: str, after: int) -> list[HistoryEvent]:
    """Return an object's history after line number ``after``, oldest first."""
    columns = EVENTS.c
    query = sa.select(EVENTS).where(columns.resource == resource, columns.id == name, columns.number > after)
    return [read_row(HistoryEvent, row) for row in connection.execute(query.order_by(columns.number))]
