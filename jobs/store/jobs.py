"""Jobs, their states and their history."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from jobs.store.database import Database
from jobs.store.events import append_event, read_events
from jobs.store.job_rows import (
    JOB_RECORDS,
    append_move,
    check_owner,
    check_state,
    check_version,
    find_active,
    forget_ended,
)
from jobs.store.leases import count_busy
from jobs.store.lists import behind, complete_order, matches, order_by
from jobs.store.records import EVERY_JOB, Idempotency, Job, JobCount, JobFilter, SortOrder
from jobs.store.rows import key_columns
from jobs.store.short_lived import check_create, hold_create, release_create
from jobs.store.tables import JOBS
from model.errors import (
    IdempotencyKeyReusedError,
    JobChangedError,
    JobStateError,
)
from model.event import HistoryEvent, HistoryEventType, render_changes
from model.fault import FaultRecord
from model.job import FIRST_STATES, JobState, validate_move
from model.process import Driver

_CREATE_SECONDS: Final = 120.0
# Jobs without a subject: jobs in steps belong to a stream or a snapshot instead.
# With IS NULL, SQLite would scan all jobs without a subject by that index instead of using the one by state.
_HAS_NO_SUBJECT: Final = sa.func.coalesce(JOBS.c.subject, "") == ""


class Jobs:
    """Keeps jobs; every change but progress makes a new version and a line in the job's history."""

    _database: Database

    def begin_create(
        self, kind: str, idempotency: Idempotency, *, actor: str, seconds: float = _CREATE_SECONDS
    ) -> Job | None:
        """Take the key for one create before its work begins; None means: continue, to :meth:`insert`.

        Keys are per caller. If a create with the key has ended, its job is returned. A create that neither ends
        nor releases the key (:meth:`ShortLived.abandon_create`) within ``seconds`` counts as dead.

        Raises:
            IdempotencyKeyReusedError: the key was used with another fingerprint.
            IdempotencyInProgressError: another create with the key is under way.
        """
        with self._database.write_now(f"create {kind}") as (connection, now):
            job = _find_created(connection, kind, idempotency, actor, now)
            if job is not None:
                return job
            hold_create(connection, idempotency, actor, now + timedelta(seconds=seconds))
            return None

    def insert(
        self,
        job_id: str,
        kind: str,
        request: dict[str, Any],
        *,
        actor: str,
        idempotency: Idempotency | None = None,
        state: JobState = JobState.PENDING,
        options: Mapping[str, Any] | None = None,
        approval: dict[str, Any] | None = None,
        guard: Callable[[Sequence[Job]], None] | None = None,
    ) -> Job:
        """Store a new job; the same key with the same fingerprint returns the job of the first call.

        ``guard`` gets every active job of the kind, oldest first, and refuses the new job by raising. No other
        create of the kind runs between ``guard`` and the insert.

        Raises:
            IdempotencyKeyReusedError: the key was used with another fingerprint.
            IdempotencyInProgressError: another create with the key is under way.
            JobStateError: a job can't begin in ``state``.
        """
        if state not in FIRST_STATES:
            raise JobStateError(f"A new job can't have the state {state}.", wanted=state.value)
        chosen = dict(options or {})
        values: dict[str, Any] = {
            "id": job_id,
            "kind": kind,
            "state": state,
            "request": request,
            "created_by": actor,
            "progress": {},
            "epoch": 0,
            "version": 1,
            "topic": str(request.get("topic") or ""),
            "labels": chosen.get("labels", request.get("labels")) or {},
            "options": chosen,
            "approval": approval,
            "awaits_approval": _awaits(approval),
            **key_columns(idempotency, actor),
        }
        with self._database.write(f"create {kind}") as connection:
            if idempotency is not None:
                job = _find_created(connection, kind, idempotency, actor, self._database.now(connection))
                if job is not None:
                    return job
                release_create(connection, idempotency, actor)
            if guard is not None:
                guard(_active(connection, kind))
            now = datetime.now(UTC)
            news_at = now if _awaits(approval) else None
            made = JOB_RECORDS.insert(connection, **values, news_at=news_at, created_at=now)
            append_event(connection, kind, job_id, HistoryEventType.CREATED, now, actor=actor, what="created")
            return made

    def get(self, job_id: str) -> Job:
        """Return the job."""
        with self._database.read() as connection:
            return JOB_RECORDS.get(connection, job_id)

    def find_ends(self, job_ids: Collection[str]) -> dict[str, datetime | None]:
        """Return when each job ended, None for an active job; ids without a job are left out."""
        query = sa.select(JOBS.c.id, JOBS.c.finished_at).where(JOBS.c.id.in_(job_ids))
        with self._database.read() as connection:
            return {row.id: row.finished_at for row in connection.execute(query)}

    def list_jobs(
        self,
        where: JobFilter = EVERY_JOB,
        *,
        limit: int,
        order: Sequence[SortOrder] = (),
        after: Sequence[Any] | None = None,
    ) -> list[Job]:
        """Return up to ``limit`` jobs that match the filter; the default order is newest first.

        ``after`` has the last job's values of the page before (:func:`jobs.store.sort_key`): the list continues
        after them, whatever was created or ended meanwhile.

        Raises:
            RequestInvalidError: a label of the filter is invalid, or ``after`` does not fit the order.
        """
        complete = complete_order(order)
        query = sa.select(JOBS).where(*matches(where))
        if after is not None:
            query = query.where(behind(complete, after))
        with self._database.read() as connection:
            return JOB_RECORDS.find_all(connection, query.order_by(*order_by(complete)).limit(limit))

    def count_jobs(self, figures: Sequence[str] = (), *, of_kind: str = "") -> list[JobCount]:
        """Return the number of jobs by kind and state, with sums of ``figures`` of their progress.

        Jobs in steps are not counted. Only the kind ``of_kind`` has sums, other kinds have 0: an index alone
        counts the jobs that schedules make for years. A job without a figure counts as 0.
        """
        columns, first = JOBS.c, JOBS.alias("first")
        # Either all jobs of a kind have a subject, or none.
        subject = sa.select(first.c.subject).where(first.c.kind == columns.kind).order_by(first.c.id).limit(1)
        counts = sa.select(columns.state, columns.kind, sa.func.count()).group_by(columns.state, columns.kind)
        # PostgreSQL's INTEGER ends at 2^31 - 1; a large backfill publishes more messages.
        sums = [sa.func.sum(sa.cast(columns.progress[name].as_string(), sa.BigInteger)) for name in figures]
        of_states = sa.select(columns.state, *sums).where(columns.kind == of_kind).group_by(columns.state)
        with self._database.read() as connection:
            counted = connection.execute(counts.having(subject.scalar_subquery().is_(None))).all()
            summed = {(state, of_kind): values for state, *values in connection.execute(of_states)}
        return [
            JobCount(
                kind,
                JobState(state),
                jobs,
                {name: int(value or 0) for name, value in zip_longest(figures, summed.get((state, kind), ()))},
            )
            for state, kind, jobs in counted
        ]

    def find_last_failures(self) -> dict[str, datetime]:
        """Return when the last FAILED job of each kind ended; kinds in steps, or without one, are left out."""
        newest = sa.func.max(JOBS.c.finished_at, type_=JOBS.c.finished_at.type).label("newest")
        query = sa.select(JOBS.c.kind, newest).where(JOBS.c.state == JobState.FAILED, _HAS_NO_SUBJECT)
        with self._database.read() as connection:
            rows = connection.execute(query.group_by(JOBS.c.kind))
            return {row.kind: row.newest for row in rows if row.newest is not None}

    def forget_jobs(self, kind: str, *, keep: int, keep_for: timedelta) -> int:
        """Delete up to a thousand ended jobs of a kind, with their histories; return their number.

        The ``keep`` newest jobs stay, and those that ended within ``keep_for`` by the store's clock. The
        idempotency key of a deleted job is free again.
        """
        with self._database.write() as connection:
            before = self._database.now(connection) - keep_for
            return forget_ended(connection, kind, keep=keep, before=before)

    def list_active(self, kind: str | None = None) -> list[Job]:
        """Return the active jobs of a kind, or of all kinds except those in steps, oldest first."""
        with self._database.read() as connection:
            return _active(connection, kind)

    def list_events(self, job_id: str, *, after: int = 0) -> list[HistoryEvent]:
        """Return the job's history after line number ``after``, oldest first."""
        with self._database.read() as connection:
            return read_events(connection, JOB_RECORDS.get(connection, job_id).kind, job_id, after)

    def begin_attempt(self, job_id: str, *, owner: str | None = None) -> Job:
        """Give a PENDING job the next epoch, a fencing token: earlier attempts are out of date from now on.

        The job stays PENDING until its driver runs: if a service dies in between, the next one launches the job
        again.

        Raises:
            JobStateError: the job is not PENDING any more.
            LeaseLostError: an ``owner`` is given, and does not hold the job.
        """
        with self._database.write() as connection:
            job = JOB_RECORDS.get(connection, job_id, for_update=True)
            check_owner(job, owner)
            check_state(job, JobState.PENDING)
            changes = {"epoch": job.epoch + 1, "driver": None, "version": job.version + 1}
            return JOB_RECORDS.update(connection, job_id, **changes)

    def move(
        self,
        job_id: str,
        state: JobState,
        *,
        actor: str,
        why: str | None = None,
        error: FaultRecord | None = None,
        driver: Driver | None = None,
        expected_version: int | None = None,
        expected_epoch: int | None = None,
        expected_state: JobState | None = None,
        owner: str | None = None,
        options: Mapping[str, Any] | None = None,
        memory: Mapping[str, Any] | None = None,
        guard: Callable[[Sequence[Job]], None] | None = None,
        max_running: int | None = None,
        awaits_person: bool = False,
    ) -> Job:
        """Move the job to ``state`` and write it into the history, in one transaction.

        ``error`` replaces the job's error. Without ``driver`` the job keeps its driver, except in PENDING, which
        has none. ``options`` are merged into the job's, and so is ``memory``. A job that a person starts again
        gets as many automatic restarts as a new one. ``guard`` is as for :meth:`insert`, called after all other
        checks. With ``max_running`` the job takes one of these places, which otherwise :meth:`Leases.claim` gives
        out. An end is news, and so is a move with ``awaits_person``: the job then waits for a person's decision.

        Raises:
            JobStateError: the job's current state does not allow the move, or is not ``expected_state``.
            JobChangedError: the job is no longer at ``expected_version`` or in attempt ``expected_epoch``, or
                all places are taken.
            LeaseLostError: an ``owner`` is given, and does not hold the job.
        """
        now = datetime.now(UTC)
        assert guard is None or max_running is None, "one lock at a time, so that nobody waits in a circle"
        lock = "create" if guard is not None else "claim" if max_running is not None else None
        with self._database.write(lock and f"{lock} {self.get(job_id).kind}") as connection:
            job = JOB_RECORDS.get(connection, job_id, for_update=True)
            check_version(job, expected_version, expected_epoch)
            check_owner(job, owner)
            check_state(job, expected_state)
            validate_move(job_id, job.state, state)
            if guard is not None:
                guard(_active(connection, job.kind))
            if max_running is not None and count_busy(connection, job.kind, self._database.now(connection)) >= (
                max_running
            ):
                raise JobChangedError(f"All {max_running} places are taken.", version=job.version)
            moved = JOB_RECORDS.update(
                connection,
                job_id,
                version=job.version + 1,
                error=error,
                **({} if memory is None else {"memory": {**job.memory, **memory}}),
                **({} if driver is None else {"driver": driver}) | _state_changes(job, state, now),
                **_news_changes(job, state, now, awaits_person=awaits_person),
                **_option_changes(job, options),
            )
            append_move(connection, job, state, now, actor=actor, why=why, options=options)
            return moved

    def change(
        self,
        job_id: str,
        *,
        actor: str,
        what: str,
        why: str | None = None,
        options: Mapping[str, Any] | None = None,
        findings: dict[str, Any] | None = None,
        approval: dict[str, Any] | None = None,
        expected_version: int | None = None,
    ) -> Job:
        """Change a job's data beside its state, and write it into the history, in one transaction.

        ``options`` are merged into the job's; the value None removes one. The other arguments replace their
        fields.

        Raises:
            JobChangedError: the job is no longer at ``expected_version``.
        """
        now = datetime.now(UTC)
        with self._database.write() as connection:
            job = JOB_RECORDS.get(connection, job_id, for_update=True)
            check_version(job, expected_version, None)
            changes: dict[str, Any] = {"version": job.version + 1, **_option_changes(job, options)}
            event = HistoryEventType.CHANGED
            if findings is not None:
                event, changes["findings"] = HistoryEventType.FOUND, findings
            if approval is not None:
                event = HistoryEventType.APPROVED
                changes |= {"approval": approval, "awaits_approval": _awaits(approval)}
                if not job.state.is_final and not _awaits(approval):
                    changes["news_at"] = None
            changed = JOB_RECORDS.update(connection, job_id, **changes)
            # Show changes of the request's options only, not of options that the service adds.
            asked = {name: value for name, value in (options or {}).items() if name in job.request}
            before = {name: job.options.get(name, job.request[name]) for name in asked}
            fields: Any = {"options": sorted(options or ()) or None, "changes": render_changes(before, asked)}
            append_event(connection, job.kind, job_id, event, now, actor=actor, what=what, why=why, **fields)
            return changed

    def forget_driver(self, job_id: str, *, actor: str, why: str, expected_epoch: int) -> Job:
        """Clear the driver of a PAUSED job, which has ended: a resume launches another one.

        Raises:
            JobChangedError: the job is no longer PAUSED in attempt ``expected_epoch``.
        """
        with self._database.write() as connection:
            job = JOB_RECORDS.get(connection, job_id, for_update=True)
            if (job.state, job.epoch) != (JobState.PAUSED, expected_epoch):
                raise JobChangedError(f"{job_id} is {job.state} in attempt {job.epoch}.", version=job.version)
            changed = JOB_RECORDS.update(connection, job_id, driver=None, version=job.version + 1)
            now, ended = datetime.now(UTC), HistoryEventType.DRIVER_ENDED
            append_event(connection, job.kind, job_id, ended, now, actor=actor, what="driver ended", why=why)
            return changed

    def set_progress(self, job_id: str, progress: Mapping[str, Any]) -> None:
        """Store the job's figures, without a new version or a line in the history."""
        with self._database.write() as connection:
            connection.execute(JOBS.update().where(JOBS.c.id == job_id).values(progress=dict(progress)))


def _state_changes(job: Job, state: JobState, now: datetime) -> dict[str, Any]:
    changes: dict[str, Any] = {"state": state, "finished_at": now if state.is_final else None}
    if state is JobState.RUNNING and job.started_at is None:
        changes["started_at"] = now
    if state is JobState.PENDING or state.is_final:
        # The supervisor has nothing more to do; any supervisor may claim a PENDING job.
        changes |= {"lease_owner": None, "lease_until": None, "not_before": None}
    if state is JobState.PENDING:
        changes |= {"driver": None, "findings": None, "verify_after": None}
        if job.state is not JobState.RUNNING:
            changes["restarts"] = 0
    if state.is_final and job.epoch > 0:
        changes["verify_after"] = now
    return changes


def _news_changes(job: Job, state: JobState, now: datetime, *, awaits_person: bool) -> dict[str, Any]:
    """Return the columns of the job's news; a pause by a person leaves them as they are."""
    is_news = state.is_final or awaits_person or (state is JobState.PENDING and _awaits(job.approval))
    if state is JobState.PAUSED and not is_news:
        return {}
    untold: dict[str, Any] = {
        "notified_at": None,
        "notify_after": None,
        "notify_attempts": 0,
    }
    return {"news_at": now if is_news else None, **untold}


def _option_changes(job: Job, options: Mapping[str, Any] | None) -> dict[str, Any]:
    if options is None:
        return {}
    merged = {name: value for name, value in {**job.options, **options}.items() if value is not None}
    return {"options": merged, "labels": merged.get("labels", job.request.get("labels")) or {}}


def _awaits(approval: Mapping[str, Any] | None) -> bool:
    return approval is not None and bool(approval.get("required")) and not approval.get("by")


def _find_created(
    connection: Connection, kind: str, idempotency: Idempotency, actor: str, now: datetime
) -> Job | None:
    """Return the job that the key made before; the caller must hold the lock on creates of the kind."""
    made = JOB_RECORDS.find_made(connection, idempotency, actor=actor, detail="job_id")
    if made is not None:
        if made.kind != kind:
            raise IdempotencyKeyReusedError(job_id=made.id)
        return made
    check_create(connection, idempotency, actor, now)
    return None


def _active(connection: Connection, kind: str | None) -> list[Job]:
    return find_active(connection, _HAS_NO_SUBJECT if kind is None else JOBS.c.kind == kind)
