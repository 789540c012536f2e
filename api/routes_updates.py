"""Updates of streams as a resource: asked for, shown, approved and taken back."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Response, status

from api.answers import CREATED_HEADERS, Caller, HeldStreams, IdempotencyKey, Updates, problems
from api.approvals import wait_for_approval
from api.schemas_approvals import ApprovalOut
from api.schemas_updates import UpdateCreate, UpdateOut, UpdatesOut
from model.moment import render_moment
from model.stream_update import StreamUpdate, UpdateReplay, UpdateRequest

router: Final = APIRouter(tags=["updates"])
_UNKNOWN_STREAM: Final = "No stream was ever launched under this name."
_UNKNOWN: Final = "There is no such update."
_INVALID: Final = "The id is not valid."

StreamName = Annotated[str, Path(description="A stream's name.", examples=["backup"], max_length=300)]
UpdateId = Annotated[str, Path(description="An update's id.", max_length=64)]


@router.post(
    "/streams/{name}:update",
    operation_id="updateStream",
    status_code=status.HTTP_202_ACCEPTED,
    response_model=UpdateOut | ApprovalOut,
    responses={
        202: {"headers": CREATED_HEADERS},
        **problems(
            s404=_UNKNOWN_STREAM,
            s409="Another update of it has not ended, it is being put back, or it has ended.",
            s422="The request is not valid; `errors` has every violation.",
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
    idempotency_key: IdempotencyKey = None,
) -> Any:
    """Let a stream go on as another release or with other options: checked, handed over, and watched.

    Where this deployment has updates approved by a second person, the answer is the approval that it waits for.
    """
    request = UpdateRequest.from_json(body.model_dump())
    if waits := held.hold("update", name, body.model_dump(), principal=caller):
        return wait_for_approval(waits)
    made = updates.create(name, request, principal=caller, idempotency_key=idempotency_key)
    response.headers["Location"] = f"/updates/{made.id}"
    response.headers["Retry-After"] = "1"
    return render_update(made)


@router.get(
    "/streams/{name}/updates",
    operation_id="listUpdates",
    response_model=UpdatesOut,
    responses=problems(s404=_UNKNOWN_STREAM, s422="The name is not valid."),
)
def list_updates(name: StreamName, updates: Updates, caller: Caller) -> Any:
    """List every update of a stream, newest first."""
    return {"updates": [render_update(each) for each in updates.list_updates(name, principal=caller)]}


@router.post(
    "/updates/{update_id}:approve",
    operation_id="approveUpdate",
    response_model=UpdateOut,
    responses=problems(s404=_UNKNOWN, s409="It is neither WATCHING nor INCONCLUSIVE.", s422=_INVALID),
)
def approve_update(update_id: UpdateId, updates: Updates, caller: Caller) -> Any:
    """Make an update that is watched, or INCONCLUSIVE, STABLE: the new release stays."""
    return render_update(updates.approve(update_id, principal=caller))


@router.post(
    "/updates/{update_id}:roll_back",
    operation_id="rollBackUpdate",
    response_model=UpdateOut,
    responses=problems(
        s404=_UNKNOWN, s409="It has ended, hands over at this moment, or has no way back.", s422=_INVALID
    ),
)
def roll_back_update(update_id: UpdateId, updates: Updates, caller: Caller) -> Any:
    """Take an update back: the old release takes the stream over again, or never stopped."""
    return render_update(updates.roll_back(update_id, principal=caller))


@router.get(
    "/updates/{update_id}",
    operation_id="getUpdate",
    response_model=UpdateOut,
    responses=problems(s404=_UNKNOWN, s422=_INVALID),
)
def get_update(update_id: UpdateId, updates: Updates, caller: Caller) -> Any:
    """Show an update."""
    return render_update(updates.get(update_id, principal=caller))


def render_update(update: StreamUpdate) -> dict[str, Any]:
    """Return the update in the API's shape."""
    request, error = update.request, update.error
    return {
        "id": update.id,
        "stream": update.stream,
        "state": update.state.value,
        "release": request.release,
        "options": dict(request.options),
        "mapping": dict(request.mapping),
        "validate_seconds": request.validate_seconds,
        "min_messages": request.min_messages,
        "reason": request.reason,
        "shadow": None
        if request.shadow is None
        else {"hours": request.shadow.hours, "may_differ": list(request.shadow.may_differ)},
        "from_release": update.from_release,
        "has_way_back": update.has_way_back,
        "checked": update.checked,
        "snapshot_id": update.snapshot_id,
        "instance_id": update.instance_id,
        "attempts": update.attempts,
        "handed_over_at": render_moment(update.handed_over_at),
        "paused_seconds": update.paused_seconds,
        "figures": update.figures,
        "error": None
        if error is None
        else {"code": error.code, "message": error.message, "logs": dict(error.logs)},
        "replay": _render_replay(update.replay),
        "created_by": update.created_by,
        "created_at": render_moment(update.created_at),
        "changed_at": render_moment(update.changed_at),
        "finished_at": render_moment(update.finished_at),
    }


def _render_replay(replay: UpdateReplay | None) -> dict[str, Any] | None:
    if replay is None:
        return None
    return {
        "since": render_moment(replay.since),
        "until": render_moment(replay.until),
        "topics": list(replay.topics),
    }
