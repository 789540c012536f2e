"""A backfill as people see it: one shape for the API and for ``--json``."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from backfill.plan.plan import NOBODY_RECEIVES, render_nothing_warning
from backfill.plan.request import LIVE, BackfillRequest
from backfill.run.progress import Progress
from backfill.steer.approval import show_approval
from backfill.steer.verification import Verification, VerificationState
from jobs.store import Job
from jobs.view import DrivenJob
from model.job import JobState


@dataclass(frozen=True, kw_only=True)
class Backfill(DrivenJob, BackfillRequest):
    """One backfill: its request as changes have left it, and what became of it.

    ``window`` is the ingestion times its query may read, ``replays`` those of the messages
    that it lets through, None of one that an earlier Refeed made. ``canary_messages`` is None once a resume has
    ended the canary, which ``canary`` still shows.
    ``in_flight_at_most`` are messages that may still go out of one that is paused or cancelled, None else.
    ``revert`` is who reverted it, when, and how many rows that deleted; None when nobody did, or it was retried
    later.
    ``warnings`` have the shape and the codes of a plan's.
    """

    window: dict[str, str]
    replays: dict[str, str] | None
    canary: dict[str, Any] | None
    progress: Progress
    in_flight_at_most: int | None
    approval: dict[str, Any] | None
    verification: dict[str, Any]
    revert: dict[str, Any] | None
    warnings: list[dict[str, str]]

    @classmethod
    def from_job(cls, job: Job, *, in_flight_at_most: int | None = None) -> Self:
        """Return the backfill that a job of kind ``backfill`` is."""
        request = BackfillRequest.from_json({**job.request, **dict.fromkeys(LIVE), **job.options})
        progress = Progress.of(job)
        return cls(
            **{each.name: getattr(request, each.name) for each in fields(request)},
            **cls.fields_of(job),
            window=job.request["window"],
            replays=job.request.get("replays"),
            canary=_canary(job),
            # What stands still has no rate and no time left, whatever was measured last.
            progress=progress
            if job.state is JobState.RUNNING
            else replace(progress, rate_messages_per_second=None, eta_seconds=None),
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
