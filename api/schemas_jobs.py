"""The JSON shape of a job of any kind, as OpenAPI shows it, and that of a compaction."""

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError

from api.schemas_backfills import BackfillOut
from api.schemas_changes import ChangeOut
from api.schemas_merges import MergeError, MergeOut
from api.schemas_snapshots import RollbackOut
from api.schemas_updates import UpdateOut
from jobs.reader import JobView, unreadable
from model.job import JobState

JobKindName = Literal["backfill", "merge", "compaction", "update", "restore", "change"]
_EXAMPLE: Final[dict[str, Any]] = {
    "id": "cp_01K0ABCDEFGHJKMNPQRSTVWXYZ",
    "kind": "compaction",
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
    kind: Literal["compaction"] = Field(description="The kind of the job.")
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


AnyJobOut = BackfillOut | MergeOut | CompactionOut | UpdateOut | RollbackOut | ChangeOut


class JobOut(RootModel[Annotated[AnyJobOut, Field(discriminator="kind")]]):
    """One job. `kind` says which fields it has."""


def job_json(found: JobView) -> dict[str, Any]:
    """Return a job in the API's shape.

    Raises:
        JobUnreadableError: a value that another release wrote is none of this shape.
    """
    shown = found.to_json()
    try:
        JobOut.model_validate(shown)
    except ValidationError as exc:
        raise unreadable(found.id) from exc
    return shown


def shown(found: JobView, response: Response) -> dict[str, Any]:
    """Return the job as the answer's body, its version as the answer's ETag; raises as :func:`job_json`."""
    response.headers["ETag"] = found.etag
    return job_json(found)


class _Page(BaseModel):
    next_page_token: str | None
    unreadable: list[str] = Field(
        description="The ids of jobs that belong on this page and that this release can't read. Another release "
        "wrote them."
    )


class JobPage(_Page):
    """A page of jobs."""

    jobs: list[JobOut]


class BackfillPage(_Page):
    """A page of backfills."""

    backfills: list[BackfillOut]
