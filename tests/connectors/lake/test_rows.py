"""What only a lake's tables of rows do; tests/contract/test_row_tables.py has what every warehouse's do."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from connectors.columns import arrow_schema
from connectors.lake import files
from connectors.lake.rows import LakeRowTable
from model.archive import Attempt
from model.errors import WarehouseError
from model.schema import Field, RowSchema
from model.window import Window
from tests.worlds.tables import interrupt

INGEST_TIME = Field("ingest_time", "TIMESTAMP")
FIRST = RowSchema((Field("id", "INT64"), Field("free", "STRING"), INGEST_TIME), "orders")
WIDER = RowSchema((Field("id", "INT64"), Field("free", "JSON"), INGEST_TIME, Field("day", "DATE")), "more orders")
MORE = RowSchema((*FIRST.fields, Field("day", "DATE")), "more orders")
YESTERDAY = datetime.now(UTC) - timedelta(days=1)


@pytest.fixture
def table(tmp_path) -> LakeRowTable:
    return LakeRowTable(str(tmp_path / "lake"), "staging.orders")


def batch(schema: RowSchema, *rows: dict) -> pa.RecordBatch:
    now = datetime.now(UTC)
    return pa.RecordBatch.from_pylist([{"ingest_time": now, **row} for row in rows], schema=arrow_schema(schema))


def write(table: LakeRowTable, schema: RowSchema, *rows: dict) -> None:
    """Commit rows as the next attempt of one stream; the table has their schema then."""
    table.evolve(schema)
    epoch = table.lease_epoch("l") or table.take_lease("l")
    file = table.writer().write_rows([batch(schema, *rows)])
    table.commit([file], Attempt("s", table.committed_attempt("s") + 1, "l", epoch))


def ids(table: LakeRowTable) -> list[int]:
    return sorted(row["id"] for row in table.another().read_rows(["id"]))


@pytest.mark.parametrize("change", ["evolve", "widen"])
def test_a_crash_before_a_change_is_noted_is_mended_by_the_next_and_converts_nothing_twice(
    table, monkeypatch, change
):
    wanted = MORE if change == "evolve" else WIDER
    write(table, FIRST, {"id": 1, "free": "text"})

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(LakeRowTable, "_note", crash)
        with pytest.raises(KeyboardInterrupt):
            getattr(table, change)(wanted)
    again = table.another()
    assert change == "widen" or again.schema() == FIRST
    getattr(again, change)(wanted)
    assert again.schema() == wanted
    write(again, wanted, {"id": 2})
    found = {row["id"]: row["free"] for row in again.read_rows()}
    assert found == {1: "text" if change == "evolve" else '"text"', 2: None}


def test_a_table_keeps_its_partitioning_whatever_new_ones_are_to_have(table, tmp_path):
    write(table, FIRST, {"id": 0})

    def reopened() -> LakeRowTable:
        return LakeRowTable(str(tmp_path / "lake"), "staging.orders", "hour")

    file = reopened().writer().write_rows([batch(FIRST, {"id": 1}, {"id": 2})])
    kept = reopened().without(file, pa.array([True, False]))
    table.commit([kept], Attempt("s", 2, "l", 1))
    assert ids(reopened()) == [0, 2]
    # Its partitions are longer than those of new tables.
    (day, _) = (file.partition for file in table.data_files())
    assert reopened().delete_where("id", "2", since=day + timedelta(hours=1)) == 1


def test_a_file_of_another_partitioning_is_not_committed_for_it_would_make_the_table_unreadable(table, tmp_path):
    table.evolve(FIRST)
    table.take_lease("l")
    other = LakeRowTable(str(tmp_path / "lake"), "staging.others", "hour")
    other.evolve(FIRST)
    file = other.writer().write_rows([batch(FIRST, {"id": 1})])
    with pytest.raises(WarehouseError, match=r"staging\.orders is partitioned by day\. Nothing was added"):
        table.commit([file], Attempt("s", 1, "l", 1))
    assert table.committed_attempt("s") == 0
    assert table.read_rows() == []


def test_files_of_few_rows_are_written_without_dictionaries_and_merged_into_one_with_them(table):
    # With hundreds of tables each file has some hundreds of rows: zstd and dictionaries took half of the time.
    rows = [{"id": number, "free": "same"} for number in range(50)]
    for _ in range(2):
        write(table, FIRST, *rows)
    large = table.writer().write_rows([batch(FIRST, *rows * 1000)])
    table.compact()
    (merged,) = table.data_files()
    assert merged.rows == 100
    assert [row["id"] for row in table.read_rows(["id"])] == [*range(50), *range(50)]
    assert codecs(table, large.path) == {("ZSTD", True)}
    small = table.writer().write_rows([batch(FIRST, *rows)])
    assert codecs(table, small.path) == {("SNAPPY", False)}
    assert codecs(table, merged.path.removeprefix(f"{table.uri}/")) == {("ZSTD", True)}


@pytest.mark.parametrize(("rows", "size_bytes", "groups"), [(20, 10**9, [25, 31, 2]), (10**9, 160, [25, 31, 2])])
def test_a_row_group_ends_at_its_rows_or_its_bytes_and_none_is_empty(monkeypatch, rows, size_bytes, groups):
    monkeypatch.setattr(files, "_ROW_GROUP_BYTES", size_bytes)
    batches = [pa.record_batch({"n": pa.array(range(count), pa.int64())}) for count in (0, 5, 20, 0, 1, 30, 2, 0)]
    assert [group.num_rows for group in files.row_groups(batches, batches[0].schema, rows)] == groups


def codecs(table: LakeRowTable, name: str) -> set[tuple[str, bool]]:
    """Return how the columns of a file are compressed, and whether they have dictionaries."""
    group = pq.ParquetFile(f"{table.uri}/{name}").metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return {(column.compression, column.has_dictionary_page) for column in columns}


def test_only_an_archive_has_volumes(table):
    write(table, FIRST, {"id": 1})
    assert (table.uncounted(), table.count()) == ((0, 0), 0)


def test_small_files_are_merged_with_those_of_their_own_schema(table):
    for schema, number in ((FIRST, 1), (FIRST, 2), (MORE, 3), (MORE, 4)):
        write(table, schema, {"id": number})
    assert table.compact() == 2
    assert ids(table) == [1, 2, 3, 4]
    assert table.compact() == 0


def test_deleting_rows_leaves_the_others_of_a_file_and_what_is_committed_meanwhile(table, monkeypatch):
    write(table, FIRST, {"id": 1, "free": "gone"}, {"id": 2, "free": None}, {"id": 3, "free": "kept"})
    write(table, FIRST, {"id": 4, "free": "gone"})
    other = table.another()
    interrupt(monkeypatch, table, *[lambda n=n: write(other, FIRST, {"id": n, "free": "kept"}) for n in (5, 6)])
    assert table.delete_where("free", "gone", since=YESTERDAY) == 2
    assert table.delete_where("free", "gone", since=YESTERDAY) == 0
    assert table.delete_where("other", "gone", since=YESTERDAY) == 0
    assert ids(table) == [2, 3, 5, 6]


def test_deleting_rows_of_files_that_a_compaction_took_meanwhile_deletes_nothing(table, monkeypatch):
    for number in (1, 2):
        write(table, FIRST, {"id": number})
    interrupt(monkeypatch, table, table.another().compact)
    with pytest.raises(WarehouseError, match="another process"):
        table.delete_where("id", "1", since=YESTERDAY)
    assert ids(table) == [1, 2]


def test_a_table_of_somebody_else_is_not_touched(table):
    DeltaTable.create(table.uri, schema=pa.schema([("id", pa.int64())]))
    with pytest.raises(WarehouseError, match="Another program created"):
        table.evolve(FIRST)


def test_nested_fields_are_found_by_name_wherever_the_schema_has_them(table):
    def schema(*fields: Field) -> RowSchema:
        return RowSchema((Field("id", "INT64"), Field("items", "RECORD", "REPEATED", fields=fields), INGEST_TIME))

    before, sku = Field("before", "INT64"), Field("sku", "STRING")
    write(table, schema(sku), {"id": 1, "items": [{"sku": "a"}]})
    write(table, schema(before, sku), {"id": 2, "items": [{"before": 7, "sku": "b"}]})
    found = {row["id"]: row["items"] for row in DeltaTable(table.uri).to_pyarrow_table().to_pylist()}
    assert found == {1: [{"sku": "a", "before": None}], 2: [{"sku": "b", "before": 7}]}


def test_upkeep_that_comes_between_a_change_is_waited_out_three_times_at_most(table, monkeypatch):
    table.evolve(FIRST)
    note, tries = LakeRowTable._note, []

    def fail(times):
        def refuse(self, delta, schema):
            tries.append(schema)
            if len(tries) <= times:
                raise CommitFailedError("compacted meanwhile")
            note(self, delta, schema)

        return refuse

    with monkeypatch.context() as patched:
        patched.setattr(LakeRowTable, "_note", fail(2))
        table.evolve(MORE)
    assert table.schema() == MORE
    tries.clear()
    monkeypatch.setattr(LakeRowTable, "_note", fail(9))
    with pytest.raises(WarehouseError, match="Other processes keep changing"):
        table.evolve(RowSchema((*MORE.fields, Field("last", "BOOL")), "x"))
    assert len(tries) == 3


def test_files_that_have_no_row_of_a_window_are_not_opened_and_the_oldest_values_come_first(table):
    schema = RowSchema(
        (Field("id", "INT64"), Field("at", "TIMESTAMP"), Field("_publish_time", "TIMESTAMP"), INGEST_TIME)
    )
    noon = datetime.now(UTC).replace(microsecond=0)
    for number in (3, 1, 2):
        moment = noon + timedelta(minutes=number)
        write(table, schema, {"id": number, "at": moment, "_publish_time": moment})

    def read(column: str, first: float, last: float) -> list[int]:
        window = Window(noon + timedelta(minutes=first), noon + timedelta(minutes=last))
        return [i for found in table.read_between(["id"], column, window) for i in found.column("id").to_pylist()]

    assert read("_publish_time", 0, 9) == [1, 2, 3]
    assert read("_publish_time", 1, 3) == [1, 2]
    assert sorted(read("at", 1, 3)) == [1, 2]
    for file in table.data_files():
        Path(file.path).unlink()
    assert read("_publish_time", 4, 5) == []
    # A column without statistics: the day on which the rows came says that they are older.
    assert read("at", 3 * 24 * 60, 4 * 24 * 60) == []
    with pytest.raises(WarehouseError):
        read("_publish_time", 1, 2)
