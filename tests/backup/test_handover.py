"""Which batch waits for which, and where an error comes out; the archiver is the test's own."""

import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pyarrow as pa
import pytest

from backup.handover import Handover
from connectors.pubsub.source import TaskResult
from model.errors import WarehouseUnavailableError
from streams.status import StatusFile


class SlowArchiver:
    """Archives a batch, which is a number here, once the test lets it."""

    def __init__(self, status) -> None:
        self.status = status
        self.began: list[int] = []
        self.archived: list[int] = []
        self.held: list[int] = []
        self.given_up: list[int] = []
        self.go_on = threading.Semaphore(0)
        self.failures: dict[int, Exception] = {}

    def open_batch(self, rows):
        return rows[0].slot

    def hold(self, batch):
        self.held.append(batch)
        return nullcontext()

    def give_up(self, batch):
        self.given_up.append(batch)

    def archive_batch(self, batch):
        self.began.append(batch)
        assert self.go_on.acquire(timeout=30)
        if batch in self.failures:
            raise self.failures[batch]
        self.archived.append(batch)


@pytest.fixture
def archiver(tmp_path):
    return SlowArchiver(StatusFile(tmp_path / "status.json"))


@pytest.fixture
def handover(archiver):
    with Handover(archiver) as found:
        yield found
        archiver.go_on.release(10)


def results(number: int) -> SimpleNamespace:
    row = TaskResult(number, None, None, "{}")
    return SimpleNamespace(toArrow=lambda: pa.Table.from_pylist([row._asdict()]))


def test_the_next_batch_is_pulled_while_the_last_is_archived_and_then_waits_for_it(handover, archiver):
    handover.take_batch(results(1), 0)
    assert archiver.archived == []
    second = threading.Thread(target=handover.take_batch, args=(results(2), 1), daemon=True)
    second.start()
    second.join(0.2)
    assert second.is_alive()
    assert archiver.held == [2], "its leases are not kept while it waits"
    archiver.go_on.release()
    second.join(30)
    assert archiver.archived == [1]
    archiver.go_on.release()
    handover.finish()
    assert archiver.archived == archiver.began == [1, 2]


def test_an_error_ends_the_query_at_the_next_batch_which_is_given_up(handover, archiver):
    archiver.failures[1] = WarehouseUnavailableError("not now")
    archiver.go_on.release()
    handover.take_batch(results(1), 0)
    with pytest.raises(WarehouseUnavailableError):
        handover.take_batch(results(2), 1)
    assert isinstance(handover.failure, WarehouseUnavailableError)
    assert (archiver.given_up, archiver.archived) == ([2], [])


def test_after_an_error_the_next_query_begins_anew(handover, archiver):
    archiver.failures[1] = WarehouseUnavailableError("not now")
    archiver.go_on.release(2)
    handover.take_batch(results(1), 0)
    with pytest.raises(WarehouseUnavailableError):
        handover.take_batch(results(2), 1)
    handover.take_batch(results(3), 2)
    handover.finish()
    assert handover.failure is None
    assert archiver.archived == [3]


def test_an_error_of_the_last_batch_comes_out_when_the_stream_drains(handover, archiver):
    archiver.failures[1] = WarehouseUnavailableError("not now")
    archiver.go_on.release()
    handover.take_batch(results(1), 0)
    with pytest.raises(WarehouseUnavailableError):
        handover.finish()
    handover.finish()
