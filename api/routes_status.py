"""Everything that runs, what waits for a person, and what is wrong."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from api.answers import Caller, Jobs, OpenInventory, SlowCalls, problems
from api.schemas_snapshots import RollbackOut
from api.schemas_updates import UpdateOut
from api.state import Services, services_of, state_of
from backfill.steer.view import Backfill
from backup.compaction.service import Compaction
from inventory.service import Inventory
from inventory.status import StatusProblem
from inventory.streams import StreamOut
from jobs.collection import JobCollection
from jobs.inbox_items import InboxItem, InboxKind
from jobs.listing import MAX_PAGE_SIZE, ListRequest
from jobs.store import JobFilter
from jobs.store.step_jobs import RESTORE, UPDATE
from model.errors import ForbiddenError
from model.job import ACTIVE_STATES, JobState
from model.principal import Principal
from model.stream_record import StreamState
from model.stream_update import UpdateState
from reporting.view import Merge

router: Final = APIRouter(tags=["status"])
_FAILED: Final = "The warehouse or Pub/Sub returned an error."
# Where no time is known a job has waited for ever.
_EVER: Final = datetime.min.replace(tzinfo=UTC)
_WRONG: Final = {"failure": "job_failed", "incomplete": "backfill_incomplete"}
# Failures of other things than jobs.
_FAILURES: Final = {"manifest": "upload_failed", "update": "rollout_failed", "schedule": "schedule_failed"}


class InboxItemOut(BaseModel):
    """Something to look at, such as a job, a stream, a snapshot, a topic, a source, a schedule or an upload."""

    kind: InboxKind = Field(description="Why a person should look at the resource.")
    resource: Literal[
        "backfill",
        "merge",
        "compaction",
        "stream",
        "snapshot",
        "manifest",
        "schedule",
        "change",
        "update",
        "topic",
        "source",
    ] = Field(description="The kind of the resource.")
    id: str = Field(
        description="The id of the resource. The id of a stream, a topic, a source or a schedule is its name, and "
        "the id of an uploaded manifest is its file or folder."
    )
    state: JobState | StreamState | UpdateState | None = Field(
        description="The state of the resource. Null for a topic or a source."
    )
    topic: str | None = Field(description="The target topic of a backfill, or the topic of a gap.")
    created_by: str | None
    since: datetime | None = Field(description="The time from which the resource has needed attention.")
    message: str
    code: str | None = Field(description="The error code of a failed backfill, merge or compaction.")


class InboxOut(BaseModel):
    """Everything that a person should look at, oldest first. Ended jobs are listed for seven days."""

    items: list[InboxItemOut]


class StatusProblemOut(BaseModel):
    """A problem of the deployment."""

    code: str
    name: str = Field(description="The stream, the job or the part of the service that has the problem.")
    message: str


class StatusOut(BaseModel):
    """The state of the whole deployment."""

    is_ok: bool = Field(description="Whether there are no problems.")
    problems: list[StatusProblemOut] = Field(description="All problems.")
    streams: list[StreamOut] = Field(description="All streams.")
    backfills: list[Backfill] = Field(description="The jobs that have not ended, oldest first.")
    merges: list[Merge] = Field(description="The jobs that have not ended, oldest first.")
    compactions: list[Compaction] = Field(description="The jobs that have not ended, oldest first.")
    updates: list[UpdateOut] = Field(
        description="The updates of streams that have not ended, oldest first. Empty if you may not see them."
    )
    restores: list[RollbackOut] = Field(
        description="The rollbacks of streams that have not ended, oldest first. Empty if you may not see them."
    )
    inbox: list[InboxItemOut] = Field(description="Everything that a person should look at.")


@router.get("/status", response_model=StatusOut, responses=problems(s502=_FAILED))
def get_status(request: Request, *, inventory: OpenInventory, caller: Caller, jobs: Jobs, slow: SlowCalls) -> Any:
    """Show all streams, all jobs that have not ended, the inbox, and all problems."""
    services = services_of(request).jobs
    with slow:
        condition = inventory.check_streams(principal=caller)
        inbox = _list_inbox(services_of(request), inventory, caller)
        active = {service.kind.collection: service.list_active(principal=caller) for service in services}
        wrong = [
            *(
                StatusProblem("not_ready", name, said)
                for name, said in state_of(request.app).open.starting.items()
            ),
            *(
                StatusProblem("background_failing", name, said)
                for name, said in services_of(request).background_problems().items()
            ),
            *(
                StatusProblem("job_unreadable", job_id, "Another release may have written its request.")
                for _, unreadable in active.values()
                for job_id in unreadable
            ),
            *condition.problems,
            *(
                StatusProblem(_FAILURES.get(item.resource, _WRONG[item.kind]), item.id, item.message)
                for item in inbox
                # A stream whose update failed goes on as before, and who asked for it knows. A manifest does not.
                if item.kind in _WRONG and not item.id.startswith("up_")
            ),
        ]
        return {
            "is_ok": not wrong,
            "problems": wrong,
            "streams": condition.streams,
            **{name: [job.to_json() for job in found] for name, (found, _) in active.items()},
            "updates": _list_steps(jobs, UPDATE, caller),
            "restores": _list_steps(jobs, RESTORE, caller),
            "inbox": inbox,
        }


@router.get("/inbox", response_model=InboxOut)
def get_inbox(request: Request, inventory: OpenInventory, caller: Caller) -> Any:
    """List everything that a person should look at, such as approvals, failures, gaps and type changes."""
    return {"items": _list_inbox(services_of(request), inventory, caller)}


def _list_steps(jobs: JobCollection, kind: str, caller: Principal) -> list[dict[str, Any]]:
    """Return the jobs of a kind that agents carry out and that have not ended, if the caller may see them."""
    where = JobFilter(kinds=(kind,), states=tuple(sorted(ACTIVE_STATES)))
    with suppress(ForbiddenError):
        found, _, _ = jobs.list_jobs(
            ListRequest(MAX_PAGE_SIZE, order_by="created_at", where=where), principal=caller
        )
        return [job.to_json() for job in found]
    return []


def _list_inbox(services: Services, inventory: Inventory, caller: Principal) -> list[InboxItem]:
    items = [item for service in services.jobs for item in service.list_inbox(principal=caller)]
    items += inventory.list_inbox(principal=caller)
    items += services.sources.list_inbox(principal=caller)
    items += services.changes.list_inbox(principal=caller)
    items += services.uploads.list_inbox(principal=caller)
    items += services.schedules.list_inbox(principal=caller)
    items += services.updates.list_inbox(principal=caller)
    items += services.snapshots.list_inbox(principal=caller)
    return sorted(items, key=lambda item: item.since or _EVER)
