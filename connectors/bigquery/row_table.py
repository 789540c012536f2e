"""A table of rows in BigQuery: a schema that grows, partitions by when rows came in."""

import json
from typing import Any, Final

from google.cloud import bigquery

from connectors.bigquery.client import ONCE, Clients
from connectors.bigquery.errors import JOB_ROLE, our_errors, retry_passing
from connectors.bigquery.evolving import evolve_table, plan_table
from connectors.bigquery.row_schema import from_bigquery, time_paths, to_bigquery
from connectors.bigquery.row_writer import BigQueryRowWriter
from connectors.bigquery.tables import TableId, apply, read_table, rows_spec
from connectors.bigquery.widening import widen_table
from model.schema import Evolution, RowSchema
from model.settings import BigQuerySettings
from model.table import Partitioning

_QUERY_SECONDS: Final = 120.0


class BigQueryRowTable:
    """A table of rows, partitioned by when they came in; ``ingest_time`` is one of its columns.

    Its schema is what BigQuery says, so that columns which others add have to be in the registry too.
    """

    def __init__(
        self, clients: Clients, table: str, settings: BigQuerySettings, partitioning: Partitioning = "day"
    ) -> None:
        self.name = table
        self.id = TableId.parse(table, clients.connection.project)
        self._clients = clients
        self._settings = settings
        self._partitioning = partitioning

    def exists(self) -> bool:
        """Say whether the table has been created."""
        return read_table(self._clients, self.id) is not None

    def schema(self) -> RowSchema | None:
        """Return the schema that the table has, None when there is no table yet."""
        found = read_table(self._clients, self.id)
        return None if found is None else from_bigquery(found)

    def writer(self, schema: RowSchema) -> BigQueryRowWriter:
        """Return what appends rows of ``schema``."""
        return BigQueryRowWriter(
            self._clients.connection, str(self.id), self._settings.append_bytes, time_paths(schema.fields)
        )

    def plan(self, wanted: RowSchema) -> Evolution:
        """Return how the table comes to hold rows of ``wanted``; nothing is touched."""
        return plan_table(read_table(self._clients, self.id), wanted)

    def evolve(self, wanted: RowSchema) -> Evolution:
        """Create the table, or change it so that it holds rows of ``wanted``, and return what was done.

        Raises:
            EvolutionRefusedError: it can't; ``details["differences"]`` says why, and nothing was changed.
            WarehouseError: BigQuery failed, or others changed the table all the time.
        """
        return evolve_table(self._clients, self.id, wanted, self._create)

    def rewrite(self, wanted: RowSchema) -> None:
        """Make the table what is wanted even where types become wider: every row is written again, in one job.

        Whoever calls this holds the lease and commits nothing meanwhile. A crash is mended by the next call.

        Raises:
            EvolutionRefusedError: a column would be dropped or become narrower, or BigQuery still has rows in its
                write buffer; nothing was changed.
            WarehouseError: BigQuery failed; nothing was changed.
        """
        table = read_table(self._clients, self.id)
        evolution = plan_table(table, wanted)
        if table is not None and evolution.refused:
            widen_table(self._clients, self.id, table, wanted, evolution, use="pipeline")
        self.evolve(wanted)

    def read_rows(self, columns: list[str] | None = None) -> list[dict[str, Any]]:
        """Return every row, with some of its columns or all, JSON as text; for small tables only.

        Raises:
            TableNotFoundError: there is no table.
        """
        config = bigquery.QueryJobConfig(
            use_query_cache=False, labels=self._clients.connection.labels_for("pipeline")
        )

        selected = "*" if columns is None else ", ".join(f"`{name}`" for name in columns)

        def call() -> list[dict[str, Any]]:
            with our_errors(f"reading {self.id}", JOB_ROLE):
                job = self._clients.rest().query(
                    f"SELECT {selected} FROM `{self.id}`",  # noqa: S608  checked names
                    job_config=config,
                    job_retry=None,
                    **ONCE,
                )
                found = job.result(retry=None, timeout=_QUERY_SECONDS)
                return [{field.name: _cell(row[field.name], field) for field in found.schema} for row in found]

        return retry_passing(call, seconds=_QUERY_SECONDS)

    def compact(self, *, max_small_files: int = 0) -> int:  # noqa: ARG002
        """Return 0: BigQuery looks after its own storage."""
        return 0

    def _create(self, schema: RowSchema) -> None:
        columns = to_bigquery(schema)
        apply(self._clients, [rows_spec(self.id, schema.description, columns, self._partitioning, self._settings)])


def _cell(cell: Any, field: Any, *, is_element: bool = False) -> Any:
    """Return a cell of the client's as the lake has it: JSON as text."""
    if cell is None:
        return None
    if field.mode == "REPEATED" and not is_element:
        return [_cell(element, field, is_element=True) for element in cell]
    if field.field_type in ("RECORD", "STRUCT"):
        return {child.name: _cell(cell[child.name], child) for child in field.fields}
    return json.dumps(cell) if field.field_type == "JSON" else cell
