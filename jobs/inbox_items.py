"""Inbox items: what continues, or is repaired, only when a person acts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from jobs.store import Job, JobFilter, JobStore
from model.job import JobState
from model.stream_record import StreamState
from model.stream_update import UpdateState

# A failure leaves the inbox after this many days without a retry.
FAILURE_DAYS: Final = 7
_MOST: Final = 1000

InboxKind = Literal[
    "approval", "canary", "paused", "failure", "incomplete", "ended", "dead_letters", "gap", "type_change"
]


@dataclass(frozen=True, slots=True)
class InboxItem:
    """One item that waits: ``kind`` is the reason, ``resource`` the type (a job, a stream or another).

    ``since`` is when it began to wait, None if unknown. ``state`` is None for a topic, which has no state.
    ``code`` is the error code of a failed job.
    """

    kind: InboxKind
    resource: str
    id: str
    state: JobState | StreamState | UpdateState | None
    topic: str | None
    created_by: str | None
    since: datetime | None
    message: str
    code: str | None = None


def list_ended(store: JobStore, kind: str, states: tuple[JobState, ...], *, now: datetime) -> list[Job]:
    """Return jobs of a kind that ended in one of ``states`` during the last seven days, 1,000 at most."""
    recent = JobFilter(kinds=(kind,), states=states, ended_since=now - timedelta(days=FAILURE_DAYS))
    return store.list_jobs(recent, limit=_MOST)


def _failure_item(job: Job) -> InboxItem:
    what: tuple[InboxKind, str, str, JobState] = ("failure", job.kind, job.id, job.state)
    code = None if job.error is None else job.error.code
    return InboxItem(*what, job.request.get("topic"), job.created_by, job.finished_at, error_message(job), code)


def list_failures(ended: Sequence[Job], makes_up_for: Callable[[Job, Job], bool]) -> list[InboxItem]:
    """Return an item for each failed job, except those that a later succeeded job makes up for."""
    done = [job for job in ended if job.state is JobState.SUCCEEDED]
    return [
        _failure_item(job)
        for job in ended
        if job.state is JobState.FAILED
        and not any(later.created_at >= job.created_at and makes_up_for(later, job) for later in done)
    ]


def error_message(job: Job) -> str:
    """Return the message of a failed job's error."""
    return "It failed." if job.error is None else str(job.error)
