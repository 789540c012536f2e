"""A table of rows in BigQuery: a schema that grows, partitions by when rows came in."""

import json
from typing import Any

from connectors.bigquery.client import Clients
from connectors.bigquery.queries.job import QueryJob
from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables.catalog import apply, read_table
from connectors.bigquery.tables.cells import read_columns
from connectors.bigquery.tables.evolution import evolve_table, plan_table
from connectors.bigquery.tables.schema import from_bigquery, time_paths
from connectors.bigquery.tables.specs import rows_spec
from connectors.bigquery.tables.successors import read_schema, successor_paths
from connectors.bigquery.tables.widening import alter_columns
from connectors.bigquery.writes.row_writer import BigQueryRowWriter
from model.errors import TableNotFoundError
from model.schema import Evolution, RowSchema, evolution_error
from model.settings import BigQuerySettings
from model.table import Partitioning


class BigQueryRowTable:
    """A table of rows, partitioned by when they came in; ``ingest_time`` is one of its columns.

    Its schema is what BigQuery says, so that columns which others add have to be in the registry too. Tables that
    share ``known``, the columns by table, ask for them only once.
    """

    def __init__(
        self,
        clients: Clients,
        table: str,
        settings: BigQuerySettings,
        partitioning: Partitioning = "day",
        *,
        known: dict[str, RowSchema] | None = None,
        run: str | None = None,
    ) -> None:
        self.name = table
        self.id = TableId.parse(table, clients.connection.project)
        self._clients = clients
        self._settings = settings
        self._partitioning = partitioning
        self._known = {} if known is None else known
        self._run = run

    def exists(self) -> bool:
        """Whether the table has been created."""
        return read_table(self._clients, self.id) is not None

    def schema(self) -> RowSchema | None:
        """Return the schema that readers of the table see, None when there is no table yet."""
        columns = self.columns()
        return None if columns is None else read_schema(columns)

    def columns(self) -> RowSchema | None:
        """Return the columns as BigQuery has them, successors of others among them, None without a table."""
        found = read_table(self._clients, self.id)
        if found is None:
            return None
        self._known[self.name] = from_bigquery(found)
        return self._known[self.name]

    def writer(self, schema: RowSchema) -> BigQueryRowWriter:
        """Return what appends rows of ``schema``, each field to the column of its type."""
        columns = self._known.get(self.name) or self.columns() if schema.fields else None
        return BigQueryRowWriter(
            self._clients.connection,
            str(self.id),
            self._settings.append_bytes,
            time_paths(schema.fields),
            () if columns is None else tuple(successor_paths(columns.fields, schema.fields)),
            self._run,
        )

    def plan(self, wanted: RowSchema) -> Evolution:
        """Return the changes that let the table hold rows of ``wanted``; nothing is touched."""
        return plan_table(read_table(self._clients, self.id), wanted)

    def evolve(self, wanted: RowSchema) -> Evolution:
        """Create the table, or change it so that it holds rows of ``wanted``; see :func:`evolve_table`."""
        return self._evolve(wanted, may_widen=False)

    def widen(self, wanted: RowSchema) -> None:
        """Make the table what is wanted even where types become wider, whatever is in the write buffer.

        No row is written again. A column that BigQuery can't alter gets a successor: rows are written to that from
        then on, and read from both. A crash is mended by the next call.

        Raises:
            EvolutionRefusedError: a column would be dropped or become narrower, or there would be too many;
                nothing was changed.
            WarehouseError: BigQuery failed; what was not changed is at the next call.
        """
        table = read_table(self._clients, self.id)
        if table is not None:
            evolution = plan_table(table, wanted, may_widen=True)
            if evolution.refused:
                raise evolution_error(str(self.id), evolution)
            alter_columns(self._clients, self.id, table, wanted, use="pipeline")
        self._evolve(wanted, may_widen=True)

    def read_rows(self, columns: list[str] | None = None) -> list[dict[str, Any]]:
        """Return every row, with some of its columns or all, JSON as text; for small tables only."""
        found = self.columns()
        if found is None:
            raise TableNotFoundError(f"There is no table {self.name}.")
        cells = {name.lower(): f"{sql} AS `{name}`" for name, sql in read_columns(found, "t").items()}
        selected = ", ".join(cells.values() if columns is None else (cells[name.lower()] for name in columns))
        sql = f"SELECT {selected} FROM `{self.id}` AS t"  # noqa: S608  checked names
        return QueryJob(self._clients, sql, "pipeline").read(f"reading {self.id}", _cells)

    def compact(self, *, max_small_files: int = 0) -> int:  # noqa: ARG002
        """Return 0: BigQuery looks after its own storage."""
        return 0

    def _evolve(self, wanted: RowSchema, *, may_widen: bool) -> Evolution:
        evolution = evolve_table(self._clients, self.id, wanted, self._create, may_widen=may_widen)
        self._known[self.name] = evolution.schema
        return evolution

    def _create(self, schema: RowSchema) -> None:
        apply(self._clients, [rows_spec(self.id, schema, self._partitioning, self._settings)])


def _cells(rows: Any) -> list[dict[str, Any]]:
    return [{field.name: _cell(row[field.name], field) for field in rows.schema} for row in rows]


def _cell(cell: Any, field: Any, *, is_element: bool = False) -> Any:
    """Return a cell of the client's as the lake has it: JSON as text."""
    if cell is None:
        return None
    if field.mode == "REPEATED" and not is_element:
        return [_cell(element, field, is_element=True) for element in cell]
    if field.field_type in ("RECORD", "STRUCT"):
        return {child.name: _cell(cell[child.name], child) for child in field.fields}
    return json.dumps(cell) if field.field_type == "JSON" else cell
