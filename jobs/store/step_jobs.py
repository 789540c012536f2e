"""Jobs that are carried out in steps: each step is written down before it begins."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from jobs.store.database import Database
from jobs.store.events import append_event
from jobs.store.job_rows import JOB_RECORDS, append_move, find_active, forget_ended
from jobs.store.records import Idempotency, Job
from jobs.store.rows import key_columns
from jobs.store.stream_rows import get_record
from jobs.store.tables import JOBS, STREAM_SNAPSHOTS
from model.errors import JobChangedError, LeaseLostError
from model.event import HistoryEventType
from model.fault import FaultRecord
from model.job import JobState, new_job_id, validate_move

_NOTHING: Final[Mapping[str, Any]] = {}
# The kinds of jobs that agents carry out in steps.
SNAPSHOT: Final = "snapshot"
DELETION: Final = "deletion"
RESTORE: Final = "restore"
UPDATE: Final = "update"
_STREAM: Final = "stream/"
_SNAPSHOT: Final = "snapshot/"


class StepJobs:
    """Keeps jobs with steps; every call gives the job as its caller saw it, so that a late one changes nothing.

    The subject's row is locked before the job's, everywhere: another order could deadlock.
    """

    _database: Database

    def list_step_jobs(self, kinds: Collection[str]) -> list[Job]:
        """Return every job of the kinds that has not ended, oldest first."""
        with self._database.read() as connection:
            return find_active(connection, JOBS.c.kind.in_(sorted(kinds)))

    def begin_step(
        self,
        seen: Job,
        step: str,
        *,
        owner: str | None,
        why: str | None = None,
        memory: Mapping[str, Any] = _NOTHING,
        entered: Callable[[Job], None] = lambda _: None,
        actor: str = "agent",
    ) -> Job:
        """Write down that a job begins ``step``, or begins it once more, and what later steps are to know.

        ``owner`` is the agent that carries it out; None is anybody. What ``entered`` writes to this store is kept
        with it, or not at all.

        Raises:
            JobChangedError: the job has changed since it was ``seen``.
            LeaseLostError: another agent holds the stream that the job is about.
        """
        with self._database.write_now() as (connection, now):
            job = _lock(connection, seen, owner, now)
            attempt = job.attempt + 1 if job.step == step and job.state is not JobState.PENDING else 1
            if job.state is JobState.PENDING:
                append_move(connection, job, JobState.RUNNING, now, actor=actor, why=None)
            begun = JOB_RECORDS.update(
                connection,
                job.id,
                state=JobState.RUNNING,
                started_at=job.started_at or now,
                step=step,
                step_began_at=now,
                attempt=attempt,
                memory={**job.memory, **memory},
                version=job.version + 1,
            )
            what = f"began {step}" if attempt == 1 else f"began {step} again"
            event = HistoryEventType.STEP
            fields: dict[str, Any] = {"why": why, "step": step, "attempt": attempt}
            append_event(connection, job.kind, job.id, event, now, actor=actor, what=what, **fields)
            entered(begun)
            return begun

    def note_step(self, seen: Job, memory: Mapping[str, Any], *, owner: str | None = None) -> Job:
        """Keep in the job's memory what its step has done, so that it is not begun again from the start.

        Raises:
            JobChangedError: the job has changed since it was ``seen``.
            LeaseLostError: another agent than ``owner`` holds the stream that the job is about.
        """
        with self._database.write() as connection:
            job = _lock(connection, seen, owner, self._database.now(connection))
            changed = {"memory": {**job.memory, **memory}, "version": job.version + 1}
            return JOB_RECORDS.update(connection, job.id, **changed)

    def end_step_job(
        self,
        seen: Job,
        state: JobState,
        *,
        owner: str | None,
        error: FaultRecord | None = None,
        ended: Callable[[Job], None] = lambda _: None,
        keep: int | None = None,
        memory: Mapping[str, Any] = _NOTHING,
    ) -> Job:
        """End a job; what ``ended`` writes to this store is kept with it, or not at all.

        Of the jobs of its kind that ended, the ``keep`` newest stay.

        Raises:
            JobChangedError: the job has changed since it was ``seen``.
            LeaseLostError: another agent holds the stream that the job is about.
        """
        with self._database.write_now() as (connection, now):
            job = _lock(connection, seen, owner, now)
            done = end_job(connection, job, state, now, error=error, memory={**job.memory, **memory})
            ended(done)
            if keep is not None:
                forget_ended(connection, job.kind, keep=keep)
            return done


def begin_job(
    connection: Connection,
    now: datetime,
    *,
    kind: str,
    prefix: str,
    subject: str,
    step: str,
    request: Mapping[str, Any],
    actor: str,
    idempotency: Idempotency | None = None,
    labels: Mapping[str, str] = _NOTHING,
) -> Job:
    """Have a job carried out, within what its caller changes; its first step is ``step``."""
    made = JOB_RECORDS.insert(
        connection,
        id=new_job_id(prefix),
        kind=kind,
        state=JobState.PENDING,
        subject=subject,
        step=step,
        request=dict(request),
        labels=dict(labels),
        created_by=actor,
        created_at=now,
        progress={},
        epoch=0,
        version=1,
        **key_columns(of_kind(idempotency, kind), actor),
    )
    append_event(connection, kind, made.id, HistoryEventType.CREATED, now, actor=actor, what="created")
    return made


def of_kind(idempotency: Idempotency | None, kind: str) -> Idempotency | None:
    """Return the key as one of a kind's own: the same key may have made a job of another kind."""
    # A key comes in a header, so it has no line break.
    return idempotency and replace(idempotency, key=f"{idempotency.key}\n{kind}")


def stream_subject(stream: str) -> str:
    """Return the subject of a job that is about a stream."""
    return _STREAM + stream


def snapshot_subject(snapshot_id: str) -> str:
    """Return the subject of a job that is about a snapshot."""
    return _SNAPSHOT + snapshot_id


def find_jobs(connection: Connection, kind: str, subject: str) -> list[Job]:
    """Return all jobs of a kind about a subject, newest first."""
    query = sa.select(JOBS).where(JOBS.c.subject == subject, JOBS.c.kind == kind)
    return JOB_RECORDS.find_all(connection, query.order_by(JOBS.c.id.desc()))


def find_active_jobs(connection: Connection, kind: str, subject: str | None = None) -> list[Job]:
    """Return all jobs of a kind that have not ended, or those about a subject, oldest first."""
    about = () if subject is None else (JOBS.c.subject == subject,)
    return find_active(connection, *about, JOBS.c.kind == kind)


def fail_job(connection: Connection, job_id: str, error: FaultRecord, now: datetime) -> Job:
    """Make a job FAILED, within what its caller changes."""
    # Read once more, held: a step may have noted something meanwhile.
    job = JOB_RECORDS.get(connection, job_id, for_update=True)
    return end_job(connection, job, JobState.FAILED, now, error=error, memory=job.memory)


def _lock(connection: Connection, seen: Job, owner: str | None, now: datetime) -> Job:
    """Lock the job's subject, then the job, and return it where nothing has changed since it was ``seen``."""
    subject = seen.subject or ""
    if subject.startswith(_STREAM):
        record = get_record(connection, subject.removeprefix(_STREAM), now, for_update=True)
        if owner not in (None, record.agent):
            raise LeaseLostError(f"Another agent holds {record.name} now.", owner=record.agent)
    elif subject.startswith(_SNAPSHOT):
        columns = STREAM_SNAPSHOTS.c
        row = sa.select(columns.id).where(columns.id == subject.removeprefix(_SNAPSHOT))
        connection.execute(row.with_for_update())
    return _get_seen(connection, seen)


def _get_seen(connection: Connection, seen: Job) -> Job:
    job = JOB_RECORDS.get(connection, seen.id, for_update=True)
    if job.state.is_final or job.version != seen.version:
        message = f"{job.id} is {job.state} at attempt {job.attempt} of {job.step}."
        raise JobChangedError(message, version=job.version)
    return job


def end_job(
    connection: Connection,
    job: Job,
    state: JobState,
    now: datetime,
    *,
    error: FaultRecord | None,
    memory: dict[str, Any],
    actor: str = "agent",
) -> Job:
    """End a job that its caller holds, within what its caller changes."""
    validate_move(job.id, job.state, state)
    why = None if error is None else str(error)
    append_move(connection, job, state, now, actor=actor, why=why)
    changes: dict[str, Any] = {"state": state, "finished_at": now, "error": error, "memory": memory}
    return JOB_RECORDS.update(connection, job.id, **changes, version=job.version + 1)
