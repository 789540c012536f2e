"""Which backfills are too large for one person to decide about, and what another one has agreed to."""

from datetime import UTC, datetime
from typing import Any

from backfill.run.progress import Progress
from jobs.store import Job
from model.moment import render_moment


def approval_of(rows: int | None, above_rows: int) -> dict[str, Any] | None:
    """Return what the store keeps about an approval; rows that are not known yet are counted by the driver.

    Above ``above_rows`` rows one is needed; 0 is never.
    """
    if not above_rows:
        return None
    is_above = rows is not None and rows > above_rows
    return {"required": is_above, "above_rows": above_rows, "rows": rows, "by": None, "at": None}


def exceeds_approval(job: Job) -> bool:
    """Whether the job has more rows than one person may decide about, and than somebody else has approved.

    What is known counts: the plan's rows at first, those that were selected later. An approval is one of that many
    rows: where the archive has grown since, and more are selected, it does not hold.
    """
    approval = job.approval or {}
    if not approval.get("above_rows"):
        return False
    selected = Progress.of(job).selected or 0
    if approval.get("by") is None:
        return max(approval.get("rows") or 0, selected) > int(approval["above_rows"])
    # One from before approvals were counted stands for all.
    return approval.get("rows") is not None and selected > int(approval["rows"])


def known_rows(job: Job) -> int | None:
    """Return how many rows the job has: those that were selected, before that those of its plan, if any."""
    selected = Progress.of(job).selected
    return (job.approval or {}).get("rows") if selected is None else selected


def allowed_rows(job: Job) -> int | None:
    """Return how many rows may go out without another approval, None for any number."""
    approval = job.approval or {}
    return approval.get("above_rows") if approval.get("by") is None else approval.get("rows")


def is_approved(job: Job) -> bool:
    """Whether somebody has approved the job, be it with fewer rows than it has."""
    return (job.approval or {}).get("by") is not None


def approved(job: Job, by: str) -> dict[str, Any]:
    """Return what the store keeps once ``by`` has approved the job with the rows that it is known to have."""
    rows, at = known_rows(job), render_moment(datetime.now(UTC))
    return {**(job.approval or {}), "required": True, "rows": rows, "by": by, "at": at}


def show_approval(job: Job) -> dict[str, Any] | None:
    """Return the job's approval in the API's shape; one that does not hold any more is none by anybody."""
    if job.approval is None:
        return None
    is_waiting = exceeds_approval(job)
    return {
        "required": is_waiting or is_approved(job),
        "above_rows": job.approval.get("above_rows"),
        "rows": known_rows(job),
        "by": None if is_waiting else job.approval.get("by"),
        "at": None if is_waiting else job.approval.get("at"),
    }
