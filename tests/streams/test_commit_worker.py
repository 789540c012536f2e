"""Which batch waits for which, and where an error comes out; the committer is the test's own."""

import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from connectors.pubsub.source import TaskResult
from model.errors import WarehouseUnavailableError
from streams import commit_worker
from streams.commit_worker import CommitWorker
from streams.status import StatusFile


class Number(int):
    """A batch, which is a number here."""

    keeps_the_next = False

    def ids(self) -> pa.Table:
        """As many messages as its number is."""
        return pa.table({"ack_id": ["a"] * self})


class SlowCommitter:
    """Commits a batch once the test lets it."""

    def __init__(self, status) -> None:
        self.status = status
        self.began: list[int] = []
        self.committed: list[int] = []
        self.held: list[int] = []
        self.given_up: list[int] = []
        self.given_back: list[int] = []
        self.turn = threading.Lock()
        self.go_on = threading.Semaphore(0)
        self.failures: dict[int, Exception] = {}

    def open_batch(self, rows):
        return Number(rows[0].slot)

    def hold(self, batch):
        self.held.append(batch)
        return nullcontext()

    def give_up(self, batch):
        self.given_up.append(batch)

    def give_back(self, batch):
        self.given_back.append(batch)
        return int(batch)

    def commit_batch(self, batch):
        self.began.append(batch)
        assert self.go_on.acquire(timeout=30)
        if batch in self.failures:
            raise self.failures[batch]
        self.committed.append(batch)


@pytest.fixture
def committer(tmp_path):
    return SlowCommitter(StatusFile(tmp_path / "status.json"))


@pytest.fixture
def worker(committer, monkeypatch):
    # A test that fails must not end the tests' own process.
    monkeypatch.setattr(commit_worker, "end_process", lambda: None)
    with CommitWorker(committer) as found:
        yield found
        committer.go_on.release(10)


def results(number: int) -> SimpleNamespace:
    row = TaskResult(number, None, None, "{}")
    return SimpleNamespace(toArrow=lambda: pa.Table.from_pylist([row._asdict()]))


def test_a_worker_that_is_abandoned_between_commits_ends_no_process(committer, monkeypatch):
    ended: list[bool] = []
    monkeypatch.setattr(commit_worker, "end_process", lambda: ended.append(True))
    with CommitWorker(committer) as worker:
        worker.abandon()
    assert ended == []


def test_the_next_batch_is_pulled_while_the_last_is_committed_and_then_waits_for_it(worker, committer):
    worker.take_batch(results(1), 0)
    assert committer.committed == []
    second = threading.Thread(target=worker.take_batch, args=(results(2), 1), daemon=True)
    second.start()
    second.join(0.2)
    assert second.is_alive()
    assert committer.held == [2], "its leases are not kept while it waits"
    committer.go_on.release()
    second.join(30)
    assert committer.committed == [1]
    committer.go_on.release()
    worker.finish()
    assert committer.committed == committer.began == [1, 2]


def test_a_batch_that_keeps_the_next_is_settled_before_spark_begins_another(worker, committer, monkeypatch):
    monkeypatch.setattr(Number, "keeps_the_next", True)
    first = threading.Thread(target=worker.take_batch, args=(results(1), 0), daemon=True)
    first.start()
    first.join(0.2)
    assert first.is_alive()
    committer.go_on.release()
    first.join(30)
    assert committer.committed == [1]


def test_an_error_ends_the_query_at_the_next_batch_which_is_given_up(worker, committer):
    committer.failures[1] = WarehouseUnavailableError("not now")
    committer.go_on.release()
    worker.take_batch(results(1), 0)
    with pytest.raises(WarehouseUnavailableError):
        worker.take_batch(results(2), 1)
    assert isinstance(worker.failure, WarehouseUnavailableError)
    assert (committer.given_up, committer.committed) == ([2], [])


def test_after_an_error_the_next_query_begins_anew(worker, committer):
    committer.failures[1] = WarehouseUnavailableError("not now")
    committer.go_on.release(2)
    worker.take_batch(results(1), 0)
    with pytest.raises(WarehouseUnavailableError):
        worker.take_batch(results(2), 1)
    worker.take_batch(results(3), 2)
    worker.finish()
    assert worker.failure is None
    assert committer.committed == [3]


def test_an_error_of_the_last_batch_comes_out_when_the_stream_drains(worker, committer):
    committer.failures[1] = WarehouseUnavailableError("not now")
    committer.go_on.release()
    worker.take_batch(results(1), 0)
    with pytest.raises(WarehouseUnavailableError):
        worker.finish()
    worker.finish()


def test_an_abandoned_stream_gives_back_the_batch_that_waits_and_each_that_comes(worker, committer):
    worker.take_batch(results(5), 0)
    second = threading.Thread(target=worker.take_batch, args=(results(7), 1), daemon=True)
    second.start()
    second.join(0.1)
    assert (second.is_alive(), worker.count_left()) == (True, 5)
    worker.abandon()
    second.join(30)
    worker.take_batch(results(9), 2)
    worker.finish()
    assert (committer.given_back, committer.given_up) == ([7, 9], [])
    assert (worker.wait_for_commit(seconds=0.0), worker.count_left()) == (False, 5 + 7 + 9)
    # What was under way ends well within the grace: its messages are not among those that are left.
    committer.go_on.release()
    assert worker.wait_for_commit(seconds=30)
    assert (committer.committed, worker.count_left()) == ([5], 7 + 9)


def test_a_batch_that_fails_while_its_stream_is_abandoned_is_left(worker, committer):
    committer.failures[5] = WarehouseUnavailableError("not now")
    worker.take_batch(results(5), 0)
    worker.abandon()
    committer.go_on.release()
    assert worker.wait_for_commit(seconds=30)
    assert (worker.count_left(), worker.failure) == (5, None)


def test_a_batch_that_waits_while_the_stream_lets_go_is_given_back(committer):
    with CommitWorker(committer) as worker:
        worker.take_batch(results(5), 0)
        second = threading.Thread(target=worker.take_batch, args=(results(7), 1), daemon=True)
        second.start()
        second.join(0.1)
        threading.Timer(0.2, committer.go_on.release).start()
    second.join(30)
    assert (committer.committed, committer.given_back) == ([5], [7])


def test_nothing_is_committed_after_the_stream_has_let_go(committer):
    with CommitWorker(committer) as worker:
        worker.take_batch(results(5), 0)
        committer.go_on.release(10)
    worker.take_batch(results(7), 1)
    assert (committer.committed, committer.given_back, worker.wait_for_commit(seconds=0.0)) == ([5], [7], True)


HANGING = """
import sys, threading
from pathlib import Path
from tests.streams.test_commit_worker import SlowCommitter, results
from streams.commit_worker import CommitWorker
from streams.status import StatusFile

with CommitWorker(SlowCommitter(StatusFile(Path(sys.argv[1]) / "status.json"))) as worker:
    worker.take_batch(results(5), 0)
    if sys.argv[2] == "abandon":
        worker.abandon()
        print(worker.wait_for_commit(seconds=0.1), worker.count_left(), flush=True)
print("not reached")
"""


def test_a_commit_that_hangs_does_not_keep_an_abandoned_stream_s_process(tmp_path):
    """The process ends as a kill would end it, so that nothing is acknowledged or given away meanwhile."""
    ended = subprocess.run(
        [sys.executable, "-c", HANGING, str(tmp_path), "abandon"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "False 5\n", "")
