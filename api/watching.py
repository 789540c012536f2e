"""Following a job: its progress as server-sent events, its log as text, and what routes of both ask for."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Final, TypeVar

import structlog
from fastapi import Header, Query
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from api.auth import StandingCaller
from api.schemas_events import EventOut
from jobs.log import MAX_TAIL_LINES, LogPiece
from jobs.reader import JobChanges, JobReader
from model.errors import RefeedError
from model.event import HistoryEvent

_LOG: Final = structlog.get_logger()
_POLL_SECONDS: Final = 0.5
# Proxies close what is silent for a minute, some for half of one.
_HEARTBEAT_SECONDS: Final = 15.0
_MAX_NUMBER: Final = 2**53
# One event of the stream, as tools that read descriptions take it.
_EVENT: Final = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "The number of the latest line of history."},
        "event": {"type": "string", "enum": ["history", "progress", "end", "problem"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
    "required": ["event", "data"],
}
_EXAMPLE: Final = {"id": "17", "event": "progress", "data": '{"id": "bf_...", "state": "RUNNING", ...}'}
WATCH_ANSWER: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": (
            "Server-sent events of four types. `history`: a new entry in the job's history. `progress`: the "
            "whole job after a change. `end`: the whole job, after it has ended. `problem`: the error that "
            "ends the answer early. The `data` of an event is JSON. To continue, send the `id` of the last event "
            "as Last-Event-ID."
        ),
        "content": {"text/event-stream": {"schema": _EVENT, "example": _EXAMPLE}},
    }
}

LOG_ANSWER: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The lines of the log. Empty if there are no lines yet.",
        "content": {"text/plain": {"schema": {"type": "string"}}},
    }
}

After = Annotated[
    int,
    Query(ge=0, le=_MAX_NUMBER, description="List only entries whose number is higher than this number."),
]
LastEventId = Annotated[
    int | None,
    Header(
        ge=0,
        le=_MAX_NUMBER,
        description="The id of the last server-sent event that the client received. This header overrides "
        "`after`.",
    ),
]
Tail = Annotated[
    int,
    Query(
        ge=0,
        le=MAX_TAIL_LINES,
        description="The number of lines to show from the end of the log. The answer has at most 10 MB.",
    ),
]
Follow = Annotated[bool, Query(description="Continue with new lines until the job ends.")]

Found = TypeVar("Found")


async def answer_changes(
    service: JobReader[Any],
    job_id: str,
    caller: StandingCaller,
    stopping: Callable[[], bool],
    *,
    after: int,
    last_event_id: int | None,
) -> StreamingResponse:
    """Return the stream of a job's changes, from a line of its history on, until it ends."""
    begin = after if last_event_id is None else last_event_id
    # Before the answer begins: a job that is not there is a problem with a status.
    first = await _read(lambda: service.watch(job_id, principal=caller.principal(), after=begin))
    events = _stream_changes(service, job_id, first, caller, after=begin, is_stopping=stopping)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


async def answer_log(
    service: JobReader[Any],
    job_id: str,
    caller: StandingCaller,
    stopping: Callable[[], bool],
    *,
    tail: int,
    follow: bool,
) -> StreamingResponse:
    """Return the end of a job's log and, with ``follow``, what its driver writes from now on."""
    first = await _read(lambda: service.read_log(job_id, principal=caller.principal(), tail_lines=tail))
    if not follow:
        return StreamingResponse(iter([first.content]), media_type="text/plain")
    lines = _stream_log(service, job_id, first, caller, is_stopping=stopping)
    return StreamingResponse(lines, media_type="text/plain")


async def _read(call: Callable[[], Found]) -> Found:
    """Return what ``call`` does, without keeping other requests waiting."""
    return await run_in_threadpool(call)


async def _stream_changes(
    service: JobReader[Any],
    job_id: str,
    first: JobChanges[Any],
    caller: StandingCaller,
    *,
    after: int,
    is_stopping: Callable[[], bool],
) -> AsyncIterator[bytes]:
    """Yield server-sent events until the job has ended, beginning with ``first``.

    ``history`` is a line of its history, ``progress`` the whole of it whenever something of it has changed,
    ``end`` the same at its end. Their id is the number of the latest line of history, so a caller that comes back
    with it misses no line. A comment every 15 seconds keeps the connection alive. A service that stops ends
    the stream without an ``end``; a caller whose key no longer counts gets a ``problem``.
    """
    changes, latest, last_sent, said_at = first, after, "", time.monotonic()
    while True:
        for event in changes.events:
            latest = event.number
            yield _event("history", latest, _render_event(event))
        shown = json.dumps(changes.shown.to_json(), default=str)
        has_ended = changes.is_last
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
            changes = await _read(lambda: service.watch(job_id, principal=caller.principal(), after=number))  # noqa: B023
        except RefeedError as exc:
            # Too late for a status: a watcher comes back with the last id, or gives up.
            _LOG.warning("a response with the progress of a job ended early", job_id=job_id, code=exc.code)
            yield _event("problem", latest, json.dumps({"code": exc.code, "detail": exc.message}))
            return


async def _stream_log(
    service: JobReader[Any],
    job_id: str,
    first: LogPiece,
    caller: StandingCaller,
    *,
    is_stopping: Callable[[], bool],
) -> AsyncIterator[bytes]:
    """Yield the driver's log from ``first`` on, until the job has ended and all of it is sent.

    A service that stops ends it earlier; so does a key that no longer counts, with a last line about it.
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
            piece = await _read(
                lambda: service.read_log_from(job_id, offset, principal=caller.principal())  # noqa: B023
            )
        except RefeedError as exc:
            _LOG.warning("a response with a job's log ended early", job_id=job_id, code=exc.code)
            yield f"\nrefeed: the log is not shown any further ({exc.code}): {exc.message}\n".encode()
            return


def _render_event(event: HistoryEvent) -> str:
    return json.dumps(EventOut.model_validate(event, from_attributes=True).model_dump(mode="json"))


def _event(name: str, number: int, data: str) -> bytes:
    return f"id: {number}\nevent: {name}\ndata: {data}\n\n".encode()
