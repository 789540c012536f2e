"""What is still to be done for jobs at their end: telling somebody, and proving what arrived."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from jobs.store.database import Database
from jobs.store.records import Job
from jobs.store.rows import append_event, get_job, job_of, update_job
from jobs.store.tables import JOBS

# What could not be told within a day is not told any more.
_TELL_SECONDS: Final = 86_400
_FIRST_WAIT_SECONDS: Final = 10.0
_LONGEST_WAIT_SECONDS: Final = 3600.0


class Outbox:
    """Hands each ended job to one replica at a time, until what has to be done for it is done."""

    _database: Database

    def list_unnotified(self, kind: str, limit: int, *, hold_seconds: float = 60.0) -> list[Job]:
        """Return jobs whose end nobody was told of, oldest end first, and keep others from them for a while."""
        with self._database.write() as connection:
            now = self._database.now(connection)
            conditions = [
                JOBS.c.notified_at.is_(None),
                JOBS.c.finished_at > now - timedelta(seconds=_TELL_SECONDS),
                sa.or_(JOBS.c.notify_after.is_(None), JOBS.c.notify_after <= now),
            ]
            held = {"notify_after": now + timedelta(seconds=hold_seconds)}
            return _hold(connection, kind, limit, JOBS.c.finished_at, conditions, held)

    def mark_notified(
        self, job_id: str, at: datetime, *, ended_at: datetime | None, error: str | None = None
    ) -> None:
        """Note that somebody was told of the job's end, or with an ``error`` that it is to be tried again later.

        ``ended_at`` is the end that was told: a job that was retried meanwhile, perhaps by whoever heard of it,
        has another one or none, and that is still to be told. The wait doubles with every failure, from 10 s to
        an hour; after a day it is given up.
        """
        with self._database.write() as connection:
            if get_job(connection, job_id, for_update=True).finished_at != ended_at:
                return
            attempts = connection.scalar(sa.select(JOBS.c.notify_attempts).where(JOBS.c.id == job_id)) or 0
            changes: dict[str, Any] = {"notify_attempts": attempts + 1, "notify_error": error}
            if error is None:
                changes |= {"notified_at": at, "notify_after": None}
            else:
                wait = min(_FIRST_WAIT_SECONDS * 2 ** min(attempts, 20), _LONGEST_WAIT_SECONDS)
                changes["notify_after"] = self._database.now(connection) + timedelta(seconds=wait)
            update_job(connection, job_id, **changes)

    def list_unverified(self, kind: str, limit: int, *, hold_seconds: float = 60.0) -> list[Job]:
        """Return ended jobs that are to be verified now, and keep others from them for a while."""
        with self._database.write() as connection:
            now = self._database.now(connection)
            held = {"verify_after": now + timedelta(seconds=hold_seconds)}
            return _hold(connection, kind, limit, JOBS.c.verify_after, [JOBS.c.verify_after <= now], held)

    def set_verification(
        self, job_id: str, verification: dict[str, Any], *, actor: str, epoch: int, again_seconds: float | None
    ) -> None:
        """Keep what was found of a job's messages; ``again_seconds`` says when to look again, None never.

        Nothing is kept when the job has run again meanwhile. The history has a line when the verdict changes.
        """
        with self._database.write() as connection:
            job = get_job(connection, job_id, for_update=True)
            if job.epoch != epoch or not job.state.is_final:
                return
            now = self._database.now(connection)
            after = None if again_seconds is None else now + timedelta(seconds=again_seconds)
            before = (job.verification or {}).get("state")
            changes: dict[str, Any] = {"verification": verification, "verify_after": after}
            if verification != job.verification:
                changes["version"] = job.version + 1
            update_job(connection, job_id, **changes)
            if verification.get("state") != before:
                what = f"verification {verification.get('state')}"
                append_event(connection, job_id, actor=actor, what=what, why=None, at=datetime.now(UTC))


def _hold(  # noqa: PLR0917 - a query's parts
    connection: Connection,
    kind: str,
    limit: int,
    first: ColumnElement[Any],
    conditions: list[ColumnElement[bool]],
    held: dict[str, Any],
) -> list[Job]:
    """Return jobs for which the conditions hold, in the order of ``first``; only ended jobs have these columns."""
    query = (
        sa.select(JOBS)
        .where(JOBS.c.kind == kind, *conditions)
        .order_by(first)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    jobs = [job_of(row) for row in connection.execute(query)]
    if jobs:
        connection.execute(JOBS.update().where(JOBS.c.id.in_([job.id for job in jobs])).values(**held))
    return jobs
