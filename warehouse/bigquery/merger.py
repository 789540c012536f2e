"""Reporting tables in BigQuery: each merge of theirs, its dry run, and their union views."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

import structlog

from connectors.bigquery.client import Clients, Connection
from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables.audits import BigQueryAudits
from connectors.bigquery.tables.entity_table import BigQueryEntityTable, MergeState
from connectors.bigquery.tables.schema import to_bigquery
from connectors.bigquery.tables.successors import read_schema
from connectors.bigquery.writes.row_table import BigQueryRowTable
from model.entity import check_rules
from model.schema import RowSchema
from model.settings import BigQuerySettings
from warehouse.bigquery.changes import KEEP
from warehouse.bigquery.merge import BigQueryMerge
from warehouse.merges import MergeReport, MergeSource, reporting_schema

_log = structlog.get_logger(__name__)


class BigQueryMerger:
    """Merges within BigQuery; ``audits`` is the table (``dataset.table``) of what merges checked."""

    def __init__(self, project: str, audits: str, settings: BigQuerySettings) -> None:
        self._clients = Clients(Connection.of(project, settings))
        self._settings = settings
        self._audits = BigQueryAudits(self._clients, audits, settings)

    def merge(
        self, source: MergeSource, *, now: datetime, since: datetime | None, is_dry_run: bool
    ) -> MergeReport:
        """Merge one source; see :class:`warehouse.merges.Merger`. The clock that counts is BigQuery's."""
        columns = self._staging_columns(source)
        if columns is None:
            return MergeReport(source.name, since, now, is_dry_run=is_dry_run)
        schema, reporting = read_schema(columns), self._reporting(source)
        if is_dry_run:
            with _tried(reporting, schema) as (table, state):
                merge = self._merge(source, reporting, table, schema, columns)
                found = merge.compare(state, since)
                merge.drop(found)
                return replace(found.report, is_dry_run=True)
        wanted = reporting.evolve(reporting_schema(schema), source.rules).schema
        self._audits.create()
        merge = self._merge(source, reporting, reporting.id, wanted, columns)
        state = reporting.read_state()
        if state.until is None:
            # Before the first merge too: staging is to be seen.
            merge.create_view(None)
        report = merge.run(state, since)
        merge.create_view(report.until)
        _log.info("merged", source=source.name, changed=report.changed, newer=report.newer)
        return report

    def create_view(self, source: MergeSource) -> str | None:
        """Make the union view of ``source`` and return its name, None while nothing was ever staged.

        Each merge does so too; it is for a source that has not been merged yet, and fails as a merge does.
        """
        columns = self._staging_columns(source)
        if columns is None:
            return None
        schema, reporting = read_schema(columns), self._reporting(source)
        wanted = reporting.evolve(reporting_schema(schema), source.rules).schema
        merge = self._merge(source, reporting, reporting.id, wanted, columns)
        merge.create_view(reporting.read_state().until)
        return str(TableId.parse(source.view, self._clients.connection.project))

    def close(self) -> None:
        """End the connections."""
        self._clients.close()

    def _staging_columns(self, source: MergeSource) -> RowSchema | None:
        columns = BigQueryRowTable(self._clients, source.staging, self._settings).columns()
        if columns is not None:
            check_rules(source.name, source.rules, read_schema(columns))
        return columns

    def _merge(
        self,
        source: MergeSource,
        reporting: BigQueryEntityTable,
        table: TableId,
        schema: RowSchema,
        staging: RowSchema,
    ) -> BigQueryMerge:
        limit = self._settings.merge_max_bytes_billed
        return BigQueryMerge(source, reporting, table, schema, staging, self._clients, self._audits, limit)

    def _reporting(self, source: MergeSource) -> BigQueryEntityTable:
        return BigQueryEntityTable(self._clients, source.reporting, self._settings)


@contextmanager
def _tried(reporting: BigQueryEntityTable, staging: RowSchema) -> Iterator[tuple[TableId, MergeState]]:
    """Give the table that a dry run compares with, an empty one where there is none, and a state of its own."""
    state = reporting.peek_state() or MergeState("", 0, None, reporting.read_clock())
    state = replace(state, id=f"dry-{uuid.uuid4().hex}")
    if reporting.schema() is not None:
        yield reporting.id, state
        return
    empty = reporting.id.beside(f"refeed_merge_{state.id}_empty".replace("-", "_"))
    reporting.create_passing(empty, to_bigquery(reporting_schema(staging)), datetime.now(UTC) + KEEP)
    try:
        yield empty, state
    finally:
        reporting.drop(empty)
