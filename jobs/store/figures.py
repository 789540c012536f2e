"""Recent figures of streams and running jobs: a row per minute, later thinned to one per hour."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from jobs.store.database import Database
from jobs.store.rows import read_row
from jobs.store.tables import FIGURES

KEEP_MINUTES: Final = timedelta(hours=24)
KEEP_HOURS: Final = timedelta(days=30)
# Figures further in the future were recorded by a clock that was ahead.
_AHEAD: Final = timedelta(hours=2)


@dataclass(frozen=True, slots=True)
class FigurePoint:
    """The figures of one subject at the beginning of a minute."""

    at: datetime
    figures: Mapping[str, Any]


def stream_subject(name: str) -> str:
    """Return the subject of a stream's figures."""
    return f"stream:{name}"


def job_subject(job_id: str) -> str:
    """Return the subject of a job's figures."""
    return f"job:{job_id}"


class FigureHistory:
    """Keeps one row a minute of each subject for a day, and that of each full hour for a month."""

    _database: Database

    def put_figures(self, at: datetime, figures: Mapping[str, Mapping[str, Any]]) -> None:
        """Store figures by subject under the minute of ``at``, and delete figures that are too old.

        If several replicas store the same minute of a subject, the first one counts.
        """
        minute = at.replace(second=0, microsecond=0)
        with self._database.write("figures") as connection:
            is_known = sa.and_(FIGURES.c.at == minute, FIGURES.c.subject.in_(list(figures)))
            known = set(connection.execute(sa.select(FIGURES.c.subject).where(is_known)).scalars())
            rows = [
                {"subject": subject, "at": minute, "is_hourly": minute.minute == 0, "figures": dict(found)}
                for subject, found in figures.items()
                if subject not in known
            ]
            if rows:
                connection.execute(FIGURES.insert(), rows)
            # Each statement deletes a range of the index: one statement for all would read every row each minute.
            for is_hourly, kept in ((False, KEEP_MINUTES), (True, KEEP_HOURS)):
                for is_wrong in (FIGURES.c.at < minute - kept, FIGURES.c.at > minute + _AHEAD):
                    connection.execute(FIGURES.delete().where(FIGURES.c.is_hourly == is_hourly, is_wrong))

    def list_figures(self, subjects: Collection[str], since: datetime) -> dict[str, list[FigurePoint]]:
        """Return the points of each subject from ``since`` on, oldest first; no key for a subject without any."""
        is_wanted = sa.and_(FIGURES.c.subject.in_(list(subjects)), FIGURES.c.at >= since)
        query = sa.select(FIGURES).where(is_wanted).order_by(FIGURES.c.subject, FIGURES.c.at)
        found: dict[str, list[FigurePoint]] = {}
        with self._database.read() as connection:
            for row in connection.execute(query):
                found.setdefault(row.subject, []).append(read_row(FigurePoint, row))
        return found
