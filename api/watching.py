"""Following a job live: what every such route asks for, and how it answers."""

from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import Header, Query
from fastapi.responses import StreamingResponse

from api.auth import StandingCaller
from api.streams import Watched, read, stream_changes

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

After = Annotated[
    int, Query(ge=0, le=_MAX_NUMBER, description="Only lines of the history behind the one with this number.")
]
LastEventId = Annotated[
    int | None,
    Header(ge=0, le=_MAX_NUMBER, description="What a client sends that comes back; wins over after."),
]


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
