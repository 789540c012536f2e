"""Compactions as a resource: listed, shown, watched, cancelled and retried; schedules create them."""

from typing import Final

from fastapi import APIRouter

from api.answers import service_of
from api.job_routes import JobResource, add_job_routes, add_retry_route
from api.listing import merge_listing
from api.schemas_compactions import CompactionEvents, CompactionOut, CompactionPage
from backup.compaction.kind import COMPACTION

router: Final = APIRouter(tags=["compactions"])
COMPACTIONS: Final = JobResource(
    COMPACTION,
    service=service_of(lambda services: services.compactions),
    listing=merge_listing,
    cancel="Stop a compaction: what is compacted stays so, and no row changes.",
    shape=CompactionOut,
    page_shape=CompactionPage,
    events_shape=CompactionEvents,
)
add_job_routes(router, COMPACTIONS)
add_retry_route(router, COMPACTIONS, "It has not ended, or it has compacted everything.")
