"""Leases: which replica of the service supervises which job."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from jobs.store.database import Database
from jobs.store.job_rows import (
    IS_ACTIVE,
    JOB_RECORDS,
    append_move,
    check_owner,
    check_state,
    check_version,
    find_active,
)
from jobs.store.records import Job
from jobs.store.tables import JOBS
from jobs.store.waits import has_passed
from model.job import ACTIVE_STATES, JobState

# The states are listed, so that the index by state is used: most jobs in a store have ended.
_STARTED: Final = sorted(state.value for state in ACTIVE_STATES - {JobState.PENDING})
# The states that take one of the places of REFEED_MAX_RUNNING; a paused driver publishes nothing.
_BUSY: Final = (JobState.RUNNING.value, JobState.CANCELLING.value)


class Leases:
    """Gives each active job to one owner at a time, by a lease that must be renewed.

    The owner launches and follows the job. A lease is no fence: an owner that was suspended may wake up after its
    lease has expired. So each change of a job names its owner, and the epoch is the driver's fencing token.
    """

    _database: Database

    def claim(self, kind: str, owner: str, *, limit: int, lease_seconds: float) -> list[Job]:
        """Take free PENDING jobs, so that at most ``limit`` jobs run or start over all owners.

        Callers take turns: the caller with the fewest running or starting jobs comes first, then the one with the
        oldest next job; each caller's jobs are taken oldest first. A job that waits for an approval, or for the
        pause before a restart, is skipped.
        """
        # The lock keeps two replicas from filling the same place; rows that a cancel has locked are skipped.
        with self._database.write_now(f"claim {kind}") as (connection, now):
            busy = _busy_by_caller(connection, kind, now)
            room = limit - sum(busy.values())
            if room <= 0:
                return []
            free = _claimable(kind, now)
            query = sa.select(JOBS.c.id, JOBS.c.created_by).where(*free)
            # Sorted in Python: with ORDER BY, SQLite would scan all jobs, ended ones too.
            found = sorted((row.id, row.created_by) for row in connection.execute(query))
            chosen = JOBS.c.id.in_(_take_turns(found, busy, room))
            # The conditions are checked again: a job may have been cancelled in between.
            return _give(connection, [chosen, *free], owner, now + timedelta(seconds=lease_seconds))

    def has_place(self, kind: str, limit: int) -> bool:
        """Whether fewer than ``limit`` jobs run or start now, over all owners."""
        with self._database.read() as connection:
            return count_busy(connection, kind, self._database.now(connection)) < limit

    def take_over(self, kind: str, owner: str, *, lease_seconds: float) -> list[Job]:
        """Take every started, active job whose lease is free or has expired."""
        with self._database.write_now() as (connection, now):
            started = JOBS.c.state.in_(_STARTED)
            free = [JOBS.c.kind == kind, started, _is_free(now)]
            return _give(connection, free, owner, now + timedelta(seconds=lease_seconds))

    def renew(self, owner: str, lease_seconds: float) -> None:
        """Extend the leases of ``owner`` by ``lease_seconds``, also expired ones that no other owner took."""
        with self._database.write() as connection:
            until = self._database.now(connection) + timedelta(seconds=lease_seconds)
            held = sa.select(JOBS.c.id).where(JOBS.c.lease_owner == owner).with_for_update(skip_locked=True)
            # A row that another transaction has locked is renewed the next time, long before it expires.
            ids = list(connection.scalars(held))
            if not ids:
                return
            connection.execute(JOBS.update().where(JOBS.c.id.in_(ids)).values(lease_until=until))

    def held(self, kind: str, owner: str) -> list[Job]:
        """Return the active jobs that ``owner`` holds, oldest first."""
        with self._database.read() as connection:
            return find_active(connection, JOBS.c.kind == kind, JOBS.c.lease_owner == owner)

    def release_all(self, owner: str) -> None:
        """Release every job of an owner that ends or is known to be dead."""
        held = JOBS.update().where(JOBS.c.lease_owner == owner)
        with self._database.write() as connection:
            connection.execute(held.values(lease_owner=None, lease_until=None))

    def owners(self, kind: str) -> list[str]:
        """Return all owners of active jobs."""
        query = (
            sa.select(JOBS.c.lease_owner)
            .where(JOBS.c.kind == kind, IS_ACTIVE, JOBS.c.lease_owner.is_not(None))
            .distinct()
        )
        with self._database.read() as connection:
            return list(connection.scalars(query))

    def restart(
        self, job_id: str, owner: str, *, actor: str, why: str, epoch: int, wait_seconds: float, counts: bool
    ) -> Job:
        """Make a RUNNING job whose driver is gone PENDING; any replica may launch it after ``wait_seconds``.

        ``counts`` is whether this counts as one of the job's automatic restarts.

        Raises:
            JobStateError: the job is not RUNNING any more.
            JobChangedError: the job is in another attempt than ``epoch``.
            LeaseLostError: ``owner`` does not hold the job.
        """
        with self._database.write() as connection:
            job = JOB_RECORDS.get(connection, job_id, for_update=True)
            check_owner(job, owner)
            check_version(job, None, epoch)
            check_state(job, JobState.RUNNING)
            now = datetime.now(UTC)
            moved = JOB_RECORDS.update(
                connection,
                job_id,
                state=JobState.PENDING,
                restarts=job.restarts + counts,
                driver=None,
                not_before=self._database.now(connection) + timedelta(seconds=wait_seconds),
                lease_owner=None,
                lease_until=None,
                version=job.version + 1,
            )
            append_move(connection, job, JobState.PENDING, now, actor=actor, why=why)
            return moved


def count_busy(connection: Connection, kind: str, now: datetime) -> int:
    """Return the number of running jobs and of held, thus starting, jobs."""
    return sum(_busy_by_caller(connection, kind, now).values())


def _is_free(now: datetime) -> ColumnElement[bool]:
    return sa.or_(JOBS.c.lease_owner.is_(None), has_passed(JOBS.c.lease_until, now))


def _claimable(kind: str, now: datetime) -> list[ColumnElement[bool]]:
    return [
        JOBS.c.kind == kind,
        JOBS.c.state == JobState.PENDING.value,
        _is_free(now),
        JOBS.c.awaits_approval.is_(False),
        sa.or_(JOBS.c.not_before.is_(None), has_passed(JOBS.c.not_before, now)),
    ]


def _busy_by_caller(connection: Connection, kind: str, now: datetime) -> dict[str, int]:
    """Return the number of running and of held, thus starting, jobs by caller."""
    starting = sa.not_(_is_free(now))
    query = sa.select(JOBS.c.created_by).where(
        JOBS.c.kind == kind,
        JOBS.c.state.in_([*_BUSY, JobState.PENDING.value]),
        sa.or_(JOBS.c.state.in_(_BUSY), starting),
    )
    return Counter(connection.scalars(query))


def _take_turns(waiting: list[tuple[str, str]], busy: dict[str, int], room: int) -> list[str]:
    """Return ids in the order of claiming: the caller with the fewest running or starting jobs is next."""
    queues: dict[str, list[str]] = {}
    for job_id, caller in waiting:
        queues.setdefault(caller, []).append(job_id)
    taken: list[str] = []
    on_their_way = dict(busy)
    while queues and len(taken) < room:
        caller = min(queues, key=lambda name: (on_their_way.get(name, 0), queues[name][0]))
        taken.append(queues[caller].pop(0))
        on_their_way[caller] = on_their_way.get(caller, 0) + 1
        if not queues[caller]:
            del queues[caller]
    return taken


def _give(connection: Connection, free: list[ColumnElement[bool]], owner: str, until: datetime) -> list[Job]:
    """Lease the jobs that meet the conditions to the owner, oldest first; skip rows that others have locked."""
    query = sa.select(JOBS.c.id).where(*free).with_for_update(skip_locked=True)
    ids = list(connection.scalars(query))
    if not ids:
        return []
    connection.execute(JOBS.update().where(JOBS.c.id.in_(ids)).values(lease_owner=owner, lease_until=until))
    return JOB_RECORDS.find_all(connection, sa.select(JOBS).where(JOBS.c.id.in_(ids)).order_by(JOBS.c.id))
