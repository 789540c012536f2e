"""Updates of streams as a resource: requested, shown and rolled back."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Response, status

from api.answers import (
    CHANGED,
    NO_SUCH_STREAM,
    PLACE_HEADERS,
    Caller,
    ExpectedStreamVersions,
    HeldStreams,
    IdempotencyKey,
    StreamName,
    Updates,
    point_to,
    problems,
)
from api.approvals import ApprovalOut, wait_for_approval
from api.schemas_updates import UpdateCreate, UpdateOut, UpdatesOut
from model.stream_update import UpdateRequest

router: Final = APIRouter(tags=["updates"])
_UNKNOWN: Final = "There is no such update."
_INVALID: Final = "The id is not valid."

UpdateId = Annotated[str, Path(description="The update's id.", max_length=64)]


@router.post(
    "/streams/{name}:update",
    operation_id="updateStream",
    status_code=status.HTTP_202_ACCEPTED,
    response_model=UpdateOut | ApprovalOut,
    responses={
        202: {"headers": PLACE_HEADERS},
        **problems(
            s404=NO_SUCH_STREAM,
            s409="The stream has ended or is being rolled back, or another update has not ended.",
            s412=CHANGED,
            s422="The request is not valid. `errors` lists every violation.",
        ),
    },
)
def update_stream(
    name: StreamName,
    body: UpdateCreate,
    response: Response,
    updates: Updates,
    held: HeldStreams,
    *,
    caller: Caller,
    versions: ExpectedStreamVersions,
    idempotency_key: IdempotencyKey = None,
) -> Any:
    """Update a stream to another release or to other options. Refeed watches the new release after the update.

    If a second person must approve updates in this deployment, the answer is the pending approval.
    """
    request = UpdateRequest.from_json(body.model_dump())
    if waits := held.hold("update", name, body.model_dump(), principal=caller, versions=versions):
        return wait_for_approval(waits)
    made = updates.create(name, request, principal=caller, versions=versions, idempotency_key=idempotency_key)
    point_to(f"/updates/{made.id}", response)
    return made


@router.get(
    "/streams/{name}/updates",
    operation_id="listUpdates",
    response_model=UpdatesOut,
    responses=problems(s404=NO_SUCH_STREAM, s422="The name is not valid."),
)
def list_updates(name: StreamName, updates: Updates, caller: Caller) -> Any:
    """List every update of a stream, newest first."""
    return {"updates": updates.list_updates(name, principal=caller)}


@router.post(
    "/updates/{update_id}:roll_back",
    operation_id="rollBackUpdate",
    response_model=UpdateOut,
    responses=problems(
        s404=_UNKNOWN,
        s409="The update has ended, is being rolled back, or can't be rolled back.",
        s422=_INVALID,
    ),
)
def roll_back_update(update_id: UpdateId, updates: Updates, caller: Caller) -> Any:
    """Roll an update back: the old release runs the stream again."""
    return updates.revert(update_id, principal=caller)


@router.get(
    "/updates/{update_id}",
    operation_id="getUpdate",
    response_model=UpdateOut,
    responses=problems(s404=_UNKNOWN, s422=_INVALID),
)
def get_update(update_id: UpdateId, updates: Updates, caller: Caller) -> Any:
    """Show an update."""
    return updates.get(update_id, principal=caller)
