"""Tables beside the archive: what Delta says of them, and what a query sees."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from connectors.lake.query import ArchiveSnapshot, QueryLimits, read_snapshot
from connectors.lake.query_tables import LakeTables
from model.errors import WarehouseError
from model.table import TableRead, TableSchema
from model.window import Window
from tests.connectors.conftest import run_query

MOMENT = datetime(2024, 3, 1, 10, 30, tzinfo=UTC)


def snapshot_of(root: Path, name: str, window: Window | None = None) -> ArchiveSnapshot:
    return read_snapshot(
        str(root),
        "backup.messages",
        "day",
        window=window,
        reads_archive=False,
        extra_reads=[TableRead(name, "refeed_table_1", window)],
    )


def test_every_type_that_a_query_can_have_is_known_and_read(tmp_path: Path, limits: QueryLimits) -> None:
    rows = pa.table(
        {
            "text": ["a"],
            "whole": pa.array([1], pa.int32()),
            "number": pa.array([1.5], pa.float32()),
            "flag": [True],
            "raw": pa.array([b"\x00"], pa.binary()),
            "day": [date(2024, 3, 1)],
            "moment": pa.array([MOMENT], pa.timestamp("us", tz="UTC")),
            "wall": pa.array([MOMENT.replace(tzinfo=None)], pa.timestamp("us")),
            "price": pa.array([Decimal("1.25")], pa.decimal128(20, 2)),
            "huge": pa.array([Decimal(1)], pa.decimal128(38, 20)),
            "many": pa.array([[1, 2]], pa.list_(pa.int64())),
            "pairs": pa.array([[("k", "v")]], pa.map_(pa.string(), pa.string())),
            "nested": pa.array([{"a": 1, "b": ["x"]}]),
            "deep": pa.array([[[1]]], pa.list_(pa.list_(pa.int64()))),
        }
    )
    write_deltalake(str(tmp_path / "ops" / "all"), rows)

    schemas, missing = LakeTables(str(tmp_path), ["ops.all", "shop.ops.none"]).read_schemas()

    assert missing == ("shop.ops.none",)
    assert schemas == (
        TableSchema(
            "ops.all",
            (
                ("text", "STRING"),
                ("whole", "INT64"),
                ("number", "FLOAT64"),
                ("flag", "BOOL"),
                ("raw", "BYTES"),
                ("day", "DATE"),
                ("moment", "TIMESTAMP"),
                ("wall", "DATETIME"),
                ("price", "NUMERIC"),
                ("many", "ARRAY<INT64>"),
                ("pairs", "ARRAY<STRUCT<key STRING, value STRING>>"),
                ("nested", "STRUCT<a INT64, b ARRAY<STRING>>"),
            ),
        ),
    )
    (row,) = run_query(snapshot_of(tmp_path, "ops.all"), "SELECT * FROM refeed_table_1", {}, limits).to_pylist()
    assert (row["whole"], row["raw"], row["moment"], row["price"]) == (1, b"\x00", MOMENT, Decimal("1.25"))
    assert (row["pairs"], row["nested"]) == ([{"key": "k", "value": "v"}], {"a": 1, "b": ["x"]})


def test_a_table_partitioned_by_ingestion_has_pseudo_columns_and_leaves_files_out(tmp_path, limits):
    days = [MOMENT - timedelta(days=n) for n in range(3)]
    rows = pa.table(
        {
            "message_id": ["0", "1", "2"],
            "ingest_time": pa.array(days, pa.timestamp("us", tz="UTC")),
            "ingest_date": [day.date() for day in days],
        }
    )
    write_deltalake(str(tmp_path / "ops" / "staging"), rows, partition_by=["ingest_date"])

    ((schema,), _) = LakeTables(str(tmp_path), ["ops.staging"]).read_schemas()
    assert (schema.partitioning, dict(schema.columns).keys()) == ("day", {"message_id", "ingest_time"})
    start = MOMENT.replace(hour=0, minute=0) - timedelta(days=1)
    snapshot = snapshot_of(tmp_path, "ops.staging", Window(start, start + timedelta(days=1)))
    found = run_query(
        snapshot, 'SELECT message_id, "_PARTITIONTIME", "_PARTITIONDATE" FROM refeed_table_1', {}, limits
    )
    assert found.to_pylist() == [{"message_id": "1", "_PARTITIONTIME": start, "_PARTITIONDATE": start.date()}]


def test_values_of_other_partitions_come_from_the_log(tmp_path: Path, limits: QueryLimits) -> None:
    rows = pa.table({"message_id": ["1", "2", "3"], "region": ["e'u %/", None, "us"], "n": [1, 2, 3]})
    uri = str(tmp_path / "ops" / "by_region")
    write_deltalake(uri, rows, partition_by=["region", "n"])
    found = run_query(
        snapshot_of(tmp_path, "ops.by_region"),
        "SELECT message_id, region, n FROM refeed_table_1 ORDER BY n",
        {},
        limits,
    )
    assert found.to_pylist() == rows.to_pylist()


def test_files_from_before_a_column_was_added_have_null_there(tmp_path: Path, limits: QueryLimits) -> None:
    uri = str(tmp_path / "ops" / "grown")
    tables = LakeTables(str(tmp_path), ["ops.grown"])
    write_deltalake(uri, pa.table({"a": pa.array([1], pa.int32())}))
    assert tables.read_schemas()[0][0].columns == (("a", "INT64"),)
    write_deltalake(
        uri, pa.table({"a": pa.array([2], pa.int32()), "b": ["x"]}), mode="append", schema_mode="merge"
    )
    # The same object sees what is new.
    assert tables.read_schemas()[0][0].columns == (("a", "INT64"), ("b", "STRING"))
    found = run_query(snapshot_of(tmp_path, "ops.grown"), "SELECT * FROM refeed_table_1 ORDER BY a", {}, limits)
    assert found.to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]


def test_a_table_without_files_has_columns_and_no_rows(tmp_path: Path, limits: QueryLimits) -> None:
    schema = pa.schema([("data", pa.binary()), ("tags", pa.map_(pa.string(), pa.string()))])
    write_deltalake(str(tmp_path / "ops" / "empty"), schema.empty_table())
    found = run_query(snapshot_of(tmp_path, "ops.empty"), "SELECT data, tags FROM refeed_table_1", {}, limits)
    assert (found.num_rows, found.schema.names) == (0, ["data", "tags"])


def test_a_table_that_went_away_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(WarehouseError, match=r"ops\.gone"):
        snapshot_of(tmp_path, "ops.gone")


def test_a_table_whose_rows_the_log_maps_elsewhere_is_not_there(tmp_path: Path) -> None:
    uri = str(tmp_path / "ops" / "mapped")
    write_deltalake(uri, pa.table({"a": [1]}), configuration={"delta.columnMapping.mode": "name"})
    assert LakeTables(str(tmp_path), ["ops.mapped"]).read_schemas() == ((), ("ops.mapped",))
