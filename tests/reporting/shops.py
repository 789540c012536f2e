"""A source with its tables in either warehouse, and the oracle that knows what must come out."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from google.api_core.exceptions import NotFound
from google.cloud import bigquery

from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables.entity_table import BigQueryEntityTable
from connectors.bigquery.writes.row_table import BigQueryRowTable
from connectors.columns import arrow_schema
from connectors.lake.engine import EngineLimits
from connectors.lake.entities import EntityTable
from connectors.lake.files import WrittenFile
from connectors.lake.merging import open_duckdb
from connectors.lake.objects import is_bucket
from connectors.lake.reading import open_files
from connectors.lake.rows import LakeRowTable
from connectors.object_store.bucket import Bucket
from model.archive import Attempt
from model.entity import MESSAGE_COLUMNS, EntityRules, version_order
from model.schema import Field, RowSchema
from model.settings import BigQuerySettings
from tests.standin.fixture import PROJECT, StandIn
from warehouse.bigquery.merger import BigQueryMerger
from warehouse.bigquery.staging import BigQueryStaging
from warehouse.lake.merger import LakeMerger
from warehouse.lake.staging import LakeStaging
from warehouse.lake.tasks import LocalTasks, Tasks
from warehouse.lake.views import open_view
from warehouse.merges import Merger, MergeReport, MergeSource
from warehouse.staging import Staging

START = datetime(2026, 3, 1, tzinfo=UTC)
AUDITS = "backup.merge_audits"
SCHEMA = RowSchema(
    (
        Field("shop", "STRING"),
        Field("number", "INT64"),
        Field("changed_at", "TIMESTAMP"),
        Field("ordered_on", "DATE"),
        Field("lines", "RECORD", "REPEATED", fields=(Field("sku", "STRING"), Field("count", "INT64"))),
        Field("note", "JSON"),
        Field("_operation", "STRING"),
        Field("revision", "INT64"),
        Field("_topic", "STRING"),
        Field("_message_id", "STRING"),
        Field("_publish_time", "TIMESTAMP"),
        Field("_backfill_id", "STRING"),
        Field("_backfill_row", "INT64"),
        Field("ingest_time", "TIMESTAMP"),
    ),
    "orders",
)
RULES = EntityRules(
    key=("shop", "number"),
    order=version_order(("revision",), "changed_at"),
    partition_field="ordered_on",
    has_operation=True,
)
Key = tuple[Any, ...]
Row = dict[str, Any]


def order(number: int | None, day: int = 1, **more: Any) -> Row:
    """One version of an order; what is not said is the same for all."""
    moment = START + timedelta(minutes=more.pop("minute", 0))
    return {
        "shop": "se",
        "number": number,
        "changed_at": moment,
        "ordered_on": date(2026, 3, day),
        "lines": [{"sku": f"sku-{number}", "count": 1}],
        "note": '{"a":1}',
        "_topic": "orders",
        "_message_id": str(more.pop("message", number)),
        "_publish_time": moment,
        **more,
    }


def repaired(row: Row, backfill: str = "bf_1", **more: Any) -> Row:
    """The row that a replay of ``row``'s message leaves behind, through code that is repaired."""
    return {**row, "_backfill_id": backfill, "_backfill_row": 0, **more}


def is_void(row: Row, by: Row) -> bool:
    """Whether ``by`` is a later replay of the message of ``row``, and not another part of the same replay."""
    if by["_backfill_id"] is None or (row["_topic"], row["_message_id"]) != (by["_topic"], by["_message_id"]):
        return False
    if row["_backfill_id"] == by["_backfill_id"] and row["_backfill_row"] != by["_backfill_row"]:
        return False
    is_tie = row["ingest_time"] == by["ingest_time"] and row["_backfill_id"] is None
    return by["ingest_time"] > row["ingest_time"] or is_tie


@dataclass
class Shop:
    """All that was ever staged of a source, and what reporting has to be by it."""

    rules: EntityRules = RULES
    schema: RowSchema = SCHEMA
    dataset: str = "orders"
    staged: list[Row] = field(default_factory=list)

    @property
    def source(self) -> MergeSource:
        return MergeSource("orders", f"{self.dataset}.staging", f"{self.dataset}.reporting", self.rules)

    @property
    def warehouse(self) -> Merger:
        raise AssertionError("a subclass has one")

    def write(self, rows: Sequence[Row]) -> None:
        raise AssertionError("a subclass writes")

    def drop_staging(self) -> None:
        raise AssertionError("a subclass drops")

    def widen_staging(self) -> None:
        """Give staging the schema as it is now, with the rows that are there."""
        raise AssertionError("a subclass widens")

    def backfills(self) -> Staging:
        """Return what a backfill asks of this staging."""
        raise AssertionError("a subclass opens")

    def read(self) -> list[Row]:
        raise AssertionError("a subclass reads")

    def read_view(self, at: datetime) -> list[Row]:
        raise AssertionError("a subclass reads")

    def read_audits(self) -> list[Row]:
        raise AssertionError("a subclass reads")

    def audits(self) -> list[Row]:
        """The rows of the table of audits, the newest first."""
        rows = sorted(self.read_audits(), key=lambda row: row["name"])
        rows.sort(key=lambda row: row["ingest_time"], reverse=True)
        # A column of JSON is text in a lake.
        return [{**row, "details": _parsed(row["details"])} for row in rows]

    def stage(self, rows: Sequence[Row], at: datetime) -> None:
        complete = [{**dict.fromkeys(self.schema.names()), **row, "ingest_time": at} for row in rows]
        self.write(complete)
        self.staged += complete

    def merge(self, at: datetime, **options: Any) -> MergeReport:
        return self.warehouse.merge(self.source, **{"now": at, "since": None, "is_dry_run": False, **options})

    def reporting(self) -> dict[Key, Row]:
        return self.by_key(self.read())

    def view(self, at: datetime) -> dict[Key, Row]:
        return self.by_key(self.read_view(at))

    def by_key(self, rows: Sequence[Row]) -> dict[Key, Row]:
        found: dict[Key, Row] = {}
        for row in rows:
            key = self.key_of(row)
            assert key not in found, f"{key} is there twice"
            found[key] = plain(row)
        return found

    def oracle(self) -> dict[Key, Row]:
        newest: dict[Key, Row] = {}
        # By message: asking of each row whether any replay voids it takes minutes for ten thousand rows.
        replays: dict[tuple[Any, Any], list[Row]] = {}
        for row in self.staged:
            if row["_backfill_id"] is not None:
                replays.setdefault((row["_topic"], row["_message_id"]), []).append(row)
        for row in self.staged:
            if any(is_void(row, replay) for replay in replays.get((row["_topic"], row["_message_id"]), ())):
                continue
            key = self.key_of(row)
            if key not in newest or self.rank(row) > self.rank(newest[key]):
                newest[key] = row
        return {key: self.expected(row) for key, row in newest.items()}

    def visible(self) -> dict[Key, Row]:
        """What the view has to show."""
        return {k: row for k, row in self.oracle().items() if self.rules.is_soft_delete or not row["_deleted"]}

    def key_of(self, row: Row) -> Key:
        """What tells the row's entity from others; a row whose key is null as a whole is known by its message."""
        key = tuple(row[name] for name in self.rules.key)
        return key if any(part is not None for part in key) else tuple(row[name] for name in MESSAGE_COLUMNS)

    def rank(self, row: Row) -> tuple[tuple[bool, Any], ...]:
        return tuple((row[name] is not None, row[name]) for name in self.rules.order)

    def expected(self, row: Row) -> Row:
        is_removed = self.rules.has_operation and row["_operation"] == "REMOVE"
        kept = {**row, "_deleted": is_removed}
        if is_removed and not self.rules.is_soft_delete:
            kept |= {"lines": None, "note": None}
        return plain({**dict.fromkeys(self.schema.names()), **kept})


def plain(row: Row) -> Row:
    """Return a row as both warehouses could have given it: BigQuery has no null arrays, and JSON is a value."""
    note = row["note"]
    return {**row, "lines": list(row["lines"] or ()), "note": json.loads(note) if isinstance(note, str) else note}


def read_file(path: str) -> list[Row]:
    with open_files([path]) as files, files.open(path) as file:
        return file.read().to_pylist()


@dataclass
class LakeShop(Shop):
    """In a lake, on a disk or in a bucket; ``folder`` is where a merge works."""

    lake: Path | str = Path()
    tasks: Tasks = field(default_factory=LocalTasks)
    commits: int = 0
    folder: Path | None = None

    def __post_init__(self) -> None:
        self.folder = Path(self.folder or self.lake)

    @property
    def warehouse(self) -> LakeMerger:
        limits = EngineLimits("500MB", self.folder / "spill")
        return LakeMerger(str(self.lake), AUDITS, folder=self.folder / "merges", tasks=self.tasks, limits=limits)

    def write(self, rows: Sequence[Row]) -> None:
        self.staging().evolve(self.schema)
        self.commit(self.write_file(rows))

    def write_file(self, rows: Sequence[Row]) -> WrittenFile:
        """As write_rows does, but at a moment of the test's own."""
        batch = pa.RecordBatch.from_pylist(list(rows), schema=arrow_schema(self.schema))
        return self.staging().writer()._write(pa.Table.from_batches([batch]), rows[0]["ingest_time"])

    def commit(self, file: WrittenFile) -> None:
        table = self.staging()
        epoch = table.lease_epoch("l") or table.take_lease("l")
        self.commits += 1
        table.commit([file], Attempt("s", self.commits, "l", epoch))

    def drop_staging(self) -> None:
        uri = self.staging().uri
        if is_bucket(uri):
            bucket = Bucket(uri)
            bucket.delete(*(each.name for each in bucket.find()))
        else:
            shutil.rmtree(uri)

    def widen_staging(self) -> None:
        self.staging().widen(self.schema)

    def backfills(self) -> LakeStaging:
        return LakeStaging(str(self.lake), [self.source.staging], self.source.reporting)

    def read(self) -> list[Row]:
        found, day = [], self.rules.partition_field
        for file in self.table().snapshot().files:
            rows = read_file(file.path)
            # Rules without a day have one partition.
            assert {None if day is None else row[day] for row in rows} == {file.partition}
            # Files of partitions that did not change have the columns of their time.
            found += [{**dict.fromkeys(self.schema.names()), **row} for row in rows]
        return found

    def read_view(self, at: datetime) -> list[Row]:
        view = open_view(self.source, str(self.lake), at)
        if view is None:
            return []
        with open_duckdb(EngineLimits("1GB", self.folder / "spill"), str(self.lake)) as connection:
            return list(connection.sql(view.sql).to_arrow_table().to_pylist())

    def read_audits(self) -> list[Row]:
        table = LakeRowTable(str(self.lake), AUDITS)
        files = table.data_files() if table.exists() else []
        return [row for file in files for row in read_file(file.path)]

    def table(self) -> EntityTable:
        return EntityTable(str(self.lake), self.source.reporting)

    def staging(self) -> LakeRowTable:
        return LakeRowTable(str(self.lake), self.source.staging)


@dataclass
class BigQueryShop(Shop):
    """In the stand-in for BigQuery."""

    standin: StandIn | None = None
    merger: BigQueryMerger | None = None

    @property
    def settings(self) -> BigQuerySettings:
        return BigQuerySettings(
            location="US",
            host=self.standin.rest_host,
            storage_host=self.standin.storage_host,
            is_regional=False,
            partition_expiration_days=0,
            require_partition_filter=True,
            kms_key=None,
            labels=(),
            append_bytes=9_500_000,
            streams_per_hour=8000,
        )

    @property
    def warehouse(self) -> BigQueryMerger:
        if self.merger is None:
            self.merger = BigQueryMerger(PROJECT, f"{self.dataset}.merge_audits", self.settings)
        return self.merger

    def write(self, rows: Sequence[Row]) -> None:
        staging = self.staging()
        staging.evolve(self.schema)
        names = {name: name for name in self.schema.names()} | dict(staging.writer(self.schema).successors)
        ready = [{names[k]: _json(v) for k, v in row.items() if k in names and v is not None} for row in rows]
        assert self.client.insert_rows_json(self.source.staging, ready) == []

    def drop_staging(self) -> None:
        self.client.delete_table(self.source.staging)

    def widen_staging(self) -> None:
        self.standin.hold_write_buffer(f"{PROJECT}.{self.source.staging}", everything=True)
        self.staging().widen(self.schema)

    def staging(self) -> BigQueryRowTable:
        return BigQueryRowTable(self.warehouse._clients, self.source.staging, self.settings)

    def backfills(self) -> BigQueryStaging:
        clients = self.warehouse._clients
        reporting = BigQueryEntityTable(clients, self.source.reporting, self.settings)
        return BigQueryStaging(clients, [TableId.parse(self.source.staging, PROJECT)], reporting)

    def age(self) -> None:
        """Let all that is staged have come in long ago."""
        staging = self.source.staging
        old = bigquery.QueryJobConfig(
            destination=f"{PROJECT}.{staging}$20260301", write_disposition="WRITE_APPEND"
        )
        recent = "WHERE _PARTITIONTIME > '2026-03-02'"
        columns = ", ".join(self.schema.names())
        self.client.query(f"SELECT {columns} FROM {staging} {recent}", job_config=old).result()
        self.client.query(f"DELETE FROM {staging} {recent}").result()

    def read(self) -> list[Row]:
        return self.rows(f"SELECT * FROM {self.source.reporting}")

    def read_view(self, at: datetime) -> list[Row]:
        if self.warehouse.create_view(self.source) is None:
            return []
        return self.rows(f"SELECT * FROM {self.source.reporting}_view")

    def read_audits(self) -> list[Row]:
        try:
            return self.rows(f"SELECT * FROM {self.dataset}.merge_audits")
        except NotFound:
            return []

    def rows(self, sql: str) -> list[Row]:
        found = [dict(row.items()) for row in self.client.query(sql).result()]
        return [{name: _aware(value) for name, value in row.items()} for row in found]

    @property
    def client(self) -> Any:
        return self.warehouse._clients.rest()


def _parsed(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _json(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date | datetime) else value


def _aware(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value
