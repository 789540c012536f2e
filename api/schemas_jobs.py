"""The JSON shape of a job of any kind, as OpenAPI shows it."""

from typing import Annotated, Any, Literal

from fastapi import Response
from pydantic import BaseModel, Field, RootModel, ValidationError

from api.schemas_changes import ChangeOut
from api.schemas_snapshots import RollbackOut
from api.schemas_updates import UpdateOut
from backfill.steer.view import Backfill
from backup.compaction.service import Compaction
from jobs.reader import JobView, unreadable
from reporting.view import Merge

JobKindName = Literal["backfill", "merge", "compaction", "update", "restore", "change"]
AnyJobOut = Backfill | Merge | Compaction | UpdateOut | RollbackOut | ChangeOut


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

    backfills: list[Backfill]
