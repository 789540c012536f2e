"""The audits of merges in BigQuery: a table that the merges' own transactions write to."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from connectors.bigquery.client import Clients
from connectors.bigquery.query_run import run_query
from connectors.bigquery.row_table import BigQueryRowTable
from connectors.bigquery.selection import QueryParameter
from connectors.bigquery.tables import TableId
from model.audit import AUDIT_SCHEMA, Audit
from model.settings import BigQuerySettings


class BigQueryAudits:
    """The table ``table`` (``dataset.table``)."""

    def __init__(self, clients: Clients, table: str, settings: BigQuerySettings) -> None:
        self.id = TableId.parse(table, clients.connection.project)
        self._clients = clients
        self._table = BigQueryRowTable(clients, table, settings)

    def create(self) -> None:
        """Create the table, or add the columns that it lacks."""
        self._table.evolve(AUDIT_SCHEMA)

    def append(self, source: str, merge: str, until: datetime, audits: Sequence[Audit]) -> None:
        """Add a row a check of a merge whose own transaction took its rows back.

        Raises:
            WarehouseError: BigQuery failed; some may have been added, and none is added twice.
        """
        for audit in audits:
            row = audit.to_row(source, merge, until)
            self._query(
                f"INSERT INTO `{self.id}` (source, merge, until, name, is_passed, expected, found, details, "  # noqa: S608  a checked name
                "ingest_time) VALUES (@source, @merge, @until, @name, @is_passed, @expected, @found, "
                "PARSE_JSON(@details), @ingest_time)",
                {
                    field.name: QueryParameter("STRING" if field.type == "JSON" else field.type, row[field.name])
                    for field in AUDIT_SCHEMA.fields
                },
                job_id=f"refeed-audit-{merge}-{audit.name}",
            )

    def read(self, source: str | None, limit: int) -> list[dict[str, Any]]:
        """Return the newest audits, of one source or all, the newest first.

        Raises:
            WarehouseError: BigQuery failed.
        """
        if not self._table.exists():
            return []
        names = ", ".join(AUDIT_SCHEMA.names())
        found = self._query(
            f"SELECT {names} FROM `{self.id}` WHERE @source IS NULL OR source = @source "  # noqa: S608  a checked name
            "ORDER BY ingest_time DESC, name LIMIT @limit",
            {"source": QueryParameter("STRING", source), "limit": QueryParameter("INT64", limit)},
        )
        return [_row(row) for row in found]

    def read_merge(self, source: str, merge: str) -> list[dict[str, Any]]:
        """Return the audits of one merge, by name.

        Raises:
            WarehouseError: BigQuery failed.
        """
        names = ", ".join(AUDIT_SCHEMA.names())
        found = self._query(
            f"SELECT {names} FROM `{self.id}` WHERE source = @source AND merge = @merge ORDER BY name",  # noqa: S608  a checked name
            {"source": QueryParameter("STRING", source), "merge": QueryParameter("STRING", merge)},
        )
        return [_row(row) for row in found]

    def _query(self, sql: str, parameters: Mapping[str, QueryParameter], job_id: str | None = None) -> list[Any]:
        return list(run_query(self._clients, f"asking {self.id}", sql, parameters, job_id=job_id))


def _row(row: Any) -> dict[str, Any]:
    found = {name: row[name] for name in AUDIT_SCHEMA.names()}
    details = found["details"]
    times = {name: found[name].astimezone(UTC) for name in ("until", "ingest_time")}
    return {**found, **times, "details": json.loads(details) if isinstance(details, str) else details}
