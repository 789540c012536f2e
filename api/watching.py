"""Following a job and its driver's log: what every such route asks for, and how it answers."""

from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import Header, Query
from fastapi.responses import StreamingResponse

from api.auth import StandingCaller
from api.streams import Logged, Watched, read, stream_changes, stream_log
from jobs.log import MAX_TAIL_BYTES

_MAX_NUMBER: Final = 2**53
# One event of the stream, as tools that read descriptions take it.
_EVENT_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "Number of the last line of the history; Last-Event-ID."},
        "event": {"type": "string", "enum": ["history", "progress", "end", "problem"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
    "required": ["event", "data"],
}
_EXAMPLE: Final = 'id: 17\nevent: progress\ndata: {"id": "bf_...", "state": "RUNNING", ...}\n\n'
WATCH_ANSWER: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Server-sent events: `history` for each line of its history, `progress` with the whole "
        "of it when something has changed, `end` with it at its end, where the stream ends; `problem` when "
        "it can't go on. Comments keep the connection alive.",
        "content": {"text/event-stream": {"schema": _EVENT_SCHEMA, "example": _EXAMPLE}},
    }
}

LOG_ANSWER: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Lines, as they were written; empty while there are none.",
        "content": {"text/plain": {"schema": {"type": "string"}}},
    }
}

After = Annotated[
    int, Query(ge=0, le=_MAX_NUMBER, description="Only lines of the history behind the one with this number.")
]
LastEventId = Annotated[
    int | None,
    Header(ge=0, le=_MAX_NUMBER, description="What a client sends that comes back; wins over after."),
]
Tail = Annotated[int, Query(ge=0, le=MAX_TAIL_BYTES, description="Bytes from the end, whole lines of them.")]
Follow = Annotated[bool, Query(description="Go on with what is written, until it ends.")]


async def answer_changes(
    service: Watched,
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
    first = await read(lambda: service.watch(job_id, principal=caller.principal(), after=begin))
    events = stream_changes(service, job_id, first, caller, after=begin, is_stopping=stopping)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


async def answer_log(
    service: Logged,
    job_id: str,
    caller: StandingCaller,
    stopping: Callable[[], bool],
    *,
    tail: int,
    follow: bool,
) -> StreamingResponse:
    """Return the end of a job's log and, with ``follow``, what its driver writes from now on."""
    first = await read(lambda: service.read_log(job_id, principal=caller.principal(), tail_bytes=tail))
    if not follow:
        return StreamingResponse(iter([first.content]), media_type="text/plain")
    lines = stream_log(service, job_id, first, caller, is_stopping=stopping)
    return StreamingResponse(lines, media_type="text/plain")
