"""Merges as a resource: created, listed, shown, watched, cancelled and retried."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Response, status

from api.answers import CREATED_HEADERS, Caller, IdempotencyKey, point_to, problems, service_of, shown
from api.job_routes import JobResource, add_job_routes, add_retry_route
from api.listing import merge_listing
from api.schemas import Since
from api.schemas_merges import MergeAudits, MergeOut
from reporting.kind import MERGE
from reporting.request import MergeCreate
from reporting.service import MergeService

router: Final = APIRouter(tags=["merges"])
_LONGEST: Final = timedelta(days=366)
_INVALID: Final = "The request is not valid; `errors` has every violation."
_find: Final = service_of(lambda services: services.merges)
MERGES: Final = JobResource(
    MERGE,
    service=_find,
    listing=merge_listing,
    cancel="Stop a merge: what is merged stays merged, the source in hand is merged whole or not at all.",
    shape=MergeOut,
)
Merges = Annotated[MergeService, Depends(_find)]


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
    point_to(f"/merges/{found.id}", response)
    return shown(found, response)


@router.get(
    "/merges:audits",
    operation_id="listMergeAudits",
    response_model=MergeAudits,
    responses=problems(s422=_INVALID),
)
def list_merge_audits(
    service: Merges,
    caller: Caller,
    *,
    source: Annotated[str | None, Query(max_length=300, description="This source alone.")] = None,
    since: Annotated[Since | None, Query(description="RFC 3339, by the merge's end; 14 days ago.")] = None,
) -> Any:
    """List how each source fared in each merge that ended, with its audits: what the nights have found."""
    now = datetime.now(UTC)
    first = now - timedelta(days=14) if since is None else max(since, now - _LONGEST)
    return {"nights": service.list_sources(first, principal=caller, source=source)}


add_job_routes(router, MERGES)
add_retry_route(router, MERGES, "It has not ended, or it has merged everything.")
