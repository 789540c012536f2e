"""Jobs' rows, and what they are checked for before they change."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from sqlalchemy.engine import Connection

from jobs.store.events import append_event
from jobs.store.records import Job
from jobs.store.rows import Records
from jobs.store.tables import JOBS
from model.errors import JobChangedError, JobNotFoundError, JobStateError, LeaseLostError
from model.event import HistoryEventType
from model.job import JobState

JOB_RECORDS: Final = Records(JOBS, Job, "job", JobNotFoundError)


def append_move(
    connection: Connection,
    job: Job,
    state: JobState,
    at: datetime,
    *,
    actor: str,
    why: str | None,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Add the line of a job's move to a state, and of the options that it changed on the way."""
    fields: dict[str, Any] = {"from": job.state, "to": state, "options": sorted(options or ()) or None}
    what = f"{job.state} -> {state}"
    append_event(
        connection, job.kind, job.id, HistoryEventType.MOVED, at, actor=actor, what=what, why=why, **fields
    )


def check_version(job: Job, version: int | None, epoch: int | None) -> None:
    """Raise unless the job is at the version and in the attempt; None is any.

    Raises:
        JobChangedError: it is not.
    """
    if version not in (None, job.version):
        raise JobChangedError(f"{job.id} is at version {job.version}, not {version}.", version=job.version)
    if epoch not in (None, job.epoch):
        raise JobChangedError(f"{job.id} is in attempt {job.epoch}, not in attempt {epoch}.", version=job.version)


def check_state(job: Job, state: JobState | None) -> None:
    """Raise unless the job is in the state; None is any.

    Raises:
        JobStateError: it is not.
    """
    if state not in (None, job.state):
        raise JobStateError(f"{job.id} is {job.state}, not {state}.", state=job.state)


def check_owner(job: Job, owner: str | None) -> None:
    """Raise unless the owner holds the job; None is anybody.

    Raises:
        LeaseLostError: somebody else does.
    """
    if owner is not None and job.lease_owner != owner:
        raise LeaseLostError(f"Another replica supervises {job.id} now.", owner=job.lease_owner)
