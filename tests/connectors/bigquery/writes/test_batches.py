"""Batches on their way into append requests."""

import pyarrow as pa

from connectors.bigquery.writes.batches import (
    ARCHIVE_SCHEMA,
    DEAD_LETTER_SCHEMA,
    RefusedRow,
    archive_batch,
    cut,
    dead_letter_batch,
)
from tests.connectors.bigquery.conftest import NOW

LIMIT = 100_000


def ids(batches) -> list[str]:
    return [i for batch in batches for i in batch.column("message_id").to_pylist()]


def test_small_batches_are_joined_and_large_ones_cut_and_no_row_is_lost_or_moved(messages):
    batches = [archive_batch("t", "s", messages(b"x" * 10, first=n), NOW) for n in range(50)]
    batches.append(archive_batch("t", "s", messages(*[b"y" * 30_000] * 10, first=50), NOW))
    fitting, large = cut(batches, LIMIT)
    assert large == []
    assert len(fitting) < 20
    assert all(len(batch.serialize()) <= LIMIT + 4096 for batch in fitting)
    assert ids(fitting) == [str(n) for n in range(60)]


def test_payloads_are_the_pulled_buffers_themselves(messages):
    rows = messages(b"abc", b"def")
    made = archive_batch("orders", "s", rows, NOW)
    assert made.schema == ARCHIVE_SCHEMA
    assert made.column("data").buffers()[2].address == rows.column("data").buffers()[2].address


def test_a_dead_letter_gives_its_row_back_bit_for_bit(messages):
    row = archive_batch("orders", "s", messages(b"\x00\xff", b"b"), NOW).slice(0, 1)
    dead = dead_letter_batch([RefusedRow(row, "no good")], NOW)
    assert dead.schema == DEAD_LETTER_SCHEMA
    assert dead.column("message_id").to_pylist() == ["1"]
    assert dead.column("reason").to_pylist() == ["no good"]
    found = pa.ipc.open_stream(dead.column("row")[0].as_py()).read_all()
    assert found.to_pylist() == row.to_pylist()
