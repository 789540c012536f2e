"""A reporting table in BigQuery: one row an entity, partitioned on a column of its own, and where its merge is."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from google.api_core import exceptions as api
from google.cloud import bigquery

from connectors.bigquery.client import ONCE, Clients
from connectors.bigquery.errors import DATASET_ROLE, call_bigquery
from connectors.bigquery.queries.job import QueryJob
from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables.catalog import create_lasting_table, read_table
from connectors.bigquery.tables.evolution import evolve_table, plan_table
from connectors.bigquery.tables.schema import from_bigquery, to_bigquery
from connectors.bigquery.tables.widening import widen_table
from model.entity import EntityRules
from model.errors import WarehouseError
from model.schema import Evolution, RowSchema
from model.settings import BigQuerySettings

_CHANGE_SECONDS: Final = 60.0
# "Introduction to clustered tables": four columns at most, of these types.
_CLUSTERED: Final = 4
_CLUSTERED_TYPES: Final = frozenset({"BOOL", "DATE", "DATETIME", "INT64", "NUMERIC", "STRING", "TIMESTAMP"})
_PARTITIONED_TYPES: Final = frozenset({"DATE", "DATETIME", "TIMESTAMP"})
_WATERMARK_COLUMNS: Final = (
    bigquery.SchemaField("number", "INT64", description="A number that increases with each merge."),
    bigquery.SchemaField(
        "until", "TIMESTAMP", description="The time up to which staging is merged into reporting."
    ),
    bigquery.SchemaField("merged_at", "TIMESTAMP", description="When the last merge was committed."),
)


@dataclass(frozen=True, slots=True)
class MergeState:
    """Where the merges of a table are: how many there were, up to when staging is in.

    ``id`` is the same as long as no merge is committed, and for no other table or state. ``now`` is when this was
    read; it is BigQuery's own clock, as ``until`` is, and as the one by which rows are committed.
    """

    id: str
    number: int
    until: datetime | None
    now: datetime


class BigQueryEntityTable:
    """The table ``table`` (``dataset.table``) and its watermark, a table of one row that each merge moves on."""

    def __init__(self, clients: Clients, table: str, settings: BigQuerySettings) -> None:
        self.id = TableId.parse(table, clients.connection.project)
        self.watermark = self.id.companion("watermark")
        self._clients = clients
        self._settings = settings

    def schema(self) -> RowSchema | None:
        """Return the schema that the table has, None when there is no table yet."""
        found = read_table(self._clients, self.id)
        return None if found is None else from_bigquery(found)

    def evolve(self, wanted: RowSchema, rules: EntityRules) -> Evolution:
        """Create the table or widen it; it is never narrowed. Where types become wider a job writes it again.

        Raises:
            EvolutionRefusedError: it can't hold rows of ``wanted``; nothing was changed.
            WarehouseError: BigQuery failed, or others changed the table all the time.
        """
        found = read_table(self._clients, self.id)
        evolution = plan_table(found, wanted)
        if found is not None and evolution.refused:
            widen_table(self._clients, self.id, found, wanted, evolution, use="merge")
        return evolve_table(
            self._clients, self.id, wanted, lambda schema: self._create(self._resource(schema, rules))
        )

    def read_state(self) -> MergeState:
        """Return where the merges are; the watermark is made when there is none.

        Raises:
            WarehouseError: BigQuery failed.
        """
        table = read_table(self._clients, self.watermark)
        if table is None:
            made = bigquery.Table(str(self.watermark), schema=_WATERMARK_COLUMNS)
            made.description = f"The time up to which staging is merged into {self.id.table}."
            self._create(made)
            table = read_table(self._clients, self.watermark)
        # A table that is created again counts from 1.
        text = f"{self.id} {table.created.isoformat()}"
        state = self._read(text)
        if state is None:
            self._begin(text)
            state = self._read(text)
        if state is None:
            raise WarehouseError(f"{self.watermark} stays empty.")
        return state

    def peek_state(self) -> MergeState | None:
        """Return where the merges are, None where there was none; nothing is made."""
        table = read_table(self._clients, self.watermark)
        return None if table is None else self._read(f"{self.id} {table.created.isoformat()}")

    def read_clock(self) -> datetime:
        """Return what time it is for BigQuery, aware UTC."""
        moment: datetime = self._query("SELECT CURRENT_TIMESTAMP() AS now")[0]["now"]
        return moment.astimezone(UTC)

    def overtake(self) -> MergeState:
        """Make every merge that has begun fail when it commits, and return where the merges are then.

        Raises:
            WarehouseError: BigQuery failed.
        """
        self._query(f"UPDATE `{self.watermark}` SET number = number + 1 WHERE TRUE")  # noqa: S608  a checked name
        return self.read_state()

    def create_passing(self, table: TableId, columns: Sequence[Any] | None, expires: datetime) -> TableId:
        """Make a table that a merge needs for a while, and return it; without columns its query gives it some."""
        made = bigquery.Table(str(table), schema=columns)
        made.expires = expires
        made.description = f"Temporary rows of a merge into {self.id.table}."
        self._create(made)
        return table

    def rows_of(self, table: TableId) -> int | None:
        """Return how many rows a passing table has, None when it is gone."""
        found = read_table(self._clients, table)
        return None if found is None else int(found.num_rows or 0)

    def define_view(self, sql: str) -> None:
        """Run the statement that makes the view of this table.

        Raises:
            WarehouseError: BigQuery failed, or refuses it; the view is as it was.
        """
        self._query(sql)

    def drop(self, table: TableId) -> None:
        """Delete a table that :meth:`create_passing` made, before it expires."""
        call_bigquery(
            lambda: self._clients.rest().delete_table(str(table), not_found_ok=True, **ONCE),
            f"deleting {table}",
            seconds=_CHANGE_SECONDS,
        )

    def _read(self, text: str) -> MergeState | None:
        columns = "MAX(number) AS number, MAX(until) AS until, CURRENT_TIMESTAMP() AS now"
        sql = f"SELECT {columns} FROM `{self.watermark}`"  # noqa: S608  a checked name
        row = self._query(sql)[0]
        if row["number"] is None:
            return None
        mark = hashlib.sha256(text.encode()).hexdigest()[:16]
        until = None if row["until"] is None else row["until"].astimezone(UTC)
        return MergeState(f"{mark}-{row['number']}", int(row["number"]), until, row["now"].astimezone(UTC))

    def _begin(self, text: str) -> None:
        """Write the first row; two merges that begin at once write it once, because the job has one id."""
        job = f"refeed-watermark-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
        sql = f"INSERT INTO `{self.watermark}` (number) VALUES (0)"  # noqa: S608  a checked name
        self._query(sql, job)

    def _query(self, sql: str, job_id: str | None = None) -> list[Any]:
        return QueryJob(self._clients, sql, "merge", id=job_id).rows(f"asking {self.watermark}")

    def _resource(self, schema: RowSchema, rules: EntityRules) -> Any:
        table = bigquery.Table(str(self.id), schema=to_bigquery(schema))
        table.description = schema.description
        types = {field.name: field.type for field in schema.fields if field.mode != "REPEATED"}
        if rules.partition_field is not None and types.get(rules.partition_field) in _PARTITIONED_TYPES:
            table.time_partitioning = bigquery.TimePartitioning(type_="DAY", field=rules.partition_field)
        clustering: Sequence[str] = [key for key in rules.key if types.get(key) in _CLUSTERED_TYPES]
        table.clustering_fields = list(clustering[:_CLUSTERED]) or None
        return table

    def _create(self, table: Any) -> None:
        table.labels = {"app": "refeed", **dict(self._settings.labels)}
        if self._settings.kms_key:
            table.encryption_configuration = bigquery.EncryptionConfiguration(kms_key_name=self._settings.kms_key)
        call_bigquery(
            partial(self._create_once, table),
            f"creating {table.table_id}",
            seconds=_CHANGE_SECONDS,
            role=DATASET_ROLE,
        )

    def _create_once(self, table: Any) -> None:
        try:
            create_lasting_table(self._clients, table)
        except api.NotFound:
            dataset = bigquery.Dataset(f"{table.project}.{table.dataset_id}")
            dataset.location = self._clients.connection.location
            dataset.labels = table.labels
            self._clients.rest().create_dataset(dataset, exists_ok=True, **ONCE)
            create_lasting_table(self._clients, table)
