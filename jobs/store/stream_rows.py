"""What all records of streams share: lines of a stream's history, and the version that a caller has seen."""

from datetime import datetime
from typing import Any

from sqlalchemy.engine import Connection

from jobs.store.tables import STREAM_EVENTS
from model.errors import StreamChangedError
from model.stream_record import StreamEventType


def append_event(
    connection: Connection,
    stream: str,
    generation: int,
    kind: StreamEventType,
    at: datetime,
    *,
    actor: str,
    what: str,
    why: str | None = None,
    **fields: Any,
) -> None:
    """Add a line to a stream's history; its row must be held, so that numbers grow as lines become visible."""
    given = {name: value for name, value in fields.items() if value is not None}
    written = {"stream": stream, "generation": generation, "at": at, "actor": actor}
    told = {"type": kind.value, "what": what, "why": why, "fields": given}
    connection.execute(STREAM_EVENTS.insert().values(**written, **told))


def check_version(name: str, version: int, expected: int | None) -> None:
    """Raise unless the stream is at the version that is expected; None is any.

    Raises:
        StreamChangedError: it is at another one.
    """
    if expected not in (None, version):
        raise StreamChangedError(f"{name} is at version {version}, not {expected}.", version=version)
