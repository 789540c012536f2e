"""What differs for staging tables whose parts are taken whole or not at all, with refused rows and a quota."""

import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from connectors.bigquery.writes.append_queue import ConnectionTurn
from connectors.bigquery.writes.part_writer import PendingRows
from connectors.bigquery.writes.row_writer import BigQueryRowPart
from connectors.bigquery.writes.write_streams import finalize_stream
from connectors.columns import arrow_schema
from model.errors import EvolutionRefusedError, TableNotReadyError, WarehouseError, WarehouseUnavailableError
from model.schema import Field, RowSchema
from model.settings import read_settings
from pipeline.registry import Registry
from pipeline.source import StagingTask
from pipeline.staged import StagedTopics
from streams.journal import EntryState
from streams.status import StatusFile
from tests.pipeline.conftest import frame
from tests.pipeline.test_staged import HOOKS, note_types
from tests.pipeline.test_staging import Stream, pulled
from warehouse.open import open_warehouse

ROWS = pa.schema(
    [
        ("id", pa.int64()),
        ("_message_id", pa.string()),
        ("more", pa.string()),
        ("ingest_time", pa.timestamp("us", tz="UTC")),
    ]
)


ROWS_SCHEMA = RowSchema((Field("_message_id", "STRING"), Field("ingest_time", "TIMESTAMP")))


class BigQueryStream(Stream):
    """A committer over tables in the stand-in, in a project of its own."""

    def __init__(self, folder, standin, *, project=None, home="s", has_moved=False, **environment: str) -> None:
        self.has_moved = has_moved
        self.standin = standin
        self.project = project or f"p{uuid.uuid4().hex[:12]}"
        self.home = home
        self.settings = read_settings(
            {
                **standin.environment,
                "REFEED_WAREHOUSE": "bigquery",
                "REFEED_PROJECT": self.project,
                "REFEED_DEAD_LETTER_TABLE": "backup.dead_letters",
                **environment,
            },
            home=folder,
        )
        self.opened = []
        super().__init__(folder)

    def open_warehouse(self):
        return open_warehouse(self.settings)

    def open_tables(self):
        self.opened.append(self.open_warehouse().open_row_tables(stream=self.home, lease="l"))
        return self.opened[-1]

    def rows(self, name: str) -> list[dict]:
        sql = f"SELECT * FROM `{self.project}.{name}` WHERE _PARTITIONTIME IS NOT NULL"
        return [dict(row.items()) for row in self.standin.client().query_and_wait(sql)]


@pytest.fixture
def stream(tmp_path, shared_standin):
    found = BigQueryStream(tmp_path, shared_standin)
    yield found
    shared_standin.clear_faults()
    for tables in found.opened:
        tables.close()


def crash(*_, **__):
    raise KeyboardInterrupt


def test_every_message_is_a_row_or_a_dead_letter_and_known_ones_are_written_once(stream):
    stream.batch(
        [pulled("orders", b'{"id": 1}', b"nope"), pulled("members", b'{"id": 1, "name": "Ann"}')],
        [pulled("orders", b'{"id": 3, "new": {"a": 1}}', first=3)],
    )
    wanted = Counter([("orders", "1"), ("orders", "3"), ("members", "1"), ("dead_letters", "2")])
    assert stream.staged() == wanted
    assert sorted(stream.hold.acked) == ["members-1", "orders-1", "orders-2", "orders-3"]
    (member,) = stream.rows("staging.members")
    assert (member["id"], member["name"], member["_topic"]) == (1, "Ann", "members")
    (letter,) = stream.rows("backup.dead_letters")
    assert (letter["data"], letter["error_code"]) == (b"nope", "not_json")
    unknown = {row["_message_id"]: row["_unknown"] for row in stream.rows("staging.orders")}
    assert "new" in str(unknown["3"])
    # One of three is known: its part is given up, and what was new in it comes again.
    stream.batch([pulled("orders", b"{}", b'{"id": 4}', first=3), pulled("members", b"{}", first=2)])
    assert stream.staged() == wanted + Counter([("members", "2")])
    assert "orders-4" not in stream.hold.acked
    assert stream.hold.given_back == ["orders-4"]
    stream.batch([pulled("orders", b'{"id": 4}', first=4)])
    assert stream.staged() == wanted + Counter([("members", "2"), ("orders", "4")])
    assert "orders-4" in stream.hold.acked


def test_only_tables_with_rows_cost_a_stream(stream, shared_standin):
    shared_standin.clear_log()
    stream.batch([pulled("orders", b"{}")], [pulled("orders", b"{}", first=2)])
    counts = shared_standin.counts()
    assert (counts["CreateWriteStream"], counts["FlushRows"]) == (1, 1)


def test_streams_and_their_connections_last_over_batches(stream, shared_standin):
    stream.batch([pulled("orders", b"{}"), pulled("members", b"{}")])
    shared_standin.clear_log()
    for first in (2, 3, 4):
        stream.batch([pulled("orders", b"{}", first=first), pulled("members", b"{}", first=first)])
    counts = shared_standin.counts()
    assert (counts["AppendRows"], counts["FlushRows"]) == (12, 6)  # with three notes, ids and attempt
    assert {"CreateWriteStream", "FinalizeWriteStream"}.isdisjoint(counts)
    for table in ("orders", "members"):
        appends = [c for c in shared_standin.calls("AppendRows") if f"/{table}/" in c["resource"]]
        assert len({call["connection"] for call in appends}) == 1
    assert stream.staged() == Counter((name, str(n)) for name in ("orders", "members") for n in (1, 2, 3, 4))


def test_a_kept_connection_that_breaks_between_batches_costs_no_row_and_doubles_none(stream, shared_standin):
    for first, when in ((1, "before"), (2, "before"), (3, "after")):
        shared_standin.fault("AppendRows", "drop", when=when, resource="/orders/")
        stream.batch([pulled("orders", b"{}", first=first)])
    assert shared_standin.open_faults() == []
    assert stream.staged() == Counter(("orders", str(n)) for n in (1, 2, 3))


def test_a_part_that_is_given_up_takes_what_was_written_behind_it_along_and_no_more(stream):
    """The tasks of the next batch write while one is committed: their rows are in the same stream by then."""
    stream.batch([pulled("orders", b"{}")])
    task = StagingTask("secret").with_plan(stream.plan)
    first = frame([task(iter([pulled("orders", b"{}", b"{}")]))])  # one of two is known
    task = StagingTask("secret").with_plan(stream.plan)
    second = frame([task(iter([pulled("orders", b"{}", first=3), pulled("members", b"{}")]))])
    stream.take(first)
    stream.take(second)
    assert stream.staged() == Counter([("orders", "1"), ("members", "1")])
    assert stream.hold.given_back == ["orders-2", "orders-3"]
    assert sorted(stream.hold.acked) == ["members-1", "orders-1", "orders-1"]
    stream.batch([pulled("orders", b"{}", b"{}", first=2)])
    assert stream.staged() == Counter([("orders", "1"), ("orders", "2"), ("orders", "3"), ("members", "1")])


def test_a_stream_that_is_given_up_while_a_task_writes_costs_its_part_alone(stream, monkeypatch, shared_standin):
    # Rows of 1 KB each have a request of their own, and the second one comes late.
    opened = stream.committer._targets.open("staging.orders")
    written = replace(opened.writer(ROWS_SCHEMA), append_bytes=1500)
    values = [{"_message_id": letter * 1000} for letter in "ab"]
    rows = [pa.RecordBatch.from_pylist(values, arrow_schema(ROWS_SCHEMA))]
    before = written.write_rows(rows)
    shared_standin.fault("AppendRows", "delay", seconds=1.0, skip=1)
    confirm = ConnectionTurn.confirm

    def confirm_and_drop(turn):
        confirm(turn)
        monkeypatch.setattr(ConnectionTurn, "confirm", confirm)
        stream.committer._targets.drop("staging.orders", before)

    monkeypatch.setattr(ConnectionTurn, "confirm", confirm_and_drop)
    part = written.write_rows(rows)
    assert [(piece.first, piece.end) for piece in part.tables] == [(2, 3), (0, 1)]
    assert stream.committer._targets.which_follow([part]) == [False]
    stream.committer._targets.drop("staging.orders", part)
    again = written.write_rows(rows)
    assert [(piece.first, piece.end) for piece in again.tables] == [(0, 2)]
    assert stream.committer._targets.which_follow([again]) == [True]


def test_rows_of_a_table_that_were_flushed_before_another_stream_of_it_was_dropped_are_taken_out_again(
    stream, monkeypatch
):
    """A crash between two flushes, and nobody starts the stream again before BigQuery has forgotten the other."""
    tables = stream.committer._targets
    writers = [replace(tables.open("staging.orders").writer(ROWS_SCHEMA), run=run) for run in ("one", "two")]
    rows = [pa.RecordBatch.from_pylist([{"_message_id": n}], arrow_schema(ROWS_SCHEMA)) for n in ("1", "2")]
    parts = [found.write_rows([batch]) for found, batch in zip(writers, rows, strict=True)]
    ids = pa.table(
        {
            "topic": ["orders"] * 2,
            "message_id": ["1", "2"],
            "publish_time": [datetime.now(UTC)] * 2,
            "table": ["staging.orders"] * 2,
        }
    )
    with monkeypatch.context() as patched:
        patched.setattr("model.failpoint.hit", lambda name: name == "bigquery.flushed" and crash())
        with pytest.raises(KeyboardInterrupt):
            tables.commit({"staging.orders": parts}, 1, ids)
    assert stream.staged() == Counter([("orders", "1")])
    finalize_stream(tables._clients, parts[1].tables[0].stream)
    stream.start()
    assert stream.committer._targets.settle(1, ["staging.orders"]) == frozenset()
    assert stream.staged() == Counter()


@pytest.mark.timeout(180)
def test_a_round_over_300_tables_waits_for_no_quota_not_the_first_and_no_later_one(tmp_path, shared_standin):
    """Google's quota is 10,000 streams an hour; here only 700 are left of it."""
    tables = BigQueryStream(tmp_path, shared_standin).committer._targets
    schema = RowSchema((Field("id", "INT64"), Field("_message_id", "STRING"), Field("ingest_time", "TIMESTAMP")))
    names = [f"staging.t{number}" for number in range(300)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda name: tables.open(name).evolve(schema), names))
    writers = {name: tables.open(name).writer(schema) for name in names}
    shared_standin.allow_streams(700)
    rows = pa.RecordBatch.from_pylist([{"id": 1, "_message_id": "1", "ingest_time": None}], arrow_schema(schema))
    ids = pa.table({"topic": ["t"], "message_id": ["1"], "publish_time": [datetime.now(UTC)], "table": [names[0]]})
    for number in (1, 2, 3):
        started = time.monotonic()
        with ThreadPoolExecutor(16) as pool:
            parts = list(pool.map(lambda name: writers[name].write_rows([rows]), names))
        committed, failure = tables.commit(dict(zip(names, ([part] for part in parts), strict=True)), number, ids)
        assert (committed, failure) == (set(names), None)
        assert time.monotonic() - started + tables.quota_seconds(parts) < 60.0
    assert shared_standin.counts()["FlushRows"] == 900
    tables.close()


@pytest.mark.parametrize("place", ["after the note", "after one flush", "after one table's commit"])
def test_a_crash_leaves_each_message_in_its_table_once(stream, monkeypatch, place):
    batch = [pulled("orders", b"{}", b"nope"), pulled("members", b"{}")]
    with monkeypatch.context() as patched:
        if place == "after the note":
            patched.setattr(stream.committer._targets._attempts._driver, "drive", crash)
        else:
            name = "bigquery.flushed" if place == "after one flush" else "bigquery.committed"
            patched.setattr("model.failpoint.hit", lambda passed: passed == name and crash())
        with pytest.raises(KeyboardInterrupt):
            stream.batch(batch)
    assert stream.hold.acked == []
    stream.start()
    assert sorted(stream.hold.acked) == ["members-1", "orders-1", "orders-2"]
    assert len(stream.journal.entries(EntryState.RECOVERED)) == 1
    stream.batch(batch)
    assert stream.staged() == Counter([("orders", "1"), ("dead_letters", "2"), ("members", "1")])


def test_a_row_that_bigquery_refuses_for_good_is_a_dead_letter_and_the_others_go_on(
    stream, shared_standin, tmp_path
):
    path = f"projects/{stream.project}/datasets/staging/tables/orders"
    shared_standin.fault("AppendRows", "row_errors", rows=[1], resource=path)
    stream.batch([pulled("orders", b'{"id": 1}', b'{"id": 2}', b'{"id": 3}')])
    assert stream.staged() == Counter([("orders", "1"), ("orders", "3"), ("dead_letters", "2")])
    (letter,) = stream.rows("backup.dead_letters")
    assert (letter["data"], letter["error_code"], letter["source"]) == (b'{"id": 2}', "row_refused", "orders")
    assert letter["error_message"]
    assert sorted(stream.hold.acked) == ["orders-1", "orders-2", "orders-3"]
    status = StatusFile.read(tmp_path / "status.json")
    assert status["sources"]["orders"]["rows"] == {"staged": 2}
    assert status["sources"]["orders"]["refused"] == {"row_refused": 1}


def test_a_table_that_somebody_deletes_keeps_only_its_own_messages_back(stream, monkeypatch):
    tables = stream.committer._targets
    add_note = tables._attempts._add_note

    def delete_first(*given):
        stream.standin.client().delete_table(f"{stream.project}.staging.orders")
        add_note(*given)

    with monkeypatch.context() as patched:
        patched.setattr(tables._attempts, "_add_note", delete_first)
        with pytest.raises(WarehouseUnavailableError, match="orders"):
            stream.batch([pulled("orders", b"{}"), pulled("members", b"{}")])
    assert stream.hold.acked == ["members-1"]
    assert [row["_message_id"] for row in stream.rows("staging.members")] == ["1"]


def test_a_new_table_that_is_not_known_yet_keeps_only_its_own_messages_back(stream, tmp_path):
    stream.standin.delay_storage(tables=3600, only=f"{stream.project}.staging.orders")
    stream.batch([pulled("orders", b'{"id": 1}'), pulled("members", b'{"id": 1}')])
    assert stream.staged() == Counter([("members", "1")])
    assert stream.hold.acked == ["members-1"]
    status = StatusFile.read(tmp_path / "status.json")
    assert status["sources"]["orders"]["postponed"] == {"staging.orders": 1}
    assert status["sources"]["orders"]["rows"] == {"staged": 0}
    stream.standin.delay_storage()
    stream.batch([pulled("orders", b'{"id": 1}')])
    assert stream.staged() == Counter([("members", "1"), ("orders", "1")])


def test_new_columns_that_are_not_known_yet_keep_only_their_table_s_messages_back(stream, monkeypatch):
    stream.batch([pulled("orders", b'{"id": 1}')])
    # The writers have a column that the table has just got.
    stream.standin.delay_storage(columns=3600)
    table = stream.committer._targets.open("staging.orders")
    wider = RowSchema((*table.schema().fields, Field("more", "STRING")))
    table.evolve(wider)
    rows = pa.RecordBatch.from_pylist([{"id": 2, "_message_id": "2", "more": "x", "ingest_time": None}], ROWS)
    with pytest.raises(TableNotReadyError, match="its new columns"):
        table.writer(wider).write_rows([rows])
    # Columns that are unknown for long are a fault that does not pass.
    with monkeypatch.context() as patched:
        patched.setattr("connectors.bigquery.writes.write_streams._PASSES_AFTER", timedelta(0))
        with pytest.raises(WarehouseError, match="extra fields") as caught:
            table.writer(wider).write_rows([rows])
        assert not isinstance(caught.value, TableNotReadyError)
    stream.standin.delay_storage()
    assert table.writer(wider).write_rows([rows]).rows == 1


def narrow_table(stream):
    """A table with an INT64 column and a row that stays in the write buffer."""
    table = stream.committer._targets.open("staging.numbers")
    narrow = RowSchema((Field("n", "INT64"), Field("_message_id", "STRING"), Field("ingest_time", "TIMESTAMP")))
    table.evolve(narrow)
    stream.standin.hold_write_buffer(f"{stream.project}.staging.numbers")
    row = {"n": 1, "_message_id": "1", "ingest_time": None}
    stream.committer._targets.take("staging.numbers")
    stream.committer._targets.append("staging.numbers", pa.RecordBatch.from_pylist([row], arrow_schema(narrow)))
    return table, narrow


def test_an_integer_column_becomes_a_float_whatever_is_in_the_write_buffer(stream):
    table, narrow = narrow_table(stream)
    wider = RowSchema((Field("n", "FLOAT64"), *narrow.fields[1:], Field("more", "STRING")))
    table.widen(wider)
    assert table.schema() == wider
    assert [row["n"] for row in table.read_rows(["n"])] == [1.0]
    # Nothing was written again: the row is where it was.
    sql = f"SELECT COUNT(*) AS found FROM `{stream.project}.staging.numbers` WHERE _PARTITIONTIME IS NULL"
    assert [row["found"] for row in stream.standin.client().query_and_wait(sql)] == [1]
    table.widen(wider)
    row = {"n": 0.5, "_message_id": "2", "ingest_time": None, "more": None}
    stream.committer._targets.append("staging.numbers", pa.RecordBatch.from_pylist([row], arrow_schema(wider)))
    assert sorted(row["n"] for row in table.read_rows(["n"])) == [0.5, 1.0]


def test_a_column_becomes_a_text_and_any_value_while_the_write_buffer_is_never_empty(stream):
    table, narrow = narrow_table(stream)
    cells = ["1"]
    for kind, cell in (("STRING", "x"), ("JSON", '{"a":2}')):
        wider = RowSchema((Field("n", kind), *narrow.fields[1:], Field("more", "STRING")))
        for _ in range(2):
            table.widen(wider)
        assert table.schema() == wider
        row = {"n": cell, "_message_id": kind, "ingest_time": None, "more": "m"}
        stream.committer._targets.append("staging.numbers", pa.RecordBatch.from_pylist([row], arrow_schema(wider)))
        cells.append(cell)
        found = [row["n"] for row in table.read_rows(["n"])]
        # The number that became a text is a number again.
        expected = cells if kind == "STRING" else ["1", '"x"', '{"a":2}']
        assert sorted(cell.replace(" ", "") for cell in found) == sorted(expected)
    # No row was written again: all are where they were.
    sql = f"SELECT COUNT(*) AS found FROM `{stream.project}.staging.numbers` WHERE _PARTITIONTIME IS NULL"
    assert [row["found"] for row in stream.standin.client().query_and_wait(sql)] == [3]


def test_rows_that_are_committed_after_a_column_became_wider_are_not_lost(stream):
    table, narrow = narrow_table(stream)
    stream.standin.release_write_buffer(f"{stream.project}.staging.numbers")
    wider = RowSchema((Field("n", "STRING"), *narrow.fields[1:]))
    table.widen(wider)
    row = {"n": "x", "_message_id": "2", "ingest_time": None}
    stream.committer._targets.append("staging.numbers", pa.RecordBatch.from_pylist([row], arrow_schema(wider)))
    assert sorted(row["n"] for row in table.read_rows(["n"])) == ["1", "x"]


def test_a_table_that_would_have_more_columns_than_bigquery_takes_stays_as_it_is(stream, monkeypatch):
    table, narrow = narrow_table(stream)
    monkeypatch.setattr("connectors.bigquery.tables.evolution._MAX_COLUMNS", len(narrow.fields))
    with pytest.raises(EvolutionRefusedError, match="would have 4 columns"):
        table.widen(RowSchema((Field("n", "STRING"), *narrow.fields[1:])))
    assert table.schema() == narrow


def test_columns_that_a_table_does_not_have_are_no_delay(stream):
    table = stream.committer._targets.open("staging.orders")
    rows = pa.RecordBatch.from_pylist([{"id": 2, "_message_id": "2", "more": "x", "ingest_time": None}], ROWS)
    with pytest.raises(WarehouseError, match="extra fields") as caught:
        table.writer(table.schema()).write_rows([rows])
    assert not isinstance(caught.value, TableNotReadyError)
    assert caught.value.details["storage_code"] == "SCHEMA_MISMATCH_EXTRA_FIELDS"


def new_streams(count: int) -> list[BigQueryRowPart]:
    return [BigQueryRowPart(1, "", (PendingRows("t", f"stream-{number}", None, 0, 1),)) for number in range(count)]


def test_a_batch_whose_streams_are_too_many_for_the_hour_is_waited_after_unless_the_stream_drains(
    tmp_path, shared_standin
):
    stream = BigQueryStream(tmp_path, shared_standin, REFEED_BIGQUERY_STREAMS_PER_HOUR="60")
    tables = stream.committer._targets
    # A quarter of an hour's streams may be created at once, the others come one in 80 seconds.
    assert tables.quota_seconds(new_streams(15)) < 1.0
    assert tables.quota_seconds(new_streams(1)) == pytest.approx(80.0, abs=2.0)
    stream.committer.stop_file = tmp_path / "stop"
    stream.committer.stop_file.touch()
    started = time.monotonic()
    stream.committer._wait_until(time.monotonic() + tables.quota_seconds(new_streams(30)))
    assert time.monotonic() - started < 60.0
    for opened in stream.opened:
        opened.close()


def test_the_staging_of_an_inferred_source_is_the_tables_of_its_own_types(stream):
    Registry(stream.settings.registry).publish({"sources.yaml": HOOKS.encode()})
    topics = StagedTopics(stream.settings, open_warehouse(stream.settings))
    assert topics("hooks")._tables == ()
    # The name of another source's table begins with this one's too.
    note_types(
        stream.settings,
        ("hooks", "staging.hooks_push"),
        ("hooks", "staging.hooks"),
        ("hooks_x", "staging.hooks_x"),
    )
    found = [str(table) for table in topics("hooks")._tables]
    assert found == [f"{stream.project}.staging.hooks", f"{stream.project}.staging.hooks_push"]
