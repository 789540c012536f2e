"""A backfill as people see it: one shape for the API and for ``--json``."""

from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import BaseModel, Field

from backfill.plan.plan import NOBODY_RECEIVES, PlanWarning, ReplayedTimes, TimeWindow, render_nothing_warning
from backfill.plan.request import LIVE, BackfillRequest
from backfill.run.progress import Progress
from backfill.steer.approval import show_approval
from backfill.steer.verification import Verification, VerificationState
from jobs.store import Job
from jobs.view import DrivenJob, shape_of
from model.declaration import example_of
from model.job import JobState

_REQUEST: Final = BackfillRequest(**example_of(BackfillRequest))
_EXAMPLE_BACKFILL: Final[dict[str, Any]] = {
    **_REQUEST.to_json(),
    "id": "bf_01K0ABCDEFGHJKMNPQRSTVWXYZ",
    "kind": "backfill",
    "state": "RUNNING",
    "finished_at": None,
    "window": {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"},
    "replays": {"column": "_PARTITIONTIME", "from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"},
    "canary": {"messages": 10, "state": "ahead"},
    "progress": {
        "selected": 120_000,
        "published": 30_000,
        "failed": 0,
        "bytes": 33_000_000,
        "event_time": "2026-01-01T06:10:00.000000Z",
        "rate_messages_per_second": 500.0,
        "eta_seconds": 180.0,
        "repeated_at_most": 0,
    },
    "in_flight_at_most": None,
    "approval": None,
    "verification": {
        "state": "pending",
        "selected": 120_000,
        "published": 30_000,
        "landed": None,
        "merged": None,
        "missing": None,
        "waiting": None,
        "advice": None,
        "dead_letters": None,
    },
    "revert": None,
    "warnings": [],
}


class BackfillProgress(BaseModel):
    """The progress of a backfill."""

    selected: int | None = Field(
        description="Number of rows that the query returned. Null until the query has run."
    )
    published: int = Field(description="Number of messages that Pub/Sub has confirmed.")
    failed: int = Field(
        description="Number of messages that can't be published. `GET /dead-letters` lists them with reasons."
    )
    bytes: int = Field(description="Bytes of the publish requests that Pub/Sub has confirmed.")
    event_time: datetime | None = Field(description="The latest `publish_time` of the replayed messages.")
    rate_messages_per_second: float | None = Field(description="The rate of the last 15 seconds.")
    eta_seconds: float | None = Field(
        description="The expected number of seconds until the end, at the rate of the last 15 seconds."
    )
    repeated_at_most: int = Field(
        description="At most this number of messages were published twice, or would be published twice by a "
        "retry. The number is more than 0 only if a process died or an answer of Pub/Sub was lost."
    )


class BackfillVerification(BaseModel):
    """How many selected rows have arrived. Null means unknown."""

    state: Literal["pending", "complete", "incomplete", "unknown"] = Field(
        description="`pending`: the backfill has not ended, its rows are not counted yet, or all rows that are "
        "not in a staging table may not be delivered yet. `complete`: every selected row is in every staging "
        "table of the target. `incomplete`: some rows were not published, or are missing. `unknown`: Refeed knows "
        "no staging table of the target."
    )
    selected: int | None = Field(description="Number of selected rows.")
    published: int = Field(description="Number of messages that Pub/Sub has confirmed.")
    landed: int | None = Field(description="Number of selected rows that are in the target's staging table.")
    merged: int | None = Field(description="Number of selected rows that a merge has read.")
    missing: int | None = Field(
        description="Number of rows that are not in the target's staging table, without those in `waiting`. Rows "
        "that were never sent, because the backfill was cancelled or failed, do not count."
    )
    waiting: int | None = Field(
        None,
        description="At most this number of rows wait in a subscription of the target's pipeline. They are not "
        "delivered yet.",
    )
    advice: str | None = Field(
        None, description="Why rows wait or can't be verified, and what to do. Null if there is nothing to do."
    )
    dead_letters: int | None = Field(
        default=None, description="How many of the missing rows are dead letters of the pipeline."
    )


class BackfillApproval(BaseModel):
    """The approval of a backfill with many rows."""

    required: bool = Field(description="Whether the backfill needs an approval.")
    above_rows: int | None = Field(description="A backfill with more rows than this number needs an approval.")
    rows: int | None = Field(
        description="The number of rows in the plan. After the query has run, the number of selected rows."
    )
    by: str | None = Field(description="Who approved the backfill. Null before the approval.")
    at: datetime | None = Field(description="When the person approved the backfill. Null before the approval.")


class BackfillRevert(BaseModel):
    """Who reverted a backfill, and when."""

    by: str = Field(description="Who reverted the backfill.")
    at: datetime = Field(description="When the backfill was reverted.")
    rows: int = Field(description="Number of rows that were deleted from the staging table.")


class BackfillCanary(BaseModel):
    """The requested canary: the backfill publishes this number of messages first, and then pauses."""

    messages: int = Field(description="Number of messages in the canary.")
    state: Literal["ahead", "reached", "over"] = Field(
        description="`ahead`: not all messages of the canary are published. `reached`: the backfill has paused "
        "after the canary. `over`: the backfill was resumed, or has ended."
    )


@dataclass(frozen=True, kw_only=True)
class Backfill(DrivenJob, BackfillRequest):
    """One backfill."""

    __pydantic_config__: ClassVar[dict[str, Any]] = shape_of(_EXAMPLE_BACKFILL)

    kind: Annotated[Literal["backfill"], Field(description="The kind of the job.")]
    window: Annotated[TimeWindow | None, Field(description="The partitions that the query reads.")]
    replays: Annotated[
        ReplayedTimes | None,
        Field(
            description="The time window of the selected messages. Null if an older version of Refeed created "
            "the backfill."
        ),
    ]
    canary_messages: Annotated[
        int | None, Field(description="The number of messages in the canary. Null after the backfill was resumed.")
    ]
    canary: Annotated[BackfillCanary | None, Field(description="The canary and its state. Null without a canary.")]
    progress: Annotated[BackfillProgress, Field(description="The backfill's progress.")]
    in_flight_at_most: Annotated[
        int | None,
        Field(description="The largest number of messages that can still be published after a pause or a cancel."),
    ]
    approval: Annotated[
        BackfillApproval | None, Field(description="The approval. Null if this deployment requires no approvals.")
    ]
    verification: Annotated[
        BackfillVerification, Field(description="How many of the selected messages have arrived.")
    ]
    revert: Annotated[
        BackfillRevert | None,
        Field(
            description="The last revert. Null if nobody reverted the backfill, or if the backfill was retried "
            "after the revert."
        ),
    ]
    warnings: Annotated[
        list[PlanWarning],
        Field(description="Reasons why no message will arrive: `nobody_receives` or `nothing_selected`."),
    ]

    @classmethod
    def from_job(cls, job: Job, *, in_flight_at_most: int | None = None) -> Self:
        """Return the backfill that a job of kind ``backfill`` is."""
        request = BackfillRequest.from_json({**job.request, **dict.fromkeys(LIVE), **job.options})
        progress = Progress.of(job)
        return cls.read(
            job,
            **{each.name: getattr(request, each.name) for each in fields(request)},
            window=job.request["window"],
            replays=job.request.get("replays"),
            canary=_canary(job),
            # What stands still has no rate and no time left, whatever was measured last.
            progress=asdict(
                progress
                if job.state is JobState.RUNNING
                else replace(progress, rate_messages_per_second=None, eta_seconds=None)
            ),
            in_flight_at_most=in_flight_at_most,
            approval=show_approval(job),
            verification=job.findings
            or asdict(Verification(VerificationState.PENDING, progress.selected, progress.published)),
            revert=job.options.get("reverted"),
            warnings=_warnings(job),
        )


def _canary(job: Job) -> dict[str, Any] | None:
    """Return how many messages the canary has, and whether it is ahead, reached or over; None without one."""
    messages = job.request.get("canary_messages")
    if messages is None:
        return None
    if job.options.get("canary_messages") is None or job.state.is_final:
        state = "over"
    else:
        progress = Progress.of(job)
        is_reached = job.state is JobState.PAUSED and progress.published + progress.failed >= messages
        state = "reached" if is_reached else "ahead"
    return {"messages": messages, "state": state}


def _warnings(job: Job) -> list[dict[str, str]]:
    """Return what its create warned of; whether something is selected and received is known better later."""
    nothing = render_nothing_warning()
    found = job.findings or {}
    is_received = bool(found.get("landed") or found.get("waiting"))
    made = [one for one in job.request.get("warnings", []) if not (is_received and one["code"] == NOBODY_RECEIVES)]
    selected = Progress.of(job).selected
    if selected is None:
        return made
    return [one for one in made if one != nothing] + ([] if selected else [nothing])
