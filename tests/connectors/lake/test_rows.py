from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from connectors.columns import arrow_schema
from connectors.lake.rows import LakeRowTable
from model.archive import Attempt
from model.errors import EvolutionRefusedError, LeaseLostError, WarehouseError
from model.schema import Field, RowSchema
from model.window import Window

INGEST_TIME = Field("ingest_time", "TIMESTAMP")
ITEM = Field("items", "RECORD", "REPEATED", fields=(Field("sku", "STRING"),))
FIRST = RowSchema((Field("id", "INT64"), ITEM, INGEST_TIME), "orders")
WIDER = RowSchema(
    (
        Field("id", "INT64"),
        Field("items", "RECORD", "REPEATED", fields=(Field("sku", "STRING"), Field("count", "INT64"))),
        INGEST_TIME,
        Field("local", "DATETIME"),
        Field("clock", "TIME"),
        Field("price", "NUMERIC"),
        Field("body", "JSON"),
        Field("day", "DATE"),
    ),
    "more orders",
)


@pytest.fixture
def table(tmp_path) -> LakeRowTable:
    return LakeRowTable(str(tmp_path / "lake"), "staging.orders")


def batch(schema: RowSchema, *rows: dict) -> pa.RecordBatch:
    now = datetime.now(UTC)
    return pa.RecordBatch.from_pylist([{"ingest_time": now, **row} for row in rows], schema=arrow_schema(schema))


def write(table: LakeRowTable, schema: RowSchema, *rows: dict, number: int = 1) -> None:
    epoch = table.lease_epoch("l") or table.take_lease("l")
    file = table.writer().write_rows([batch(schema, *rows)])
    table.commit([file], Attempt("s", number, "l", epoch))


def test_a_table_is_created_once_with_the_schema_it_was_given(table):
    assert table.schema() is None
    assert [change.text for change in table.plan(FIRST).changes][:1] == ["is new: INT64 NULLABLE"]
    table.evolve(FIRST)
    assert table.schema() == FIRST
    version = table.version()
    assert table.evolve(FIRST).changes == ()
    assert table.version() == version


def test_rows_of_the_schema_before_and_after_a_change_are_read_together(table):
    table.evolve(FIRST)
    write(table, FIRST, {"id": 1, "items": [{"sku": "a"}]})
    table.evolve(WIDER)
    write(table, WIDER, {"id": 2, "items": [{"sku": "b", "count": 3}], "clock": "12:00:00.000000"}, number=2)
    assert table.schema() == WIDER
    found = DeltaTable(table.uri).to_pyarrow_table(columns=["id", "items", "clock"]).to_pylist()
    assert sorted(found, key=lambda row: row["id"]) == [
        {"id": 1, "items": [{"sku": "a", "count": None}], "clock": None},
        {"id": 2, "items": [{"sku": "b", "count": 3}], "clock": "12:00:00.000000"},
    ]
    files = [file.path for file in table.data_files()]
    ((total,),) = duckdb.sql(f"SELECT SUM(id) FROM read_parquet({files}, union_by_name=true)").fetchall()
    assert total == 3


def test_a_file_of_the_old_schema_that_is_committed_after_the_change_is_read_as_well(table):
    table.evolve(FIRST)
    epoch = table.take_lease("l")
    file = table.writer().write_rows([batch(FIRST, {"id": 1})])
    table.evolve(WIDER)
    table.commit([file], Attempt("s", 1, "l", epoch))
    assert DeltaTable(table.uri).to_pyarrow_table(columns=["id", "price"]).to_pylist() == [
        {"id": 1, "price": None}
    ]


def test_what_can_t_be_changed_is_refused_with_the_difference_and_nothing_is_changed(table):
    table.evolve(WIDER)
    version = table.version()
    with pytest.raises(EvolutionRefusedError, match=r"items\.count was INT64 and is gone") as caught:
        table.evolve(RowSchema((Field("new", "STRING"), *FIRST.fields), "orders"))
    assert {fault["path"] for fault in caught.value.details["differences"]} >= {"items.count", "price", "day"}
    assert (table.version(), table.schema()) == (version, WIDER)


def test_a_crash_between_the_columns_and_the_note_is_mended_by_the_next_change(table, monkeypatch):
    table.evolve(FIRST)

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(LakeRowTable, "_note", crash)
        with pytest.raises(KeyboardInterrupt):
            table.evolve(WIDER)
    again = table.another()
    assert again.schema() == FIRST
    again.evolve(WIDER)
    assert again.schema() == WIDER
    write(again, WIDER, {"id": 1})


def test_rows_that_are_not_wanted_are_left_out_of_a_file_before_its_commit(table):
    table.evolve(FIRST)
    writer = table.writer()
    file = writer.write_rows([batch(FIRST, {"id": 1}, {"id": 2})])
    kept = writer.write_without(file, pa.array([True, False]))
    assert kept is not None
    table.commit([kept], Attempt("s", 1, "l", table.take_lease("l")))
    assert DeltaTable(table.uri).to_pyarrow_table().column("id").to_pylist() == [2]
    assert writer.write_without(file, pa.array([True, True])) is None


def test_a_table_keeps_its_partitioning_whatever_new_ones_are_to_have(table, tmp_path):
    table.evolve(FIRST)
    table.take_lease("l")

    def reopened() -> LakeRowTable:
        return LakeRowTable(str(tmp_path / "lake"), "staging.orders", "hour")

    file = reopened().writer().write_rows([batch(FIRST, {"id": 1}, {"id": 2})])
    kept = reopened().without(file, pa.array([True, False]))
    table.commit([kept], Attempt("s", 1, "l", 1))
    assert [row["id"] for row in reopened().read_rows()] == [2]


def test_rows_are_deleted_from_a_table_whose_partitions_are_longer_than_those_of_new_ones(table, tmp_path):
    named = RowSchema((Field("name", "STRING"), INGEST_TIME), "orders")
    table.evolve(named)
    write(table, named, {"name": "a"}, {"name": "b"})
    (file,) = table.data_files()
    reopened = LakeRowTable(str(tmp_path / "lake"), "staging.orders", "hour")
    assert reopened.delete_where("name", "a", since=file.partition + timedelta(hours=1)) == 1


def test_a_file_of_another_partitioning_is_not_committed_for_it_would_make_the_table_unreadable(table, tmp_path):
    table.evolve(FIRST)
    table.take_lease("l")
    other = LakeRowTable(str(tmp_path / "lake"), "staging.others", "hour")
    other.evolve(FIRST)
    file = other.writer().write_rows([batch(FIRST, {"id": 1})])
    with pytest.raises(WarehouseError, match=r"staging\.orders is partitioned by the day\. Nothing was added"):
        table.commit([file], Attempt("s", 1, "l", 1))
    assert table.committed_attempt("s") == 0
    assert table.read_rows() == []


def test_files_of_few_rows_are_written_without_dictionaries_and_merged_into_one_with_them(table):
    # With hundreds of tables each file has some tens of rows: zstd and dictionaries took half of the time.
    table.evolve(FIRST)
    rows = [{"id": number, "items": [{"sku": "same"}]} for number in range(50)]
    for number in (1, 2):
        write(table, FIRST, *rows, number=number)
    large = table.writer().write_rows([batch(FIRST, *rows * 100)])
    table.compact()
    (merged,) = table.data_files()
    assert merged.rows == 100
    assert [row["id"] for row in table.read_rows(["id"])] == [*range(50), *range(50)]
    assert codecs(table, large.path) == {("ZSTD", True)}
    small = table.writer().write_rows([batch(FIRST, *rows)])
    assert codecs(table, small.path) == {("SNAPPY", False)}
    assert codecs(table, merged.path.removeprefix(f"{table.uri}/")) == {("ZSTD", True)}


def codecs(table: LakeRowTable, name: str) -> set[tuple[str, bool]]:
    """Return how the columns of a file are compressed, and whether they have dictionaries."""
    group = pq.ParquetFile(f"{table.uri}/{name}").metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return {(column.compression, column.has_dictionary_page) for column in columns}


def test_a_commit_under_a_lease_that_another_took_adds_nothing(table):
    table.evolve(FIRST)
    epoch = table.take_lease("l")
    file = table.writer().write_rows([batch(FIRST, {"id": 1})])
    table.another().take_lease("l")
    with pytest.raises(LeaseLostError):
        table.commit([file], Attempt("s", 1, "l", epoch))
    assert table.data_files() == []


def test_small_files_are_merged_and_their_rows_stay(table):
    table.evolve(FIRST)
    for number in range(1, 5):
        write(table, FIRST, {"id": number}, number=number)
    assert table.compact() == 3
    assert sorted(DeltaTable(table.uri).to_pyarrow_table().column("id").to_pylist()) == [1, 2, 3, 4]


def test_small_files_are_merged_with_those_of_their_own_schema(table):
    table.evolve(FIRST)
    for number in (1, 2):
        write(table, FIRST, {"id": number, "items": [{"sku": "a"}]}, number=number)
    table.evolve(WIDER)
    for number in (3, 4):
        write(table, WIDER, {"id": number, "items": [{"sku": "b", "count": 2}]}, number=number)
    assert table.compact() == 2
    rows = DeltaTable(table.uri).to_pyarrow_table(columns=["id", "items"]).sort_by("id").to_pylist()
    assert [row["items"][0]["sku"] for row in rows] == ["a", "a", "b", "b"]
    assert rows[3]["items"] == [{"sku": "b", "count": 2}]
    assert table.compact() == 0


def test_deleting_rows_leaves_the_others_of_a_file_and_what_is_committed_meanwhile(table, monkeypatch):
    tagged = RowSchema((Field("id", "INT64"), Field("tag", "STRING"), INGEST_TIME))
    table.evolve(tagged)
    write(table, tagged, {"id": 1, "tag": "gone"}, {"id": 2, "tag": None}, {"id": 3, "tag": "kept"})
    write(table, tagged, {"id": 4, "tag": "gone"}, number=2)
    commit, other, numbers = LakeRowTable._commit, table.another(), iter((5, 6))

    def append_first(self, *arguments, **options):
        if self is table and (number := next(numbers, None)) is not None:
            write(other, tagged, {"id": number, "tag": "kept"}, number=number)
        commit(self, *arguments, **options)

    monkeypatch.setattr(LakeRowTable, "_commit", append_first)
    yesterday = datetime.now(UTC) - timedelta(days=1)
    assert table.delete_where("tag", "gone", since=yesterday) == 2
    assert table.delete_where("tag", "gone", since=yesterday) == 0
    assert table.delete_where("other", "gone", since=yesterday) == 0
    assert sorted(DeltaTable(table.uri).to_pyarrow_table().column("id").to_pylist()) == [2, 3, 5, 6]


def test_deleting_rows_of_files_that_a_compaction_took_meanwhile_deletes_nothing(table, monkeypatch):
    table.evolve(FIRST)
    for number in (1, 2):
        write(table, FIRST, {"id": number}, number=number)
    commit, other = LakeRowTable._commit, table.another()

    def compact_first(self, *arguments, **options):
        if self is table:
            other.compact()
        commit(self, *arguments, **options)

    monkeypatch.setattr(LakeRowTable, "_commit", compact_first)
    with pytest.raises(WarehouseError, match="another process"):
        table.delete_where("id", "1", since=datetime.now(UTC) - timedelta(days=1))
    assert sorted(DeltaTable(table.uri).to_pyarrow_table().column("id").to_pylist()) == [1, 2]


def test_a_table_of_somebody_else_is_not_touched(table):
    DeltaTable.create(table.uri, schema=pa.schema([("id", pa.int64())]))
    with pytest.raises(WarehouseError, match="something else made"):
        table.evolve(FIRST)


def test_nested_fields_are_found_by_name_wherever_the_schema_has_them(table):
    table.evolve(FIRST)
    write(table, FIRST, {"id": 1, "items": [{"sku": "a"}]})
    fields = (Field("before", "INT64"), Field("sku", "STRING"))
    table.evolve(
        RowSchema((Field("id", "INT64"), Field("items", "RECORD", "REPEATED", fields=fields), INGEST_TIME))
    )
    wanted = RowSchema((Field("id", "INT64"), Field("items", "RECORD", "REPEATED", fields=fields), INGEST_TIME))
    write(table, wanted, {"id": 2, "items": [{"before": 7, "sku": "b"}]}, number=2)
    rows = DeltaTable(table.uri).to_pyarrow_table().to_pylist()
    found = {row["id"]: row["items"] for row in rows}
    assert found == {1: [{"sku": "a", "before": None}], 2: [{"sku": "b", "before": 7}]}


NARROW = RowSchema((Field("n", "INT64"), ITEM, Field("free", "STRING"), INGEST_TIME))
WIDE = RowSchema(
    (Field("n", "STRING"), Field("items", "JSON"), Field("free", "JSON"), INGEST_TIME, Field("x", "BOOL"))
)


def test_a_rewrite_keeps_every_row_and_attempt_and_gives_columns_wider_types(table):
    table.evolve(NARROW)
    first = {"n": 5, "items": [{"sku": "a"}], "free": "05"}
    write(table, NARROW, first, {"n": 0, "items": [], "free": "5"}, {"n": None, "items": [], "free": None})
    table.widen(WIDE)
    assert table.schema() == WIDE
    rows = DeltaTable(table.uri).to_pyarrow_table(columns=["n", "items", "free", "x"]).to_pylist()
    assert rows == [
        {"n": "5", "items": '[{"sku":"a"}]', "free": '"05"', "x": None},
        # A text that a number would have is that number: a text it may have been before.
        {"n": "0", "items": None, "free": "5", "x": None},
        {"n": None, "items": None, "free": None, "x": None},
    ]
    assert table.committed_attempt("s") == 1
    write(table, WIDE, {"n": "x", "free": "{}"}, number=2)
    assert len(table.data_files()) == 2


def test_a_crash_in_the_middle_of_a_rewrite_converts_nothing_twice(table, monkeypatch):
    table.evolve(NARROW)
    write(table, NARROW, {"n": 5, "items": [], "free": "text"})

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(LakeRowTable, "_note", crash)
        with pytest.raises(KeyboardInterrupt):
            table.widen(WIDE)
    again = table.another()
    again.widen(WIDE)
    assert again.schema() == WIDE
    assert DeltaTable(table.uri).to_pyarrow_table().column("free").to_pylist() == ['"text"']


def test_a_rewrite_drops_no_column(table):
    table.evolve(NARROW)
    with pytest.raises(EvolutionRefusedError, match="free was STRING and is gone"):
        table.widen(RowSchema((Field("n", "STRING"), ITEM, INGEST_TIME)))


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
        table.evolve(WIDER)
    assert table.schema() == WIDER
    tries.clear()
    monkeypatch.setattr(LakeRowTable, "_note", fail(9))
    with pytest.raises(WarehouseError, match="changed by others"):
        table.evolve(RowSchema((*WIDER.fields, Field("last", "BOOL")), "x"))
    assert len(tries) == 3


def test_files_that_have_no_row_of_a_window_are_not_opened_and_the_oldest_values_come_first(table):
    schema = RowSchema(
        (Field("id", "INT64"), Field("at", "TIMESTAMP"), Field("_publish_time", "TIMESTAMP"), INGEST_TIME)
    )
    noon = datetime.now(UTC).replace(microsecond=0)
    table.evolve(schema)
    for number in (3, 1, 2):
        moment = noon + timedelta(minutes=number)
        write(table, schema, {"id": number, "at": moment, "_publish_time": moment}, number=4 - number)

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
