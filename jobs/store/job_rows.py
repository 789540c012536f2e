"""Jobs' rows, and the checks before they change."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from jobs.store.events import append_event
from jobs.store.records import Job
from jobs.store.rows import Records
from jobs.store.tables import EVENTS, JOBS
from model.errors import JobChangedError, JobNotFoundError, JobStateError, LeaseLostError
from model.event import HistoryEventType
from model.job import ACTIVE_STATES, FINAL_STATES, JobState

_ENDED: Final = sorted(state.value for state in FINAL_STATES)
# The states are listed, so that the index by state is used: most jobs in a store have ended.
IS_ACTIVE: Final = JOBS.c.state.in_(sorted(state.value for state in ACTIVE_STATES))
JOB_RECORDS: Final = Records(JOBS, Job, "job", JobNotFoundError)


def find_active(connection: Connection, *where: sa.ColumnElement[bool]) -> list[Job]:
    """Return the jobs that have not ended and for which the conditions hold, oldest first."""
    query = sa.select(JOBS).where(*where, IS_ACTIVE)
    # Sorted in Python: with ORDER BY, SQLite would scan all jobs, ended ones too.
    return sorted(JOB_RECORDS.find_all(connection, query), key=lambda job: job.id)


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
    """Append the line of a job's move to a state, with the names of the options that it changes."""
    fields: dict[str, Any] = {"from": job.state, "to": state, "options": sorted(options or ()) or None}
    what = f"{job.state} -> {state}"
    append_event(
        connection, job.kind, job.id, HistoryEventType.MOVED, at, actor=actor, what=what, why=why, **fields
    )


def check_version(job: Job, version: int | None, epoch: int | None) -> None:
    """Raise unless the job is at the version and in the attempt; None allows any.

    Raises:
        JobChangedError: it is not.
    """
    if version not in (None, job.version):
        raise JobChangedError(f"{job.id} is at version {job.version}, not {version}.", version=job.version)
    if epoch not in (None, job.epoch):
        raise JobChangedError(f"{job.id} is in attempt {job.epoch}, not in attempt {epoch}.", version=job.version)


def check_state(job: Job, state: JobState | None) -> None:
    """Raise unless the job is in the state; None allows any.

    Raises:
        JobStateError: it is not.
    """
    if state not in (None, job.state):
        raise JobStateError(f"{job.id} is {job.state}, not {state}.", state=job.state)


def check_owner(job: Job, owner: str | None) -> None:
    """Raise unless the owner holds the job; None allows any owner.

    Raises:
        LeaseLostError: it does not.
    """
    if owner is not None and job.lease_owner != owner:
        raise LeaseLostError(f"Another replica supervises {job.id} now.", owner=job.lease_owner)


def forget_ended(
    connection: Connection, kind: str, *, keep: int, before: datetime | None = None, limit: int = 1000
) -> int:
    """Delete ended jobs of a kind, with their histories, beyond the ``keep`` newest; return their number.

    With ``before`` only jobs that ended earlier are deleted. The ``keep`` newest stay even if the clock is ahead.
    """
    columns = JOBS.c
    newest = sa.select(columns.id).where(columns.kind == kind).order_by(columns.id.desc())
    last = connection.scalar(newest.offset(keep).limit(1))
    if last is None:
        return 0
    old = sa.select(columns.id).where(columns.kind == kind, columns.id <= last, columns.state.in_(_ENDED))
    # The query follows the index by id, or the one by end.
    old = old.order_by(columns.id) if before is None else old.where(columns.finished_at < before)
    ids = connection.scalars(old.limit(limit)).all()
    connection.execute(EVENTS.delete().where(EVENTS.c.resource == kind, EVENTS.c.id.in_(ids)))
    connection.execute(JOBS.delete().where(columns.id.in_(ids)))
    return len(ids)
