"""Merges as a resource: created, listed, shown, watched, cancelled and retried."""

from typing import Any, Final

from fastapi import APIRouter, Response, status

from api.answers import CREATED_HEADERS, Caller, IdempotencyKey, Merges, created, merge_service, problems
from api.job_routes import JobResource, add_job_routes, add_retry_route
from api.listing import merge_listing
from api.schemas_merges import MergeEvents, MergeOut, MergePage
from reporting.kind import MERGE
from reporting.request import MergeCreate

router: Final = APIRouter(tags=["merges"])
_INVALID: Final = "The request is not valid; `errors` has every violation."
MERGES: Final = JobResource(
    MERGE,
    service=merge_service,
    listing=merge_listing,
    cancel="Stop a merge: what is merged stays merged, the source in hand is merged whole or not at all.",
    shape=MergeOut,
    page_shape=MergePage,
    events_shape=MergeEvents,
)


@router.post(
    "/merges",
    operation_id="createMerge",
    status_code=status.HTTP_202_ACCEPTED,
    response_model=MergeOut,
    responses={
        202: {"headers": CREATED_HEADERS},
        **problems(
            s409="The first call with this Idempotency-Key is under way.",
            s422=_INVALID,
            s502="The registry can't be read, or has faults.",
        ),
    },
)
def create_merge(
    body: MergeCreate,
    response: Response,
    service: Merges,
    caller: Caller,
    *,
    idempotency_key: IdempotencyKey = None,
) -> Any:
    """Merge what staging has since the last merge into reporting; it runs when no other merge does."""
    found = service.create(body.parse(), principal=caller, idempotency_key=idempotency_key)
    return created(found, f"/merges/{found.id}", response)


add_job_routes(router, MERGES)
add_retry_route(router, MERGES, "It has not ended, or it has merged everything.")
