"""What waits for a person: it goes on, or is mended, only when somebody does something."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from jobs.store import Job, JobFilter, JobStore
from model.job import JobState
from model.stream_record import StreamState
from model.stream_update import UpdateState

# A failure that nobody has retried for so long is history.
FAILURE_DAYS: Final = 7
_MOST: Final = 1000

InboxKind = Literal[
    "approval", "canary", "paused", "failure", "incomplete", "ended", "dead_letters", "gap", "type_change"
]


@dataclass(frozen=True, slots=True)
class InboxItem:
    """One thing that waits: ``kind`` says for what, ``resource`` whether it is a job, a stream or another thing.

    ``since`` is when it began to wait, None where nobody knows; ``state`` is None of a topic, which has none.
    ``code`` is that of a job's failure.
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
    """Return the items of the jobs that failed, but for those that a later one which succeeded makes up for."""
    done = [job for job in ended if job.state is JobState.SUCCEEDED]
    return [
        _failure_item(job)
        for job in ended
        if job.state is JobState.FAILED
        and not any(later.created_at >= job.created_at and makes_up_for(later, job) for later in done)
    ]


def error_message(job: Job) -> str:
    """Return why a job failed, as its error says it."""
    return "It failed." if job.error is None else str(job.error)
