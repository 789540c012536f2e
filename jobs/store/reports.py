"""Reports: the last one of each stream, and of each agent that lives."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

import sqlalchemy as sa

from jobs.store.database import Database
from jobs.store.tables import REPORTS
from model.stream import AgentReport, StoredAgentReport, StoredReport, StreamReport
from model.typed import read_fields

# A pod without a persistent disk has a new instance id after each restart.
_KEEP: Final = timedelta(days=7)
# An agent reports every few seconds; one that has been silent for longer than its leases last is gone.
_LIVES: Final = timedelta(seconds=60)
_COLUMNS: Final = REPORTS.c
_STREAM: Final = "stream"
_AGENT: Final = "agent"
_NO_INSTANCE: Final = ""


class Reports:
    """Keeps one report for each agent, and for each instance of a stream.

    The report of an agent goes when the agent says that it ends, or has been silent for a minute; the report of
    an instance goes a week after another instance has followed it.
    """

    _database: Database

    def put_stream_reports(self, reports: Sequence[tuple[StreamReport, float]]) -> None:
        """Keep each report instead of its instance's last one; the number beside it is its age in seconds."""
        is_it = _is(_STREAM, sa.bindparam("_name"), sa.bindparam("_instance"))
        names = {report.name for report, _ in reports}
        of_names = sa.and_(_COLUMNS.kind == _STREAM, _COLUMNS.name.in_(names))
        with self._database.write() as connection:
            # The store's clock: that of another host may be minutes off.
            now = self._database.now(connection)
            query = sa.select(_COLUMNS.name, _COLUMNS.instance).where(of_names)
            known = {tuple(row) for row in connection.execute(query)}
            changed, added = [], []
            for report, age_seconds in reports:
                values = {"report": _document_of(report), "reported_at": now - timedelta(seconds=age_seconds)}
                if (report.name, report.instance) in known:
                    changed.append({**values, "_name": report.name, "_instance": report.instance})
                else:
                    added.append({**values, "kind": _STREAM, "name": report.name, "instance": report.instance})
            if changed:
                connection.execute(REPORTS.update().where(is_it), changed)
            if added:
                connection.execute(REPORTS.insert(), added)
                connection.execute(REPORTS.delete().where(of_names, _COLUMNS.reported_at < now - _KEEP))

    def list_stream_reports(self) -> list[StoredReport]:
        """Return the last report of every instance, by name, the newest of a name first."""
        query = sa.select(REPORTS).where(_COLUMNS.kind == _STREAM)
        with self._database.read() as connection:
            now = self._database.now(connection)
            rows = connection.execute(query.order_by(_COLUMNS.name, _COLUMNS.reported_at.desc())).all()
        return [
            StoredReport(
                read_fields(StreamReport, row.report),
                row.reported_at,
                max(0.0, (now - row.reported_at).total_seconds()),
            )
            for row in rows
        ]

    def put_agent_report(self, report: AgentReport) -> None:
        """Keep the report instead of the agent's last one; those that are silent for a minute are forgotten."""
        with self._database.write_now() as (connection, now):
            is_silent = sa.and_(_COLUMNS.kind == _AGENT, _COLUMNS.reported_at < now - _LIVES)
            connection.execute(REPORTS.delete().where(sa.or_(is_silent, _is(_AGENT, report.agent))))
            values = {"kind": _AGENT, "name": report.agent, "instance": _NO_INSTANCE}
            connection.execute(REPORTS.insert().values(**values, report=_document_of(report), reported_at=now))

    def remove_agent_report(self, agent: str) -> None:
        """Forget an agent that ends."""
        with self._database.write() as connection:
            connection.execute(REPORTS.delete().where(_is(_AGENT, agent)))

    def list_agent_reports(self) -> list[StoredAgentReport]:
        """Return the last report of every agent that lives, by host and home."""
        with self._database.read() as connection:
            since = self._database.now(connection) - _LIVES
            query = sa.select(REPORTS).where(_COLUMNS.kind == _AGENT, _COLUMNS.reported_at >= since)
            rows = connection.execute(query).all()
        found = [StoredAgentReport(read_fields(AgentReport, row.report), row.reported_at) for row in rows]
        return sorted(found, key=lambda each: (each.report.host, each.report.home, each.report.agent))


def _document_of(report: StreamReport | AgentReport) -> dict[str, Any]:
    found = asdict(report)
    # In JSON the database would keep what no answer can have: an unpaired surrogate.
    json.dumps(found, ensure_ascii=False).encode()
    return found


def _is(kind: str, name: Any, instance: Any = _NO_INSTANCE) -> sa.ColumnElement[bool]:
    return sa.and_(_COLUMNS.kind == kind, _COLUMNS.name == name, _COLUMNS.instance == instance)
