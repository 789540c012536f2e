"""What upkeep does with a lake in a bucket of either cloud, and by how many requests it reads."""

import random
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from connectors.lake.object_reads import TAIL_BYTES
from connectors.lake.row_tables import LakeRowTables
from model.archive import Attempt
from model.schema import Field, RowSchema
from model.window import Window
from tests.connectors.lake.bucket_archive import append, ids
from tests.worlds.tables import pulled

ROW = pa.record_batch({"id": [1], "ingest_time": pa.array([datetime.now(UTC)], pa.timestamp("us", "UTC"))})


def many_rows(first: int) -> list[bytes]:
    return [random.Random(first + number).randbytes(300) for number in range(1500)]


def test_small_files_are_read_by_a_request_each_and_larger_ones_by_their_ends_and_the_columns_asked_for(
    archive, proxy
):
    """As they are learned from, compacted, and counted."""
    now = datetime.now(UTC)
    for number in range(2, 6):
        append(archive, number)

    def gets():
        found = [request.partition("?")[0] for request in proxy.requests if ".parquet" in request]
        proxy.forget()
        assert all(request.startswith(("GET ", "PUT ")) for request in found)
        return [request for request in found if request.startswith("GET ")]

    def small_ones():
        return sorted(f"GET /{file.path.partition('://')[2]}" for file in archive.another().data_files())

    files = small_ones()
    gets()
    assert ids(archive) == ["1", "2", "3", "4", "5"]
    assert sorted(gets()) == files
    archive.another().volumes(Window(now - timedelta(days=1), now + timedelta(days=1)))
    assert sorted(gets()) == files
    assert archive.another().compact() == 4
    assert sorted(gets()) == files
    written = [
        archive.writer().write([("orders", "s", pulled(*many_rows(first), first=first))]) for first in (10, 2000)
    ]
    archive.commit(written, Attempt("s", 6, "l", 1, commit_id=6))
    assert all(file.size_bytes > 2 * TAIL_BYTES for file in written)
    gets()
    assert len(ids(archive)) == 5 + 3000
    assert len(gets()) <= 1 + 2 * 2
    assert archive.another().compact() == 2
    # The end of each, and the rest of each.
    assert len(gets()) <= 1 + 2 * 2
    assert len(ids(archive)) == 5 + 3000


@pytest.mark.timeout(60)
def test_whatever_upkeep_does_with_a_table_of_rows_it_does_in_a_bucket(bucket_lake):
    """Without a proxy: delta-rs changes the columns."""
    fields = (Field("id", "INT64"), Field("ingest_time", "TIMESTAMP"), Field("_topic", "STRING"))
    tables = LakeRowTables(bucket_lake, "backup.anchor", stream="s", lease="l")
    table = tables.open("shop.orders")
    table.evolve(RowSchema(fields[:2]))
    tables.append(table.name, ROW)
    table.evolve(RowSchema(fields))

    def add(number):
        topic, moment = pa.array([f"t{number % 2:.0f}"]), ROW.column("ingest_time")
        tables.append(table.name, pa.record_batch({"id": [number], "ingest_time": moment, "_topic": topic}))

    for number in range(2, 6):
        add(number)
    table.widen(RowSchema((Field("id", "FLOAT64"), *fields[1:])))

    def rows():
        found = tables.open(table.name).read_rows(["id", "_topic"])
        return sorted((row["id"], row["_topic"]) for row in found)

    assert rows() == [(1.0, None), (2.0, "t0"), (3.0, "t1"), (4.0, "t0"), (5.0, "t1")]
    assert table.another().delete_where("_topic", "t1", since=datetime.now(UTC)) == 2
    add(6.0)
    assert table.another().compact() == 1
    assert rows() == [(1.0, None), (2.0, "t0"), (4.0, "t0"), (6.0, "t0")]
    assert table.another().vacuum(keep_hours=2) == []
    assert table.another().expire(before=(datetime.now(UTC) + timedelta(days=2)).date()) >= 1
    assert rows() == []
