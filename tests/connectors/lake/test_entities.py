import time
from dataclasses import replace
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.table import TableAlterer

from connectors.columns import arrow_schema
from connectors.lake.entities import EntityTable, write_partition
from model.errors import WarehouseError
from model.schema import Field, RowSchema

NARROW = RowSchema((Field("id", "INT64"), Field("free", "STRING"), Field("tags", "STRING", "REPEATED")))
WIDE = RowSchema((Field("id", "STRING"), Field("free", "JSON"), Field("tags", "JSON"), Field("more", "BOOL")))
DAYS = (None, date(2026, 3, 1))


@pytest.fixture
def table(tmp_path):
    """Return a table with a row in each of two partitions."""
    found = EntityTable(str(tmp_path / "lake"), "reporting.orders")
    found.evolve(NARROW)
    add(found, [{"id": 1, "free": "text", "tags": ["a"]}, {"id": 2, "free": None, "tags": []}])
    return found


def add(table, rows):
    schema = arrow_schema(NARROW)
    files = [
        file
        for day, row in zip(DAYS, rows, strict=True)
        for file in write_partition(
            table.uri, day, schema, iter([pa.RecordBatch.from_pylist([row], schema=schema)])
        )
    ]
    table.replace(table.snapshot(), [], files, watermark_us=7, index_number=0, taken_number=3)


def rows(table):
    return {file.partition: pq.ParquetFile(file.path).read().to_pylist() for file in table.snapshot().files}


def test_columns_whose_values_repeat_have_a_dictionary_and_no_others_do(tmp_path):
    fields = (
        Field("status", "STRING"),
        Field("price", "NUMERIC"),
        Field("tags", "STRING", "REPEATED"),
        Field("lines", "RECORD", "REPEATED", fields=(Field("sku", "STRING"),)),
        Field("_message_id", "STRING"),
        Field("_publish_time", "TIMESTAMP"),
    )
    schema = arrow_schema(RowSchema(fields))
    same = {"status": "new", "price": Decimal(1), "tags": ["a"], "lines": [{"sku": "b"}]}
    rows = [{**same, "_message_id": str(number), "_publish_time": number} for number in range(9)]
    (file,) = write_partition(str(tmp_path), None, schema, iter([pa.RecordBatch.from_pylist(rows, schema)]))
    group = pq.ParquetFile(tmp_path / file.path).metadata.row_group(0)
    columns = [group.column(place) for place in range(group.num_columns)]
    assert {column.path_in_schema for column in columns if not column.has_dictionary_page} == {
        "_message_id",
        "_publish_time",
    }
    assert len(columns) == len(fields)


def test_statistics_are_kept_of_keys_and_of_all_that_is_no_text(tmp_path):
    kinds = {"id": "STRING", "note": "STRING", "raw": "BYTES", "total": "INT64", "at": "TIMESTAMP"}
    schema = arrow_schema(RowSchema(tuple(Field(*each) for each in kinds.items())))
    batch = pa.RecordBatch.from_pylist([{"id": "a", "note": "b", "raw": b"c", "total": 1, "at": 1}], schema)
    (file,) = write_partition(str(tmp_path), None, schema, iter([batch]), keys=("id",))
    group = pq.ParquetFile(tmp_path / file.path).metadata.row_group(0)
    columns = [group.column(place) for place in range(group.num_columns)]
    assert {column.path_in_schema for column in columns if column.is_stats_set} == {"id", "total", "at"}


def test_a_crash_before_the_wider_schema_is_noted_converts_nothing_twice(table, monkeypatch):
    def crash(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(TableAlterer, "set_table_properties", crash)
        with pytest.raises(KeyboardInterrupt):
            table.evolve(WIDE)
    again = EntityTable(table.uri.rsplit("/", 2)[0], table.name)
    again.evolve(WIDE)
    assert rows(again) == {
        None: [{"id": "1", "free": '"text"', "tags": '["a"]'}],
        DAYS[1]: [{"id": "2", "free": None, "tags": None}],
    }
    # What merges noted stays.
    snapshot = again.snapshot()
    assert (again.schema(), snapshot.watermark_us, snapshot.taken_number) == (WIDE, 7, 3)
    assert again.evolve(WIDE).changes == ()


def test_a_merge_commits_no_file_that_vacuum_may_have_taken(table):
    before, schema = table.snapshot(), arrow_schema(NARROW)
    batch = pa.RecordBatch.from_pylist([{"id": 3, "free": None, "tags": []}], schema=schema)
    (file,) = write_partition(table.uri, None, schema, iter([batch]))
    old = replace(file, modified_at_ms=int((time.time() - 13 * 3600) * 1000))
    with pytest.raises(WarehouseError, match="more than 12 h"):
        table.replace(before, before.of({None}), [old], watermark_us=8, index_number=0, taken_number=4)
    assert table.snapshot() == before
