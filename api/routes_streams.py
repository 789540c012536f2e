"""Streams as a resource: launched, listed, shown, changed, drained and cancelled by their names."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Response

from api.answers import (
    CHANGED,
    NO_SUCH_STREAM,
    Caller,
    ExpectedStreamVersions,
    HeldStreams,
    IdempotencyKey,
    OpenInventory,
    SlowCalls,
    StreamName,
    Streams,
    created,
    point_to,
    problems,
    versioned,
)
from api.schemas_changes import WAITS, wait_for_approval
from api.schemas_streams import StreamChange, StreamDrain, StreamHistories, StreamsOut
from api.watching import LOG_ANSWER, Tail
from inventory.history import SPANS, Over
from inventory.service import Inventory
from inventory.streams import StreamOut
from jobs.log import DEFAULT_TAIL_LINES
from model.stream_record import StreamRecord
from rollout.request import StreamLaunch

router: Final = APIRouter(tags=["streams"])
_INVALID: Final = "The name or an option is not valid. `errors` lists every violation."
_FAILED: Final = "Pub/Sub returned an error."


@router.get("/streams", response_model=StreamsOut, responses=problems(s502=_FAILED))
def list_streams(inventory: OpenInventory, caller: Caller, slow: SlowCalls) -> Any:
    """List all streams, with state, lag, rates and the options of their launch."""
    with slow:
        return {"streams": inventory.list_streams(principal=caller)}


@router.get(
    "/streams:history",
    response_model=StreamHistories,
    responses=problems(s404=NO_SUCH_STREAM, s502=_FAILED),
)
def list_stream_histories(
    inventory: OpenInventory,
    caller: Caller,
    *,
    over: Annotated[
        Over,
        Query(
            description="The period: `hour` (the last hour, in steps of one minute) or `day` (the last day, "
            "in steps of ten minutes)."
        ),
    ] = "hour",
    name: Annotated[str | None, Query(max_length=300, description="List only this stream.")] = None,
) -> Any:
    """List the rate, lag and backlog of every stream over the last hour or day."""
    found = inventory.list_histories(over, principal=caller, name=name)
    streams = [{"name": each, "points": points} for each, points in found.items()]
    return {"over": over, "step_seconds": int(SPANS[over][1].total_seconds()), "streams": streams}


@router.post(
    "/streams",
    response_model=StreamOut,
    **created(201, s409="Another stream has this name or does the same work, and has not ended.", s422=_INVALID),
)
def launch_stream(
    body: StreamLaunch,
    response: Response,
    streams: Streams,
    inventory: OpenInventory,
    caller: Caller,
    *,
    idempotency_key: IdempotencyKey = None,
) -> Any:
    """Launch a stream, or launch a drained or cancelled stream again. An agent starts the stream."""
    record = streams.launch(body, principal=caller, idempotency_key=idempotency_key)
    point_to(f"/streams/{record.name}", response)
    return _shown(record, inventory, response)


@router.post(
    "/streams/{name}:drain",
    response_model=StreamOut,
    responses={
        202: WAITS,
        **versioned(
            s404=NO_SUCH_STREAM,
            s409="The stream has ended or is being cancelled.",
            s412=CHANGED,
            s422="The timeout is not valid.",
        ),
    },
)
def drain_stream(
    name: StreamName,
    response: Response,
    streams: Streams,
    inventory: OpenInventory,
    *,
    held: HeldStreams,
    caller: Caller,
    versions: ExpectedStreamVersions,
    body: StreamDrain | None = None,
) -> Any:
    """Drain a stream: the stream commits and acknowledges its messages, and then ends. No message is lost."""
    wanted = StreamDrain() if body is None else body
    if waits := held.hold("drain", name, wanted.model_dump(), principal=caller, versions=versions):
        return wait_for_approval(waits)
    record = streams.drain(name, principal=caller, versions=versions, timeout_seconds=wanted.timeout_seconds)
    return _shown(record, inventory, response)


@router.post(
    "/streams/{name}:cancel",
    response_model=StreamOut,
    responses={
        202: WAITS,
        **versioned(
            s404=NO_SUCH_STREAM, s409="The stream has ended.", s412=CHANGED, s422="A header is not valid."
        ),
    },
)
def cancel_stream(
    name: StreamName,
    response: Response,
    streams: Streams,
    inventory: OpenInventory,
    *,
    held: HeldStreams,
    caller: Caller,
    versions: ExpectedStreamVersions,
) -> Any:
    """Cancel a stream: the stream ends at once. Pub/Sub delivers the stream's unacknowledged messages again."""
    if waits := held.hold("cancel", name, {}, principal=caller, versions=versions):
        return wait_for_approval(waits)
    return _shown(streams.cancel(name, principal=caller, versions=versions), inventory, response)


@router.get(
    "/streams/{name}/logs",
    response_class=Response,
    responses={**LOG_ANSWER, **problems(s404=NO_SUCH_STREAM, s422="A parameter is not valid.")},
)
def read_stream_log(
    name: StreamName, streams: Streams, caller: Caller, *, tail: Tail = DEFAULT_TAIL_LINES
) -> Response:
    """Show the last lines of a stream's log. If the log is on another machine, show that machine's name."""
    return Response(streams.read_log(name, principal=caller, tail_lines=tail), media_type="text/plain")


@router.get(
    "/streams/{name}",
    response_model=StreamOut,
    responses=versioned(s404=NO_SUCH_STREAM, s422="The name is not valid."),
)
def get_stream(
    name: StreamName, response: Response, streams: Streams, inventory: OpenInventory, caller: Caller
) -> Any:
    """Show a launched stream: its wanted state and its latest report."""
    return _shown(streams.get(name, principal=caller), inventory, response)


@router.patch(
    "/streams/{name}",
    response_model=StreamOut,
    responses=versioned(
        s404=NO_SUCH_STREAM, s409="The stream has ended or is ending.", s412=CHANGED, s422=_INVALID
    ),
)
def change_stream(
    name: StreamName,
    body: StreamChange,
    response: Response,
    streams: Streams,
    inventory: OpenInventory,
    *,
    caller: Caller,
    versions: ExpectedStreamVersions,
) -> Any:
    """Change the batch options of a running stream. The next batch uses the new options."""
    record = streams.change(name, body.options, principal=caller, versions=versions)
    return _shown(record, inventory, response)


def _shown(record: StreamRecord, inventory: Inventory, response: Response) -> StreamOut:
    """Return the stream as the answer's body, its version as the answer's ETag."""
    found = inventory.show_stream(record)
    response.headers["ETag"] = str(found.etag)
    return found
