"""Merges that wait for a person: those that failed and that no later merge has made up for."""

from datetime import UTC, datetime

from jobs.inbox_items import InboxItem, error_message, list_ended
from jobs.store import Job, JobStore
from model.job import JobState
from reporting.kind import MERGE


def list_inbox(store: JobStore) -> list[InboxItem]:
    """Return merges of the last seven days that failed and whose sources no later merge has merged."""
    found = list_ended(store, MERGE.name, (JobState.FAILED, JobState.SUCCEEDED), now=datetime.now(UTC))
    real = [job for job in found if not job.request["dry_run"]]
    succeeded = [job for job in real if job.state is JobState.SUCCEEDED]
    return [
        _failure(job)
        for job in real
        if job.state is JobState.FAILED and not any(_makes_up_for(later, job) for later in succeeded)
    ]


def _failure(job: Job) -> InboxItem:
    return InboxItem(
        "failure", job.kind, job.id, job.state, None, job.created_by, job.finished_at, error_message(job)
    )


def _makes_up_for(later: Job, failed: Job) -> bool:
    """Whether a merge has, since the failure, merged everything that it was about.

    The trap: one that had to read staging again from an earlier time is not made up for by one that had not.
    """
    if later.created_at < failed.created_at or not set(failed.request["sources"]) <= set(later.request["sources"]):
        return False
    wanted, read = failed.request["since"], later.request["since"]
    return wanted is None or (read is not None and datetime.fromisoformat(read) <= datetime.fromisoformat(wanted))
