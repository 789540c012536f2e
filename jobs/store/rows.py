"""From rows to what callers see, and what several tables' statements share."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from jobs.store.events import JobEventType
from jobs.store.records import Idempotency, Job, JobError
from jobs.store.tables import EVENTS, JOBS
from model.errors import JobNotFoundError
from model.job import JobState
from model.process import Driver, parse_driver


def get_job(connection: Connection, job_id: str, *, for_update: bool = False) -> Job:
    """Return the job; ``for_update`` keeps others from changing it until the transaction ends.

    Raises:
        JobNotFoundError: there is none.
    """
    query = sa.select(JOBS).where(JOBS.c.id == job_id)
    row = connection.execute(query.with_for_update() if for_update else query).first()
    if row is None:
        raise JobNotFoundError(f"There is no job {job_id[:80]}.", id=job_id[:80])
    return job_of(row)


def update_job(connection: Connection, job_id: str, **changes: Any) -> None:
    """Change some of a job's columns."""
    connection.execute(JOBS.update().where(JOBS.c.id == job_id).values(**changes))


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
    written = {"job_id": job_id, "at": at, "actor": actor, "what": what, "why": why, "type": kind.value}
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
    fields: dict[str, Any] = {"from": job.state.value, "to": state.value, "options": sorted(options or ())}
    what = f"{job.state} -> {state}"
    append_event(connection, job.id, JobEventType.MOVED, at, actor=actor, what=what, why=why, **fields)


def job_of(row: Row[Any]) -> Job:
    """Return the job that a whole row of ``jobs`` is."""
    return Job(
        id=row.id,
        kind=row.kind,
        state=JobState(row.state),
        request=row.request,
        created_by=row.created_by,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        progress=row.progress,
        error=None if row.error is None else JobError(**row.error),
        epoch=row.epoch,
        driver=None if row.driver is None else parse_driver(row.driver),
        version=row.version,
        options=row.options,
        restarts=row.restarts,
        findings=row.findings,
        approval=row.approval,
        plan_id=row.plan_id,
        news_at=row.news_at,
        notified_at=row.notified_at,
        lease_owner=row.lease_owner,
    )


def document_of(value: JobError | Driver | None) -> dict[str, Any] | None:
    """Return what a column keeps of an error or a driver."""
    return None if value is None else asdict(value)


def scoped_key(idempotency: Idempotency, actor: str) -> str:
    """Return what a column keeps of a caller's key; another caller's same key is another one."""
    # A key comes in a header, so it has no line break: two callers' names and keys can't give the same text.
    return f"{actor}\n{idempotency.key}"
