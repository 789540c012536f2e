"""Streams: the last report of each."""

from dataclasses import asdict
from datetime import timedelta
from typing import Final

import sqlalchemy as sa

from jobs.store.database import Database
from jobs.store.rows import read_row
from jobs.store.tables import STREAMS
from model.stream import StoredReport, StreamReport

# A pod without a persistent disk has a new instance id after each restart.
_KEEP: Final = timedelta(days=7)


class Streams:
    """Keeps one report for each instance of a stream; those that another instance has followed go after a week."""

    _database: Database

    def put_stream_report(self, report: StreamReport) -> None:
        """Keep the report instead of the instance's last one."""
        values = asdict(report)
        is_it = sa.and_(STREAMS.c.name == report.name, STREAMS.c.instance == report.instance)
        with self._database.write() as connection:
            # The store's clock: that of another host may be minutes off.
            values["reported_at"] = now = self._database.now(connection)
            if connection.execute(STREAMS.update().where(is_it).values(**values)).rowcount:
                return
            connection.execute(STREAMS.insert().values(**values))
            is_over = sa.and_(STREAMS.c.name == report.name, STREAMS.c.reported_at < now - _KEEP)
            connection.execute(STREAMS.delete().where(is_over))

    def list_stream_reports(self) -> list[StoredReport]:
        """Return the last report of every instance, by name, the newest of a name first."""
        query = sa.select(STREAMS).order_by(STREAMS.c.name, STREAMS.c.reported_at.desc())
        with self._database.read() as connection:
            now, rows = self._database.now(connection), connection.execute(query).all()
        return [
            StoredReport(
                read_row(StreamReport, row),
                row.reported_at,
                max(0.0, (now - row.reported_at).total_seconds()),
            )
            for row in rows
        ]
