"""What is sent of an outbox, again and at which place, without a BigQuery: the answers are the test's own."""

import threading

import pyarrow as pa
import pytest

from connectors.bigquery.writes.append_queue import AppendQueue
from model.errors import WarehouseError

SECONDS = 60.0


def rows(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": list(range(count))})


def filled(*counts: int) -> AppendQueue:
    outbox = AppendQueue()
    for count in counts:
        outbox.put(rows(count))
    outbox.close()
    return outbox


def offsets(turn) -> list[int]:
    return [request.offset for request in turn]


def test_a_connection_that_was_replaced_is_given_nothing_more():
    outbox = filled(2, 3)
    old = iter(outbox.begin_turn(0, seconds=SECONDS))
    next(old)
    assert offsets(outbox.begin_turn(0, seconds=SECONDS)) == [0, 2]
    assert list(old) == []


def test_a_connection_takes_nothing_new_once_its_time_is_over_and_the_next_one_does():
    outbox = AppendQueue()
    outbox.put(rows(2))
    turn = outbox.begin_turn(0, seconds=0)
    assert offsets(turn) == [0]
    turn.confirm()
    assert turn.is_over()
    outbox.put(rows(3))
    outbox.close()
    assert offsets(turn) == []
    assert offsets(outbox.begin_turn(2, seconds=SECONDS)) == [2]


def test_an_answer_to_nothing_is_an_error():
    turn = filled(2).begin_turn(0, seconds=SECONDS)
    with pytest.raises(WarehouseError):
        turn.answered()


def test_whoever_puts_too_much_waits_for_answers_and_hears_of_a_failure():
    outbox = AppendQueue(max_bytes=rows(4).nbytes)
    outbox.put(rows(4))
    added, failed = threading.Event(), threading.Event()

    def put() -> None:
        outbox.put(rows(4))
        added.set()
        try:
            outbox.put(rows(4))
        except WarehouseError:
            failed.set()

    producer = threading.Thread(target=put, daemon=True)
    producer.start()
    turn = outbox.begin_turn(0, seconds=SECONDS)
    sent = iter(turn)
    next(sent)
    assert not added.is_set()
    turn.confirm()
    assert added.wait(30), "an answer made no room"
    assert not failed.is_set()
    outbox.fail(WarehouseError("no more"))
    assert failed.wait(30), "the failure did not reach the one who puts"
    producer.join(30)
