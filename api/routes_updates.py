"""Updates of streams, which are jobs: requested here."""

from typing import Any, Final

from fastapi import APIRouter, Response, status

from api.answers import (
    CHANGED,
    NO_SUCH_STREAM,
    PLACE_HEADERS,
    Caller,
    ExpectedStreamVersions,
    HeldStreams,
    IdempotencyKey,
    Jobs,
    StreamName,
    Updates,
    point_to,
    problems,
)
from api.schemas_changes import ChangeOut, wait_for_approval
from api.schemas_updates import UpdateCreate, UpdateOut
from model.stream_update import UpdateRequest

router: Final = APIRouter(tags=["updates"])


@router.post(
    "/streams/{name}:update",
    operation_id="updateStream",
    status_code=status.HTTP_202_ACCEPTED,
    response_model=UpdateOut | ChangeOut,
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
    jobs: Jobs,
    caller: Caller,
    versions: ExpectedStreamVersions,
    idempotency_key: IdempotencyKey = None,
) -> Any:
    """Update a stream to another release or to other options. Refeed watches the new release after the update.

    If a second person must approve updates in this deployment, the answer is the job that
    waits for the approval.
    """
    request = UpdateRequest.from_json(body.model_dump())
    if waits := held.hold("update", name, body.model_dump(), principal=caller, versions=versions):
        return wait_for_approval(waits)
    made = updates.create(name, request, principal=caller, versions=versions, idempotency_key=idempotency_key)
    point_to(f"/jobs/{made.id}", response)
    return jobs.show(made.id, principal=caller).to_json()
