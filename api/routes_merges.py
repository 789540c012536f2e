"""Merges as a resource: created; their audits. As jobs they are in api.routes_jobs."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel

from api.answers import Caller, IdempotencyKey, created, point_to, problems, service_of
from api.schemas import Since
from api.schemas_jobs import shown
from reporting.request import MergeCreate
from reporting.service import MergeService
from reporting.view import Merge, MergeNight

router: Final = APIRouter(tags=["merges"])
_LONGEST: Final = timedelta(days=366)
_INVALID: Final = "The request is not valid. `errors` lists every violation."
Merges = Annotated[MergeService, Depends(service_of(lambda services: services.merges))]


class MergeAudits(BaseModel):
    """The results of ended merges by source, newest merge first. Dry runs are not listed."""

    nights: list[MergeNight]


@router.post(
    "/merges",
    response_model=Merge,
    **created(
        202,
        s409="The first call with this Idempotency-Key is still in progress.",
        s422=_INVALID,
        s502="The registry can't be read, or has faults.",
    ),
)
def create_merge(
    body: MergeCreate,
    response: Response,
    service: Merges,
    caller: Caller,
    *,
    idempotency_key: IdempotencyKey = None,
) -> Any:
    """Merge new rows of staging tables into reporting tables. Only one merge runs at a time."""
    found = service.create(body.parse(), principal=caller, idempotency_key=idempotency_key)
    point_to(f"/jobs/{found.id}", response)
    return shown(found, response)


@router.get("/merges:audits", response_model=MergeAudits, responses=problems(s422=_INVALID))
def list_merge_audits(
    service: Merges,
    caller: Caller,
    *,
    source: Annotated[str | None, Query(max_length=300, description="List only results of this source.")] = None,
    since: Annotated[
        Since | None,
        Query(
            description="List only merges that ended at this time (RFC 3339) or later. The default is 14 days ago."
        ),
    ] = None,
) -> Any:
    """List the results of ended merges. Each entry is the result of one source in one merge.

    An entry has the audits: the checks that ran before the commit.
    """
    now = datetime.now(UTC)
    first = now - timedelta(days=14) if since is None else max(since, now - _LONGEST)
    return {"nights": service.list_sources(first, principal=caller, source=source)}
