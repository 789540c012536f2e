"""The audits of merges in BigQuery: a table that the merges' own transactions write to."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from connectors.bigquery.client import Clients
from connectors.bigquery.queries.job import NamedParameter, QueryJob, typed
from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables.catalog import apply
from connectors.bigquery.tables.evolution import evolve_table
from connectors.bigquery.tables.specs import rows_spec
from model.audit import AUDIT_SCHEMA, Audit
from model.schema import RowSchema
from model.settings import BigQuerySettings


class BigQueryAudits:
    """The table ``table`` (``dataset.table``)."""

    def __init__(self, clients: Clients, table: str, settings: BigQuerySettings) -> None:
        self.id = TableId.parse(table, clients.connection.project)
        self._clients = clients
        self._settings = settings

    def create(self) -> None:
        """Create the table, or add the columns that it lacks."""
        evolve_table(self._clients, self.id, AUDIT_SCHEMA, self._create)

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
                    field.name: NamedParameter("STRING" if field.type == "JSON" else field.type, row[field.name])
                    for field in AUDIT_SCHEMA.fields
                },
                job_id=f"refeed-audit-{merge}-{audit.name}",
            )

    def read_merge(self, source: str, merge: str) -> list[dict[str, Any]]:
        """Return the audits of one merge, by name.

        Raises:
            WarehouseError: BigQuery failed.
        """
        names = ", ".join(AUDIT_SCHEMA.names())
        found = self._query(
            f"SELECT {names} FROM `{self.id}` WHERE source = @source AND merge = @merge ORDER BY name",  # noqa: S608  a checked name
            typed({"source": source, "merge": merge}),
        )
        return [_row(row) for row in found]

    def _create(self, schema: RowSchema) -> None:
        apply(self._clients, [rows_spec(self.id, schema, "day", self._settings)])

    def _query(self, sql: str, parameters: Mapping[str, NamedParameter], job_id: str | None = None) -> list[Any]:
        return QueryJob(self._clients, sql, "merge", parameters, id=job_id).rows(f"asking {self.id}")


def _row(row: Any) -> dict[str, Any]:
    found = {name: row[name] for name in AUDIT_SCHEMA.names()}
    details = found["details"]
    times = {name: found[name].astimezone(UTC) for name in ("until", "ingest_time")}
    return {**found, **times, "details": json.loads(details) if isinstance(details, str) else details}
