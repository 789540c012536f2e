"""Updates of streams, which are jobs: checked and requested here."""

from typing import Any, Final

from fastapi import APIRouter, Request, Response, status
from fastapi.responses import JSONResponse

from api.answers import (
    CHANGED,
    PLACE_HEADERS,
    Caller,
    Checks,
    ExpectedStreamVersions,
    HeldStreams,
    IdempotencyKey,
    Jobs,
    SlowCalls,
    StreamName,
    Updates,
    ValidateOnly,
    point_to,
    problems,
)
from api.schemas_changes import ChangeOut, wait_for_approval
from api.schemas_updates import StreamCheckOut, UpdateCreate, UpdateOut
from model.stream_update import UpdateRequest

router: Final = APIRouter(tags=["updates"])


@router.post(
    "/streams/{name}:update",
    status_code=status.HTTP_202_ACCEPTED,
    response_model=UpdateOut | ChangeOut,
    responses={
        200: {"model": StreamCheckOut, "description": "With `validate_only`: all reasons against the update."},
        202: {"headers": PLACE_HEADERS},
        **problems(
            s404="The stream or, with `validate_only`, the release does not exist.",
            s409="The stream has ended or is being rolled back, or another update has not ended. With "
            "`validate_only`: the stream's state is not in the API's home.",
            s412=CHANGED,
            s422="The request is not valid. `errors` lists every violation.",
            s502="With `validate_only`: the wanted release can't read the registry, or finds faults in it.",
        ),
    },
)
def update_stream(
    call: Request,
    name: StreamName,
    body: UpdateCreate,
    response: Response,
    updates: Updates,
    *,
    held: HeldStreams,
    checks: Checks,
    slow: SlowCalls,
    jobs: Jobs,
    caller: Caller,
    versions: ExpectedStreamVersions,
    validate_only: ValidateOnly = False,
    idempotency_key: IdempotencyKey = None,
) -> Any:
    """Update a stream to another release or to other options. Refeed watches the new release after the update.

    If a second person must approve updates in this deployment, the answer is the job that
    waits for the approval.
    """
    if validate_only:
        with slow:
            found = checks.check(
                name, principal=caller, release=body.release, options=body.options, mapping=body.mapping
            )
        call.state.why = "validate_only"
        return JSONResponse(StreamCheckOut.model_validate(found.to_json()).model_dump(mode="json"))
    request = UpdateRequest.from_json(body.model_dump())
    if waits := held.hold("update", name, body.model_dump(), principal=caller, versions=versions):
        return wait_for_approval(waits)
    made = updates.create(name, request, principal=caller, versions=versions, idempotency_key=idempotency_key)
    point_to(f"/jobs/{made.id}", response)
    return jobs.show(made.id, principal=caller).to_json()
