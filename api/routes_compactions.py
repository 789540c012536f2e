"""Compactions as a resource: created. As jobs they are in api.routes_jobs."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Response

from api.answers import Caller, IdempotencyKey, created, point_to, service_of
from api.schemas_jobs import shown
from backup.compaction.service import Compaction, CompactionService
from rollout.manifests.schedule import CompactionWanted

router: Final = APIRouter(tags=["compactions"])


@router.post(
    "/compactions",
    response_model=Compaction,
    **created(
        202,
        s409="The first call with this Idempotency-Key is still in progress.",
        s422="The request is not valid, or the warehouse compacts its tables by itself. `errors` lists every "
        "violation.",
    ),
)
def create_compaction(
    body: CompactionWanted,
    response: Response,
    service: Annotated[CompactionService, Depends(service_of(lambda services: services.compactions))],
    caller: Caller,
    *,
    idempotency_key: IdempotencyKey = None,
) -> Any:
    """Combine small files of a lake's tables into large files. No row changes. One compaction runs at a time."""
    found = service.create(body.tables, principal=caller, idempotency_key=idempotency_key)
    point_to(f"/jobs/{found.id}", response)
    return shown(found, response)
