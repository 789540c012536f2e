"""Answers that go on until a job ends: its progress as server-sent events, its log as text."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

import structlog
from fastapi.concurrency import run_in_threadpool

from api.auth import StandingCaller
from api.schemas_backfills import BackfillEvent
from jobs.log import LogPiece
from jobs.store import JobEvent
from model.errors import RefeedError
from model.job import JobState
from model.principal import Principal

_LOG: Final = structlog.get_logger()
_POLL_SECONDS: Final = 0.5
# Proxies close what is silent for a minute, some for half of one.
_HEARTBEAT_SECONDS: Final = 15.0

Found = TypeVar("Found")


class Shown(Protocol):
    """A job as people see it."""

    @property
    def state(self) -> JobState:
        """Where it stands."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return it in the API's shape."""
        ...


class WatchedChanges(Protocol):
    """A job as it is now, and the lines of its history that are new."""

    @property
    def shown(self) -> Shown:
        """The job."""
        ...

    @property
    def events(self) -> Sequence[JobEvent]:
        """The lines."""
        ...


class Watched(Protocol):
    """A service whose jobs can be watched."""

    def watch(self, job_id: str, /, *, principal: Principal, after: int) -> WatchedChanges:
        """Return a job and what happened to it behind line number ``after``."""
        ...


class Logged(Protocol):
    """A service whose jobs have a driver's log."""

    def read_log(self, job_id: str, /, *, principal: Principal, tail_bytes: int) -> LogPiece:
        """Return the end of the log, whole lines only."""
        ...

    def read_log_from(self, job_id: str, offset: int, /, *, principal: Principal) -> LogPiece:
        """Return what the log has from byte ``offset`` on."""
        ...


async def read(call: Callable[[], Found]) -> Found:
    """Return what ``call`` does, without keeping other requests waiting."""
    return await run_in_threadpool(call)


async def stream_changes(
    service: Watched,
    job_id: str,
    first: WatchedChanges,
    caller: StandingCaller,
    *,
    after: int,
    is_stopping: Callable[[], bool],
) -> AsyncIterator[bytes]:
    """Yield server-sent events until the job has ended, beginning with ``first``.

    ``history`` is a line of its history, ``progress`` the whole of it whenever something of it has changed,
    ``end`` the same at its end. Their id is the number of the latest line of history, so a caller that comes back
    with it misses no line. A comment says every 15 seconds that the connection lives. A service that stops ends
    the stream without an ``end``; a caller whose key no longer counts gets a ``problem``.
    """
    changes, latest, last_sent, said_at = first, after, "", time.monotonic()
    while True:
        for event in changes.events:
            latest = event.number
            yield _event("history", latest, _render_event(event))
        shown = json.dumps(changes.shown.to_json(), default=str)
        has_ended = changes.shown.state.is_final
        if shown != last_sent or has_ended:
            yield _event("end" if has_ended else "progress", latest, shown)
            last_sent, said_at = shown, time.monotonic()
        if has_ended or is_stopping():
            return
        if time.monotonic() - said_at >= _HEARTBEAT_SECONDS:
            yield b": the connection lives\n\n"
            said_at = time.monotonic()
        await asyncio.sleep(_POLL_SECONDS)
        number = latest
        try:
            changes = await read(lambda: service.watch(job_id, principal=caller.principal(), after=number))  # noqa: B023
        except RefeedError as exc:
            # Too late for a status: a watcher comes back with the last id, or gives up.
            _LOG.warning("a watch ended early", job_id=job_id, code=exc.code)
            yield _event("problem", latest, json.dumps({"code": exc.code, "detail": exc.message}))
            return


async def stream_log(
    service: Logged,
    job_id: str,
    first: LogPiece,
    caller: StandingCaller,
    *,
    is_stopping: Callable[[], bool],
) -> AsyncIterator[bytes]:
    """Yield the driver's log from ``first`` on, until the job has ended and all of it is sent.

    A service that stops ends it earlier; so does a key that no longer counts, which the last line says.
    """
    piece = first
    while True:
        if piece.content:
            yield piece.content
        if piece.is_last or is_stopping():
            return
        if not piece.content or piece is first:
            await asyncio.sleep(_POLL_SECONDS)
        offset = piece.end
        try:
            piece = await read(
                lambda: service.read_log_from(job_id, offset, principal=caller.principal())  # noqa: B023
            )
        except RefeedError as exc:
            _LOG.warning("a log's reader was cut off", job_id=job_id, code=exc.code)
            yield f"\nrefeed: the log is not shown any further ({exc.code}): {exc.message}\n".encode()
            return


def _render_event(event: JobEvent) -> str:
    return json.dumps(BackfillEvent.model_validate(event, from_attributes=True).model_dump(mode="json"))


def _event(name: str, number: int, data: str) -> bytes:
    return f"id: {number}\nevent: {name}\ndata: {data}\n\n".encode()
