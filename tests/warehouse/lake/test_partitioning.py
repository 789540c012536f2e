"""Tables of rows that are partitioned by the hour, as REFEED_ARCHIVE_PARTITIONING says of a lake's tables."""

from datetime import UTC, date, datetime

import pyarrow as pa
import pytest

from connectors.columns import arrow_schema
from model.entity import EntityRules
from model.errors import WarehouseError
from model.job import new_job_id
from model.schema import Field, RowSchema
from warehouse.lake.warehouse import LakeWarehouse
from warehouse.merges import MergeSource

SCHEMA = RowSchema(
    (
        Field("id", "STRING"),
        Field("at", "TIMESTAMP"),
        Field("_backfill_id", "STRING"),
        Field("_backfill_row", "INT64"),
        Field("ingest_time", "TIMESTAMP"),
    )
)
ORDERS = MergeSource("orders", "staging.orders", "shop.orders", EntityRules(("id",), ("at",)))
NOW = datetime.now(UTC)
BACKFILL = new_job_id("bf")


@pytest.fixture
def lake(tmp_path):
    return LakeWarehouse(str(tmp_path / "lake"), "backup.messages", "pipeline.dead_letters", "hour", "500MB")


def stage(lake: LakeWarehouse, *ids: str, backfill: str | None = None) -> None:
    tables = lake.open_row_tables(stream="s", lease="l")
    tables.open(ORDERS.staging).evolve(SCHEMA)
    row = {"at": NOW, "_backfill_id": backfill, "_backfill_row": 1, "ingest_time": NOW}
    rows = [{"id": name, **row} for name in ids]
    tables.append(ORDERS.staging, pa.RecordBatch.from_pylist(rows, schema=arrow_schema(SCHEMA)))


def test_rows_are_merged_shown_and_reverted(lake, tmp_path):
    stage(lake, "1", "2")
    merger = lake.open_merger(tmp_path / "merge")
    assert merger.merge(ORDERS, now=NOW, since=None, is_dry_run=False).newer == 2
    assert [schema.table for schema in lake.open_views([ORDERS]).read_schemas()] == [ORDERS.view]
    stage(lake, "3", backfill=BACKFILL)
    staging = lake.open_staging([ORDERS.staging], ORDERS.reporting)
    assert [row for rows in staging.landed_rows(BACKFILL) for row in rows.tolist()] == [1]
    assert staging.delete_rows(BACKFILL) == 1
    assert merger.merge(ORDERS, now=NOW, since=None, is_dry_run=False).newer == 0


def test_upkeep_by_partitions_of_a_reporting_table_is_refused(lake, tmp_path):
    stage(lake, "1")
    lake.open_merger(tmp_path / "merge").merge(ORDERS, now=NOW, since=None, is_dry_run=False)
    upkeep = lake.open_upkeep(ORDERS.reporting)
    with pytest.raises(WarehouseError, match="not partitioned by ingest_hour"):
        upkeep.compact()
    with pytest.raises(WarehouseError, match="not partitioned by ingest_hour"):
        upkeep.expire(before=date(2026, 1, 1))
    assert upkeep.vacuum(keep_hours=24, dry_run=True) == []
