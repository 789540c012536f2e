import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.lake.columns import arrow_schema
from connectors.lake.entities import EntityTable
from connectors.lake.rows import RowTable
from model.archive import Attempt
from pipeline.registry import Registry
from tests.pipeline.conftest import compile_protos

SOURCES = """
sources:
  orders:
    topic: orders
    message: shop.Order
    key: id
    event_time: updated_at
    partition: created_at
  logs:
    topic: logs
    message: shop.Order
"""
MESSAGE = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order {
  int64 id = 1;
  google.protobuf.Timestamp updated_at = 2;
  google.protobuf.Timestamp created_at = 3;
}
"""
NOW = datetime.now(UTC)


pytestmark = pytest.mark.usefixtures("quiet_logging")


@pytest.fixture
def stage(home: Path, tmp_path: Path) -> Callable[..., None]:
    """Publishes the registry and returns what writes versions of orders (id, seconds) to staging."""
    (tmp_path / "shop.proto").write_text(MESSAGE)
    registry = Registry(str(home / "registry"))
    registry.publish({"shop.desc": compile_protos(tmp_path, "shop.proto"), "sources.yaml": SOURCES.encode()})
    (source,) = [s for s in registry.read().sources if s.name == "orders"]
    assert source.schema is not None
    schema = arrow_schema(source.schema)
    table = RowTable(str(home / "lake"), source.staging)
    table.evolve(source.schema)
    epoch = table.take_lease("l")

    def write(*versions: tuple[int, int]) -> None:
        rows = [
            {
                "id": number,
                "updated_at": NOW + timedelta(seconds=seconds),
                "created_at": datetime(2026, 3, 1 + number, tzinfo=UTC),
                "_message_id": f"{number}-{seconds}",
                "ingest_time": datetime.now(UTC),
            }
            for number, seconds in versions
        ]
        complete = [{**dict.fromkeys(schema.names), **row} for row in rows]
        file = table.writer().write_rows([pa.RecordBatch.from_pylist(complete, schema=schema)])
        table.commit([file], Attempt("s", table.committed_attempt("s") + 1, "l", epoch))

    return write


def test_a_merge_makes_reporting_what_staging_says(
    refeed: Callable[..., Any], stage: Callable[..., None], home: Path
) -> None:
    stage((1, 0), (1, 5), (2, 0))
    (planned,) = json.loads(refeed("merge", "--dry-run", "--json").out)
    assert (planned["source"], planned["changed"], planned["newer"]) == ("orders", 2, 2)
    assert not EntityTable(str(home / "lake"), "reporting.orders").exists()
    (merged,) = json.loads(refeed("merge", "--json").out)
    assert merged["partitions"] == ["2026-03-02", "2026-03-03"]
    stage((1, 3), (2, 9))
    assert "orders  2                1      1" in refeed("merge", "--source", "orders").out
    files = EntityTable(str(home / "lake"), "reporting.orders").snapshot().files
    rows = [row for file in files for row in pq.ParquetFile(file.path).read().to_pylist()]
    assert {row["id"]: row["_message_id"] for row in rows} == {1: "1-5", 2: "2-9"}


def test_a_source_that_can_not_be_merged_is_named(refeed: Callable[..., Any], stage: Callable[..., None]) -> None:
    assert "logs: a source without key" in refeed("merge", "--source", "logs").err
    assert "has no source none" in refeed("merge", "--source", "none").err
