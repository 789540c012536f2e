"""Compactions as a resource: listed, shown, watched, cancelled and retried; schedules create them."""

from datetime import datetime
from typing import Any, Final

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from api.answers import service_of
from api.job_routes import JobResource, add_job_routes, add_retry_route
from api.listing import merge_listing
from api.schemas_merges import MergeError
from backup.compaction.kind import COMPACTION
from model.job import JobState

router: Final = APIRouter(tags=["compactions"])
_EXAMPLE: Final[dict[str, Any]] = {
    "id": "cp_01K0ABCDEFGHJKMNPQRSTVWXYZ",
    "state": "SUCCEEDED",
    "tables": ["archive", "staging.orders"],
    "files_removed": {"archive": 812, "staging.orders": 40},
    "created_by": "schedule:compactions",
    "created_at": "2026-01-03T03:00:00Z",
    "started_at": "2026-01-03T03:00:01Z",
    "finished_at": "2026-01-03T03:02:09Z",
    "restarts": 0,
    "error": None,
    "etag": '"5"',
}


class CompactionOut(BaseModel):
    """One compaction job."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    id: str = Field(description="The compaction's id, which begins with `cp_`.")
    state: JobState = Field(description="The compaction's state.")
    tables: list[str] = Field(description="The tables to compact: `archive`, or a table as dataset.table.")
    files_removed: dict[str, int] = Field(
        description="For each table, the number of files before the compaction minus the number of files after "
        "the compaction."
    )
    created_by: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    restarts: int = Field(
        description="The number of drivers that died and were replaced since a person last started the job."
    )
    error: MergeError | None
    etag: str


COMPACTIONS: Final = JobResource(
    COMPACTION,
    service=service_of(lambda services: services.compactions),
    listing=merge_listing,
    cancel="Cancel a compaction. Compacted files stay compacted.",
    shape=CompactionOut,
)
add_job_routes(router, COMPACTIONS)
add_retry_route(router, COMPACTIONS, "The compaction has not ended, or all its tables are compacted.")
