"""Which end of a query is the stream's end, and which is only a reason to begin again."""

import os
import signal
import threading

import pytest

from model.errors import LeaseLostError, RefeedError, WarehouseError, WarehouseUnavailableError
from streams import orders as orders_module
from streams import run as run_module
from streams.control import BatchPace, ControlFile, StreamControl
from streams.orders import Orders
from streams.run import RunningQuery, StreamEnd, run_until_stopped
from streams.status import StatusFile
from tests.waiting import wait_until


class Sink:
    """Holds ``left`` messages that are not committed; its commit under way ends when it is told to."""

    def __init__(self, status, failure=None):
        self.status = status
        self.failure = failure
        self.left = 0
        self.is_committing = False
        self.last: RefeedError | None = None
        self.calls: list[str] = []

    def finish(self):
        if self.last is not None:
            raise self.last

    def pause(self):
        self.calls.append("pause")
        return not self.is_committing

    def resume(self):
        self.calls.append("resume")

    def abandon(self):
        self.calls.append("abandon")

    def wait_for_commit(self, *, seconds):
        return not self.is_committing

    def count_left(self):
        return self.left


class Query:
    """A query that is active for so many ``looks`` at it, then has ended for ``reason``."""

    def __init__(self, reason, *, looks=0):
        self.reason = reason
        self.looks = looks

    @property
    def isActive(self):  # noqa: N802 - Spark's name
        self.looks -= 1
        return self.looks >= 0

    def exception(self):
        return self.reason


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return what runs a stream whose queries end for these reasons; it returns how many were started."""
    monkeypatch.setattr(run_module, "_RETRY_SECONDS", 0.0)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def start(*reasons, failure=None, looks=0):
        queries = iter(reasons)
        started = []
        sink = Sink(StatusFile(tmp_path / "status.json"), failure)

        def start_query(pace):
            sink.failure = failure if not started else None
            started.append(Query(next(queries), looks=looks))
            return RunningQuery(started[-1], tmp_path / "stop", pace)

        with pytest.raises(RefeedError, match="ended by itself: broken"):
            run_until_stopped(start_query, name="stream", sink=sink, orders=Orders(None))
        return len(started)

    yield start
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_a_query_that_ends_by_itself_ends_the_stream(run):
    assert run("broken") == 1


def test_a_worker_that_a_busy_machine_starts_too_late_only_begins_the_query_anew(run):
    assert run("... Python worker failed to connect back. ...", "broken") == 2


def test_a_fault_that_passes_only_begins_the_query_anew(run):
    assert run("what Spark makes of it", "broken", failure=WarehouseUnavailableError("not now")) == 2


def test_a_stream_without_batches_goes_on_saying_that_it_lives(run, tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(orders_module, "WATCH_SECONDS", 0.0)
    monkeypatch.setattr(run_module, "WATCH_SECONDS", 0.0)
    monkeypatch.setattr(run_module, "_TELL_SECONDS", 0.0)
    monkeypatch.setattr(StatusFile, "write", lambda _, **fields: written.append(fields))
    run("broken", looks=3)
    assert written[:-1] == [{"state": "running", "control_number": 0}, {}, {}, {}]


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (LeaseLostError("Another stream took over."), "Another stream took over."),
        (WarehouseError("Could not convert 'card 4111'"), "The job's log has the engine's own error."),
        (RefeedError("SparkException: card 4111"), "Its log has Spark's own error."),
    ],
)
def test_a_stream_that_a_fault_ends_says_so_without_quoting_a_message(drain, tmp_path, failure, message):
    with pytest.raises(type(failure)):
        drain(before=failure)
    status = StatusFile.read(tmp_path / "status.json")
    assert (status["state"], status["error"]["code"]) == ("failed", failure.code)
    assert status["error"]["message"].endswith(message)
    assert "4111" not in status["error"]["message"]


class DrainedQuery(Query):
    """A query that ends only when it drains, with its last batch, which may fail."""

    def __init__(self, fail=None):
        super().__init__("what Spark makes of it", looks=100)
        self.fail = fail

    def processAllAvailable(self):  # noqa: N802 - Spark's name
        if self.fail is not None:
            self.looks = 0
            self.fail()
            raise ValueError("what Spark makes of it")

    def stop(self):
        self.looks = 0


@pytest.fixture
def drain(tmp_path, monkeypatch):
    """Return what drains a stream whose query, or whose last batch in hand, fails so; it returns the end."""
    monkeypatch.setattr(run_module, "_RETRY_SECONDS", 0.0)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def start(*, query=None, before=None, last=None):
        sink = Sink(StatusFile(tmp_path / "status.json"), before)
        sink.last = last

        def fail_query():
            sink.failure = query

        def start_query(pace):
            os.kill(os.getpid(), signal.SIGTERM)
            drained = DrainedQuery(fail_query if query else None)
            found = drained if before is None else Query("what Spark makes of it")
            return RunningQuery(found, tmp_path / "stop", pace)

        return run_until_stopped(start_query, name="stream", sink=sink, orders=Orders(None))

    yield start
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_a_stream_that_drains_ends_well_when_its_last_batch_does(drain):
    end = drain()
    assert (end.status["state"], end.is_over, end.failure) == ("stopped", True, None)


@pytest.mark.parametrize("where", ["query", "before", "last"])
def test_a_batch_that_fails_while_the_stream_drains_is_the_streams_end(drain, where):
    """Whether it passes or not: its messages are not acknowledged and nobody starts the query again."""
    failure = WarehouseUnavailableError("not now")
    end = drain(**{where: failure})
    assert end.failure is failure
    assert (end.status["state"], end.status["error"]["code"]) == ("stopped", "warehouse_unavailable")


class LiveQuery:
    """A query that runs until it is stopped; ``drained`` is when its last batch is done."""

    def __init__(self):
        self.isActive = True
        self.drained = threading.Event()
        self.drained.set()

    def processAllAvailable(self):  # noqa: N802 - Spark's name
        assert self.drained.wait(30), "the test lets it end"

    def stop(self):
        self.isActive = False


class Steered:
    """A stream that takes orders, in a thread; its queries run until they are stopped."""

    def __init__(self, folder):
        self.control = folder / "control.json"
        self.path = folder / "status.json"
        self.sink = Sink(StatusFile(self.path))
        self.paces: list[BatchPace] = []
        self.queries: list[LiveQuery] = []
        self.watched = 0
        self.ends: list[StreamEnd] = []
        self.is_slow = False
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        orders = Orders(ControlFile(self.control))
        end = run_until_stopped(self._start_query, name="stream", sink=self.sink, orders=orders, watch=self._watch)
        self.ends.append(end)

    def _start_query(self, pace):
        self.paces.append(pace)
        query = LiveQuery()
        if self.is_slow:
            query.drained.clear()
        self.queries.append(query)
        return RunningQuery(query, self.path.with_name("stop"), pace)

    def _watch(self):
        self.watched += 1

    def order(self, number, order, **fields):
        StreamControl(number, order, **fields).write(self.control)

    def status(self):
        return StatusFile.read(self.path) or {}

    def wait_for(self, state, number):
        wait_until(
            lambda: (self.status().get("state"), self.status().get("control_number")) == (state, number),
            f"{state} by order {number}",
        )
        return self.status()

    def end(self):
        self.thread.join(30)
        assert not self.thread.is_alive(), "it ended"
        return self.ends[0].status


@pytest.fixture
def steered(tmp_path, monkeypatch):
    monkeypatch.setattr(orders_module, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(run_module, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(run_module, "_TELL_SECONDS", 0.02)
    monkeypatch.setattr(run_module, "_ABANDON_SECONDS", 0.1)
    # Only the main thread of a process may set handlers.
    monkeypatch.setattr(orders_module.signal, "signal", lambda *_: None)
    steered = Steered(tmp_path)
    yield steered
    steered.order(1_000, "cancel")
    for query in steered.queries:
        query.drained.set()
    steered.thread.join(30)


def test_a_drain_that_ends_in_time_leaves_nothing(steered):
    steered.thread.start()
    steered.order(1, "drain", timeout_seconds=60)
    status = steered.end()
    assert (status["state"], status["not_committed"], status["error"]) == ("stopped", 0, None)
    assert (status["control_number"], steered.ends[0].is_over) == (1, True)
    assert steered.sink.calls == []


def test_a_drain_that_takes_too_long_ends_with_what_it_left(steered):
    steered.is_slow = True
    steered.thread.start()
    steered.wait_for("running", 0)
    steered.order(1, "drain", timeout_seconds=0.05)
    wait_until(lambda: "abandon" in steered.sink.calls, "its bound is over")
    steered.sink.left = 1_234
    steered.queries[0].drained.set()
    status = steered.end()
    assert (status["state"], status["not_committed"]) == ("stopped", 1_234)
    assert status["error"] == {
        "code": "drain_timed_out",
        "message": "1,234 messages were not committed within the timeout of the drain (0.05 s). "
        "Pub/Sub delivers them again.",
    }


def test_what_tasks_hold_at_the_end_is_unknown_and_spark_is_not_waited_for(steered):
    steered.is_slow = True
    steered.thread.start()
    steered.wait_for("running", 0)
    steered.order(1, "drain", timeout_seconds=0)
    status = steered.end()
    assert (status["state"], status["not_committed"], steered.ends[0].is_over) == ("stopped", None, False)
    assert status["error"]["code"] == "drain_timed_out"


def test_a_drain_without_a_bound_is_waited_for_until_a_cancel(steered):
    steered.is_slow = True
    steered.thread.start()
    steered.wait_for("running", 0)
    steered.order(1, "drain")
    wait_until(lambda: steered.status()["state"] == "draining", "it drains")
    steered.order(2, "run")
    steered.order(3, "pause")
    before = steered.status()["at"]
    wait_until(lambda: steered.status()["at"] > before, "it says meanwhile that it lives")
    assert (steered.sink.calls, steered.thread.is_alive()) == ([], True), "what ends never runs again"
    steered.order(4, "cancel")
    status = steered.end()
    assert (status["state"], status["control_number"], status["not_committed"]) == ("cancelled", 4, None)


def test_a_cancel_ends_the_stream_at_once_and_counts_what_it_held(steered):
    steered.sink.left = 7
    steered.thread.start()
    steered.wait_for("running", 0)
    steered.order(1, "cancel")
    status = steered.end()
    assert (status["state"], status["not_committed"]) == ("cancelled", 7)
    assert steered.sink.calls == ["abandon"]


def test_an_order_that_came_before_the_start_is_carried_out(steered):
    steered.order(1, "drain", timeout_seconds=60)
    steered.thread.start()
    assert (steered.end()["state"], steered.queries) == ("stopped", [])


def test_a_pause_begins_between_two_commits_and_nothing_is_watched_meanwhile(steered):
    steered.sink.is_committing = True
    steered.thread.start()
    steered.order(1, "pause", timeout_seconds=60)
    wait_until(lambda: len(steered.sink.calls) > 2, "it is tried")
    assert steered.status()["state"] == "running"
    steered.sink.is_committing = False
    steered.wait_for("paused", 1)
    watched, before = steered.watched, steered.status()["at"]
    wait_until(lambda: steered.status()["at"] > before, "it says meanwhile that it lives")
    assert steered.watched == watched
    steered.order(2, "run")
    steered.wait_for("running", 2)
    assert (steered.sink.calls[-1], len(steered.queries)) == ("resume", 1), "the query goes on"


def test_a_pause_that_nobody_ends_is_over_after_its_bound(steered):
    steered.thread.start()
    steered.order(1, "pause", timeout_seconds=0.1)
    wait_until(lambda: "resume" in steered.sink.calls, "it goes on by itself")
    steered.wait_for("running", 1)
    assert steered.sink.calls == ["pause", "resume"], "and is not paused again"


@pytest.mark.parametrize("order", ["drain", "cancel"])
def test_a_stream_that_is_paused_can_be_ended(steered, order):
    steered.thread.start()
    steered.order(1, "pause")
    steered.wait_for("paused", 1)
    steered.order(2, order)
    assert steered.end()["state"] == ("stopped" if order == "drain" else "cancelled")
    assert steered.sink.calls[:2] == ["pause", "resume"], "a commit that waits its turn gets it"


def test_another_pace_begins_the_query_again_in_the_same_process(steered):
    steered.thread.start()
    steered.wait_for("running", 0)
    steered.order(1, "run", batch_seconds=2.5, batch_bytes=1_000)
    steered.wait_for("running", 1)
    assert steered.paces == [BatchPace(), BatchPace(2.5, 1_000)]
    assert [query.isActive for query in steered.queries] == [False, True]
    # The same pace under another number begins nothing.
    steered.order(2, "run", batch_seconds=2.5, batch_bytes=1_000)
    steered.wait_for("running", 2)
    assert (len(steered.queries), steered.sink.calls, steered.ends) == (2, [], [])


def test_a_stream_that_waits_for_a_passing_fault_drains_at_once(steered, monkeypatch):
    monkeypatch.setattr(run_module, "_RETRY_SECONDS", 60.0)

    def fail(*_):
        raise WarehouseUnavailableError("not now")

    monkeypatch.setattr(steered, "_start_query", fail)
    steered.thread.start()
    wait_until(lambda: steered.status().get("state") == "waiting", "it waits")
    steered.order(1, "cancel")
    assert steered.end()["state"] == "cancelled"
