import random

import pyarrow as pa
import pytest

from model.errors import StorageFullError
from streams import spool as spool_module
from streams.spool import IdSpool

SCHEMA = pa.schema([("message_id", pa.string()), ("publish_time", pa.timestamp("us", tz="UTC"))])


def batch(first: int, times: list[int | None]) -> pa.RecordBatch:
    ids = [str(first + place) for place in range(len(times))]
    return pa.record_batch([pa.array(ids), pa.array(times, SCHEMA.field(1).type)], schema=SCHEMA)


def spans(tables) -> list[tuple[int, int]]:
    times = [[moment.value for moment in table.column("publish_time")] for table in tables]
    return [(min(found), max(found)) for found in times]


def test_rows_come_back_once_in_tables_whose_spans_hardly_overlap(tmp_path, monkeypatch):
    monkeypatch.setattr(spool_module, "TABLE_ROWS", 500)
    monkeypatch.setattr(spool_module, "_HELD_ROWS", 1_000)
    dice = random.Random(1)
    with IdSpool(tmp_path / "ids", SCHEMA, first=0, last=10**9, check_room=lambda: None) as spool:
        # Out of any order; some before and after the time that was expected.
        for first in range(0, 20_000, 100):
            spool.add(batch(first, [dice.randrange(-(10**8), 11 * 10**8) for _ in range(100)]))
        tables = list(spool.tables())
    assert sorted(int(i) for table in tables for i in table.column("message_id").to_pylist()) == list(
        range(20_000)
    )
    assert max(table.num_rows for table in tables) == 500
    lengths = [last - first for first, last in spans(tables)]
    # Forty tables share the whole time, a bucket's width more or less.
    assert max(lengths) < 12 * 10**8 / len(tables) * 1.5


def test_a_moment_in_which_most_was_published_is_divided_again(tmp_path, monkeypatch):
    monkeypatch.setattr(spool_module, "TABLE_ROWS", 100)
    monkeypatch.setattr(spool_module, "_HELD_ROWS", 200)
    with IdSpool(tmp_path / "ids", SCHEMA, first=0, last=10**12, check_room=lambda: None) as spool:
        for first in range(0, 2_000, 100):
            spool.add(batch(first, [(first + n) * 7 % 2_000 for n in range(100)]))
        # As many at one time as no division takes apart.
        spool.add(batch(5_000, [3] * 250))
        tables = list(spool.tables())
        assert sum(table.num_rows for table in tables) == 2_250
        assert max(table.num_rows for table in tables) == 100
        assert max(last - first for first, last in spans(tables)) < 200
    assert list(tmp_path.iterdir()) == []


def test_a_row_without_a_time_is_left_out(tmp_path):
    with IdSpool(tmp_path / "ids", SCHEMA, first=0, last=1, check_room=lambda: None) as spool:
        spool.add(batch(1, [None, 1]))
        (table,) = spool.tables()
    assert table.column("message_id").to_pylist() == ["2"]


def test_nothing_is_written_where_there_is_no_room_and_nothing_stays(tmp_path):
    def refuse():
        raise StorageFullError

    with IdSpool(tmp_path / "ids", SCHEMA, first=0, last=1, check_room=refuse) as spool:
        spool.add(batch(1, [1]))
        with pytest.raises(StorageFullError):
            list(spool.tables())
    assert list(tmp_path.iterdir()) == []
