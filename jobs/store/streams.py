"""Reports: the last one of each stream, and of each agent that lives."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Final

import sqlalchemy as sa

from jobs.store.database import Database
from jobs.store.rows import read_row
from jobs.store.tables import STREAM_AGENTS, STREAMS
from model.stream import AgentReport, StoredAgentReport, StoredReport, StreamReport

# A pod without a persistent disk has a new instance id after each restart.
_KEEP: Final = timedelta(days=7)
# An agent reports every few seconds; one that has been silent for longer than its leases last is gone.
_LIVES_SECONDS: Final = 60.0


class Streams:
    """Keeps one report for each instance of a stream; those that another instance has followed go after a week."""

    _database: Database

    def put_stream_reports(self, reports: Sequence[tuple[StreamReport, float]]) -> None:
        """Keep each report instead of its instance's last one; the number beside it is its age in seconds."""
        columns = STREAMS.c
        key = (columns.name, columns.instance)
        is_it = sa.and_(*(column == sa.bindparam(f"_{column.name}") for column in key))
        names = {report.name for report, _ in reports}
        with self._database.write() as connection:
            # The store's clock: that of another host may be minutes off.
            now = self._database.now(connection)
            known = {tuple(row) for row in connection.execute(sa.select(*key).where(columns.name.in_(names)))}
            changed, added = [], []
            for report, age_seconds in reports:
                values = {**asdict(report), "reported_at": now - timedelta(seconds=age_seconds)}
                if (report.name, report.instance) in known:
                    changed.append({**values, "_name": report.name, "_instance": report.instance})
                else:
                    added.append(values)
            if changed:
                connection.execute(STREAMS.update().where(is_it), changed)
            if added:
                connection.execute(STREAMS.insert(), added)
                is_over = sa.and_(columns.name.in_(names), columns.reported_at < now - _KEEP)
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


class Agents:
    """Keeps the last report of each agent until it says that it ends, or has been silent for a minute."""

    _database: Database

    def put_agent_report(self, report: AgentReport) -> None:
        """Keep the report instead of the agent's last one; those that are silent for a minute are forgotten."""
        columns = STREAM_AGENTS.c
        with self._database.write() as connection:
            now = self._database.now(connection)
            is_over = sa.or_(
                columns.agent == report.agent, columns.reported_at < now - timedelta(seconds=_LIVES_SECONDS)
            )
            connection.execute(STREAM_AGENTS.delete().where(is_over))
            connection.execute(STREAM_AGENTS.insert().values(**asdict(report), reported_at=now))

    def remove_agent_report(self, agent: str) -> None:
        """Forget an agent that ends."""
        with self._database.write() as connection:
            connection.execute(STREAM_AGENTS.delete().where(STREAM_AGENTS.c.agent == agent))

    def list_agent_reports(self) -> list[StoredAgentReport]:
        """Return the last report of every agent that lives, by host and home."""
        columns = STREAM_AGENTS.c
        with self._database.read() as connection:
            since = self._database.now(connection) - timedelta(seconds=_LIVES_SECONDS)
            query = sa.select(STREAM_AGENTS).where(columns.reported_at >= since)
            rows = connection.execute(query.order_by(columns.host, columns.home, columns.agent)).all()
        return [StoredAgentReport(read_row(AgentReport, row), row.reported_at) for row in rows]
