"""Streams' rows, and what they are checked for before they change."""

from collections.abc import Collection
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from jobs.store.events import STREAM, append_event
from jobs.store.rows import read_row
from jobs.store.tables import MANAGED_STREAMS
from jobs.store.waits import is_over
from model.errors import RolloutRefusedError, StreamChangedError, StreamNotFoundError, StreamStateError, fault_at
from model.event import HistoryEventType
from model.naming import did_you_mean
from model.rollout_record import RolloutSide
from model.stream_record import StreamRecord


def find_row(connection: Connection, name: str, *, for_update: bool = False) -> Row[Any] | None:
    """Return the row of a stream, None where there never was one."""
    query = sa.select(MANAGED_STREAMS).where(MANAGED_STREAMS.c.name == name)
    return connection.execute(query.with_for_update() if for_update else query).first()


def get_record(connection: Connection, name: str, now: datetime, *, for_update: bool = False) -> StreamRecord:
    """Return the record of a stream; ``for_update`` keeps others from changing it until the transaction ends.

    Raises:
        StreamNotFoundError: there never was one.
    """
    # No database looks for a NUL or an unpaired surrogate.
    row = find_row(connection, name, for_update=for_update) if name.isprintable() else None
    if row is None:
        meant = did_you_mean(name, list(connection.scalars(sa.select(MANAGED_STREAMS.c.name))))
        raise StreamNotFoundError(f"No stream was ever launched as {name[:80]!r}.{meant}", name=name[:80])
    return record_of(row, now)


def record_of(row: Row[Any], now: datetime) -> StreamRecord:
    """Return the record that a row is."""
    is_held = row.agent_until is not None and not is_over(row.agent_until, now)
    return read_row(StreamRecord, row, is_held=is_held)


def update_stream(connection: Connection, name: str, **changes: Any) -> None:
    """Change some of a stream's columns."""
    connection.execute(MANAGED_STREAMS.update().where(MANAGED_STREAMS.c.name == name).values(**changes))


def append_line(
    connection: Connection,
    record: StreamRecord,
    at: datetime,
    kind: HistoryEventType = HistoryEventType.NOTED,
    *,
    actor: str,
    what: str,
    **fields: Any,
) -> None:
    """Add a line to the history of a stream, with its generation."""
    name, generation = record.name, record.generation
    append_event(connection, STREAM, name, kind, at, actor=actor, what=what, generation=generation, **fields)


def check_versions(record: StreamRecord, versions: Collection[int] | None) -> None:
    """Raise unless the stream is at one of ``versions``; None is any.

    Raises:
        StreamChangedError: it is not.
    """
    if versions is not None and record.version not in versions:
        raise StreamChangedError(f"{record.name} is at version {record.version}.", version=record.version)


def check_living(record: StreamRecord, way_out: str) -> None:
    """Raise unless the stream is living; ``way_out`` is what its caller can do then.

    Raises:
        StreamStateError: it has ended.
    """
    if not record.is_living:
        raise StreamStateError(f"{record.name} is {record.state}{way_out}", state=record.state)


def check_runs(record: StreamRecord, side: RolloutSide) -> None:
    """Raise unless the stream runs as ``side`` says.

    Raises:
        RolloutRefusedError: it runs as something else.
    """
    differences = side.differences(RolloutSide(record.release, record.options))
    if differences:
        told = "; ".join(
            f"{name} is {_shown(name, runs)}, but in 'from' it is {_shown(name, said)}"
            for name, (said, runs) in differences.items()
        )
        errors = [
            fault_at("/from/" + name.replace(".", "/"), "from_differs", f"{name} is {_shown(name, runs)}.")
            for name, (_, runs) in differences.items()
        ]
        raise RolloutRefusedError(
            f"{record.name} does not run with the release and options in 'from': {told}.", errors=errors
        )


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "the installed one" if name == "release" else "not set"
    return str(value)
