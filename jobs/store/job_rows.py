"""Jobs' rows, and the lines of their histories."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from sqlalchemy.engine import Connection

from jobs.store.events import JobEventType
from jobs.store.records import Job
from jobs.store.rows import Records
from jobs.store.tables import EVENTS, JOBS
from model.errors import JobNotFoundError
from model.job import JobState

JOB_RECORDS: Final = Records(JOBS, Job, "job", JobNotFoundError)


def append_event(
    connection: Connection,
    job_id: str,
    kind: JobEventType,
    at: datetime,
    *,
    actor: str,
    what: str,
    why: str | None = None,
    **fields: Any,
) -> None:
    """Add a line to a job's history; the job's row must be held, so that numbers grow as lines become visible."""
    written = {"job_id": job_id, "at": at, "actor": actor, "what": what, "why": why, "type": kind}
    given = {name: value for name, value in fields.items() if value}
    connection.execute(EVENTS.insert().values(**written, fields=given))


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
    fields = {"from": job.state, "to": state, "options": sorted(options or ())}
    what = f"{job.state} -> {state}"
    append_event(connection, job.id, JobEventType.MOVED, at, actor=actor, what=what, why=why, **fields)
