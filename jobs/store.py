"""Keeps jobs, their states and their history, in SQLite; every change of state is one transaction."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from jobs.progress import Progress
from model.errors import IdempotencyKeyReusedError, JobChangedError, JobNotFoundError
from model.job import FINAL_STATES, JobState, validate_move
from model.process import Process

_BUSY_SECONDS: Final = 15.0
_METADATA: Final = sa.MetaData()

_JOBS: Final = sa.Table(
    "jobs",
    _METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("request", sa.Text, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
    sa.Column("created_at", sa.Text, nullable=False),
    sa.Column("started_at", sa.Text),
    sa.Column("finished_at", sa.Text),
    sa.Column("progress", sa.Text, nullable=False),
    sa.Column("error", sa.Text),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("driver", sa.Text),
    sa.Column("idempotency_key", sa.Text, unique=True),
    sa.Column("fingerprint", sa.Text),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Index("jobs_by_state", "kind", "state"),
)

_EVENTS: Final = sa.Table(
    "events",
    _METADATA,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.id"), nullable=False, index=True),
    sa.Column("at", sa.Text, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("what", sa.Text, nullable=False),
    sa.Column("why", sa.Text),
)


@dataclass(frozen=True, slots=True)
class JobError:
    """Why a job failed: a stable code and a sentence."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Job:
    """One job as the store has it.

    ``epoch`` counts its attempts, ``version`` every change but progress; ``request`` is what was asked for, in
    the words of its kind.
    """

    id: str
    kind: str
    state: JobState
    request: dict[str, Any]
    created_by: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    progress: Progress
    error: JobError | None
    epoch: int
    driver: Process | None
    version: int


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A caller's key for a create, and a digest of what was asked with it."""

    key: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a job's history."""

    number: int
    job_id: str
    at: datetime
    actor: str
    what: str
    why: str | None


class JobStore:
    """Jobs and their history in one SQLite file, for several threads and processes of one machine.

    Write-ahead logging lets readers go on while one writes; a writer waits up to 15 s for its turn.

    Raises:
        JobNotFoundError: any call that names a job that is not there.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._engine = sa.create_engine(f"sqlite:///{path}", connect_args={"timeout": _BUSY_SECONDS})
        sa.event.listen(self._engine, "connect", _on_connect)
        sa.event.listen(self._engine, "begin", _on_begin)
        with self._write() as connection:
            _METADATA.create_all(connection)

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def insert(
        self,
        job_id: str,
        kind: str,
        request: dict[str, Any],
        *,
        actor: str,
        idempotency: Idempotency | None = None,
    ) -> Job:
        """Keep a new job, PENDING; the same key with the same fingerprint gives back the job made before.

        Raises:
            IdempotencyKeyReusedError: the key came before with another fingerprint.
        """
        now = datetime.now(UTC)
        key, fingerprint = (None, None) if idempotency is None else (idempotency.key, idempotency.fingerprint)
        with self._write() as connection:
            if key is not None:
                row = connection.execute(sa.select(_JOBS).where(_JOBS.c.idempotency_key == key)).first()
                if row is not None and (row.kind, row.fingerprint) != (kind, fingerprint):
                    raise IdempotencyKeyReusedError(job_id=row.id)
                if row is not None:
                    return _job(row)
            connection.execute(
                _JOBS.insert().values(
                    id=job_id,
                    kind=kind,
                    state=JobState.PENDING.value,
                    request=json.dumps(request),
                    created_by=actor,
                    created_at=now.isoformat(),
                    progress=json.dumps(Progress().to_json()),
                    epoch=0,
                    idempotency_key=key,
                    fingerprint=fingerprint,
                    version=1,
                )
            )
            _append_event(connection, job_id, actor=actor, what="created", why=None, at=now)
            return _get(connection, job_id)

    def get(self, job_id: str) -> Job:
        """Return the job."""
        with self._read() as connection:
            return _get(connection, job_id)

    def list_jobs(self, kind: str, *, limit: int, before: str | None = None) -> list[Job]:
        """Return up to ``limit`` jobs made before the job with id ``before``, newest first."""
        query = sa.select(_JOBS).where(_JOBS.c.kind == kind).order_by(_JOBS.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(_JOBS.c.id < before)
        with self._read() as connection:
            return [_job(row) for row in connection.execute(query)]

    def list_active(self, kind: str) -> list[Job]:
        """Return every job that is not at its end, oldest first."""
        final = [state.value for state in FINAL_STATES]
        query = sa.select(_JOBS).where(_JOBS.c.kind == kind, _JOBS.c.state.not_in(final)).order_by(_JOBS.c.id)
        with self._read() as connection:
            return [_job(row) for row in connection.execute(query)]

    def list_events(self, job_id: str) -> list[Event]:
        """Return the job's history, oldest first."""
        query = sa.select(_EVENTS).where(_EVENTS.c.job_id == job_id).order_by(_EVENTS.c.number)
        with self._read() as connection:
            _get(connection, job_id)
            return [
                Event(row.number, row.job_id, datetime.fromisoformat(row.at), row.actor, row.what, row.why)
                for row in connection.execute(query)
            ]

    def begin_attempt(self, job_id: str) -> Job:
        """Give a PENDING job the next epoch: every attempt begun before is out of date from now on.

        It stays PENDING until its driver runs, so that a service that dies in between leaves a job that the
        next one simply launches again.

        Raises:
            JobStateError: it is not PENDING any more.
        """
        with self._write() as connection:
            job = _get(connection, job_id)
            validate_move(job_id, job.state, JobState.RUNNING)
            connection.execute(
                _JOBS.update()
                .where(_JOBS.c.id == job_id)
                .values(epoch=job.epoch + 1, driver=None, version=job.version + 1)
            )
            return _get(connection, job_id)

    def move(
        self,
        job_id: str,
        state: JobState,
        *,
        actor: str,
        why: str | None = None,
        error: JobError | None = None,
        driver: Process | None = None,
        expected_version: int | None = None,
    ) -> Job:
        """Move the job to ``state`` and write it into the history, in one transaction.

        ``error`` replaces what the job had; ``driver`` is kept when none is given.

        Raises:
            JobStateError: the job's state, as it is now, does not allow it.
            JobChangedError: the job is no longer at ``expected_version``.
        """
        now = datetime.now(UTC)
        with self._write() as connection:
            job = _get(connection, job_id)
            if expected_version not in (None, job.version):
                raise JobChangedError(
                    f"{job_id} is at version {job.version}, not {expected_version}.", version=job.version
                )
            validate_move(job_id, job.state, state)
            changes: dict[str, Any] = {
                "state": state.value,
                "version": job.version + 1,
                "error": None if error is None else json.dumps(asdict(error)),
                "finished_at": now.isoformat() if state.is_final else None,
            }
            if state is JobState.RUNNING and job.started_at is None:
                changes["started_at"] = now.isoformat()
            if driver is not None:
                changes["driver"] = json.dumps(asdict(driver))
            connection.execute(_JOBS.update().where(_JOBS.c.id == job_id).values(**changes))
            _append_event(connection, job_id, actor=actor, what=f"{job.state} -> {state}", why=why, at=now)
            return _get(connection, job_id)

    def set_progress(self, job_id: str, progress: Progress) -> None:
        """Keep the job's figures; no new version, nothing in the history."""
        with self._write() as connection:
            connection.execute(
                _JOBS.update().where(_JOBS.c.id == job_id).values(progress=json.dumps(progress.to_json()))
            )

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        with self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with self._engine.connect().execution_options(refeed_write=True) as connection, connection.begin():
            yield connection


def _on_connect(connection: Any, _record: Any) -> None:
    # The driver must not open transactions by itself: BEGIN IMMEDIATE is ours to say.
    connection.isolation_level = None
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")


def _on_begin(connection: Connection) -> None:
    # A writer takes its lock at the start: one that upgraded later could fail with "database is locked".
    writes = connection.get_execution_options().get("refeed_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _get(connection: Connection, job_id: str) -> Job:
    row = connection.execute(sa.select(_JOBS).where(_JOBS.c.id == job_id)).first()
    if row is None:
        raise JobNotFoundError(f"There is no job {job_id[:80]}.", id=job_id[:80])
    return _job(row)


def _append_event(
    connection: Connection, job_id: str, *, actor: str, what: str, why: str | None, at: datetime
) -> None:
    connection.execute(_EVENTS.insert().values(job_id=job_id, at=at.isoformat(), actor=actor, what=what, why=why))


def _job(row: Row[Any]) -> Job:
    return Job(
        id=row.id,
        kind=row.kind,
        state=JobState(row.state),
        request=json.loads(row.request),
        created_by=row.created_by,
        created_at=datetime.fromisoformat(row.created_at),
        started_at=_time(row.started_at),
        finished_at=_time(row.finished_at),
        progress=Progress.from_json(json.loads(row.progress)),
        error=JobError(**json.loads(row.error)) if row.error else None,
        epoch=row.epoch,
        driver=Process(**json.loads(row.driver)) if row.driver else None,
        version=row.version,
    )


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
