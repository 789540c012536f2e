"""What is still to be done for jobs: telling somebody of an end or a wait, and proving what arrived."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from jobs.store.database import Database
from jobs.store.events import append_event
from jobs.store.job_rows import JOB_RECORDS
from jobs.store.records import Job
from jobs.store.tables import JOBS, REPORTS
from jobs.store.waits import has_passed
from model.event import HistoryEventType

# What could not be told within a day is not told any more.
_TELL_SECONDS: Final = 86_400
_FIRST_WAIT_SECONDS: Final = 10.0
_LONGEST_WAIT_SECONDS: Final = 3600.0
# What was published is verified again until two days after its end, and waits for less than that.
_LONGEST_VERIFY: Final = timedelta(days=2)
_WEBHOOK: Final = "webhook"


class WebhookOutbox:
    """Hands each job that has news, or has ended, to one replica at a time until what it needs is done."""

    _database: Database

    def open_webhook(self, digest: str) -> datetime:
        """Return since when the webhook with this digest of its URL is told of news: from now on, if it is new."""
        with self._database.write("webhooks") as connection:
            key = {"kind": _WEBHOOK, "name": digest, "instance": ""}
            query = sa.select(REPORTS.c.reported_at).filter_by(**key)
            found: datetime | None = connection.scalar(query)
            now = datetime.now(UTC)
            if found is not None:
                # A clock that was ahead would have nothing told for years.
                return min(found, now)
            connection.execute(REPORTS.insert().values(**key, reported_at=now, report={}))
            return now

    def list_unnotified(
        self, kind: str, limit: int, *, since: datetime | None = None, hold_seconds: float = 60.0
    ) -> list[Job]:
        """Return jobs with news that nobody was told of, oldest first, and keep others from them for a while.

        News from before ``since``, and news of more than a day ago, are left out.
        """
        with self._database.write_now() as (connection, now):
            earliest = now - timedelta(seconds=_TELL_SECONDS)
            conditions = [
                JOBS.c.notified_at.is_(None),
                JOBS.c.news_at > (earliest if since is None else max(earliest, since)),
                sa.or_(JOBS.c.notify_after.is_(None), has_passed(JOBS.c.notify_after, now)),
            ]
            held = {"notify_after": now + timedelta(seconds=hold_seconds)}
            return _hold(connection, kind, limit, JOBS.c.news_at, conditions, held)

    def mark_notified(self, job_id: str, at: datetime, *, news_at: datetime | None, was_told: bool) -> None:
        """Note that somebody ``was_told`` of the job's news, or else that it is to be tried again later.

        ``news_at`` is the time of the news that was told: a job that was resumed or retried meanwhile, perhaps by
        the person who heard of it, has other news or none, and those are still to be told. The wait doubles with
        every failure, from 10 s to an hour; after a day it is given up.
        """
        with self._database.write() as connection:
            if JOB_RECORDS.get(connection, job_id, for_update=True).news_at != news_at:
                return
            attempts = connection.scalar(sa.select(JOBS.c.notify_attempts).where(JOBS.c.id == job_id)) or 0
            changes: dict[str, Any] = {"notify_attempts": attempts + 1}
            if was_told:
                changes |= {"notified_at": at, "notify_after": None}
            else:
                wait = min(_FIRST_WAIT_SECONDS * 2 ** min(attempts, 20), _LONGEST_WAIT_SECONDS)
                changes["notify_after"] = self._database.now(connection) + timedelta(seconds=wait)
            JOB_RECORDS.update(connection, job_id, **changes)

    def list_unverified(self, kind: str, limit: int, *, hold_seconds: float = 60.0) -> list[Job]:
        """Return ended jobs that are to be verified now, and keep others from them for a while."""
        with self._database.write_now() as (connection, now):
            # What a clock that was ahead has put off. In one condition with the other no index would serve.
            is_ahead = sa.and_(JOBS.c.kind == kind, JOBS.c.verify_after > now + _LONGEST_VERIFY)
            connection.execute(JOBS.update().where(is_ahead).values(verify_after=now))
            held = {"verify_after": now + timedelta(seconds=hold_seconds)}
            return _hold(connection, kind, limit, JOBS.c.verify_after, [JOBS.c.verify_after <= now], held)

    def set_verification(
        self, job_id: str, verdict: dict[str, Any], *, actor: str, epoch: int, again_seconds: float | None
    ) -> None:
        """Keep the verdict on an ended job as its findings; ``again_seconds`` says when to look again, None never.

        Nothing is kept when the job has run again meanwhile. The history has a line when the verdict changes.
        """
        with self._database.write() as connection:
            job = JOB_RECORDS.get(connection, job_id, for_update=True)
            if job.epoch != epoch or not job.state.is_final:
                return
            now = self._database.now(connection)
            after = None if again_seconds is None else now + timedelta(seconds=again_seconds)
            before = (job.findings or {}).get("state")
            changes: dict[str, Any] = {"findings": verdict, "verify_after": after}
            if verdict != job.findings:
                changes["version"] = job.version + 1
            JOB_RECORDS.update(connection, job_id, **changes)
            state = verdict.get("state")
            if state != before:
                what, at = f"verification {state}", datetime.now(UTC)
                append_event(
                    connection, job.kind, job_id, HistoryEventType.FOUND, at, actor=actor, what=what, state=state
                )


def _hold(  # noqa: PLR0917 - a query's parts
    connection: Connection,
    kind: str,
    limit: int,
    first: ColumnElement[Any],
    conditions: list[ColumnElement[bool]],
    held: dict[str, Any],
) -> list[Job]:
    """Return jobs for which the conditions hold, in the order of ``first``."""
    query = (
        sa.select(JOBS)
        .where(JOBS.c.kind == kind, *conditions)
        .order_by(first)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    jobs = JOB_RECORDS.find_all(connection, query)
    if jobs:
        connection.execute(JOBS.update().where(JOBS.c.id.in_([job.id for job in jobs])).values(**held))
    return jobs
