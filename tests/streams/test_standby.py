"""A start that is ready and owns nothing, until it is ordered to run or to end."""

import signal
import threading
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from model.errors import CheckpointCorruptError, LeaseHeldError
from streams import orders as orders_module
from streams import standby
from streams.control import BatchPace, ControlFile, StreamControl
from streams.lease import lock_home
from streams.orders import Orders
from streams.queries import StreamQueries
from streams.standby import take_over, wait_as_standby
from streams.status import StatusFile
from tests.waiting import wait_until


class Queries:
    """Queries that pull nothing; the first one is warm when the test says so."""

    def __init__(self):
        self.is_warm = threading.Event()
        self.held: list[BatchPace] = []

    def hold(self, pace):
        self.held.append(pace)


class Start:
    """A start whose first order is to stand by, waiting in a thread."""

    def __init__(self, folder):
        self.path = folder / "control.json"
        self.order(1, "stand_by", batch_seconds=2.5)
        self.status = StatusFile(folder / "status.json")
        self.orders = Orders(ControlFile(self.path))
        self.queries = Queries()
        self.answers: list[bool] = []
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def order(self, number, order, **fields):
        StreamControl(number, order, **fields).write(self.path)

    def _run(self):
        self.answers.append(wait_as_standby(self.orders, self.status, self.queries))  # type: ignore[arg-type]

    def wait_for_state(self, state):
        wait_until(lambda: self.status.fields()["state"] == state, f"it is {state}")

    def end(self):
        self.thread.join(30)
        assert not self.thread.is_alive(), "it ended"
        return self.answers[0]


@pytest.fixture
def start(tmp_path, monkeypatch):
    monkeypatch.setattr(standby, "_TELL_SECONDS", 0.01)
    # Only the main thread of a process may set handlers.
    monkeypatch.setattr(orders_module.signal, "signal", lambda *_: None)
    start = Start(tmp_path)
    yield start
    start.order(1_000, "cancel")
    start.thread.join(30)


def test_a_batch_that_fails_warms_nothing(tmp_path):
    def fail():
        raise ZeroDivisionError

    spark = SimpleNamespace(dataSource=SimpleNamespace(register=lambda _: None))
    folder, query = SimpleNamespace(scratch=tmp_path), SimpleNamespace(source=None)
    queries = StreamQueries(spark, query, None, folder)  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        queries._take_batch(SimpleNamespace(toArrow=fail), 1)
    assert not queries.is_warm.is_set()
    queries._take_batch(SimpleNamespace(toArrow=int), 2)
    assert queries.is_warm.is_set()


def test_a_standby_says_so_once_a_batch_has_gone_all_its_way_and_is_kept_warm(start):
    wait_until(lambda: start.queries.held, "its query starts")
    assert start.status.fields()["state"] == "starting"
    start.queries.is_warm.set()
    start.wait_for_state("standby")
    assert set(start.queries.held) == {BatchPace(2.5)}
    start.order(2, "run", timeout_seconds=7, batch_seconds=2.5)
    assert start.end()
    assert start.orders.newest.timeout_seconds == 7


@pytest.mark.parametrize("order", ["drain", "cancel"])
def test_a_standby_that_is_told_to_end_ends_at_once_and_never_runs(start, order):
    start.order(2, order)
    assert not start.end()
    start.order(3, "run")
    assert start.orders.is_ending


def test_a_stream_that_runs_becomes_no_standby_again(tmp_path):
    orders = Orders(ControlFile(tmp_path / "control.json"))
    StreamControl(1, "run").write(tmp_path / "control.json")
    assert not orders.is_standing_by
    StreamControl(2, "stand_by").write(tmp_path / "control.json")
    assert not orders.is_standing_by


def orders_to_run(folder, timeout_seconds):
    StreamControl(1, "run", timeout_seconds=timeout_seconds).write(folder / "control.json")
    return Orders(ControlFile(folder / "control.json"))


def test_a_take_over_waits_until_the_home_is_let_go_of_and_keeps_it_then(tmp_path):
    status = StatusFile(tmp_path / "status.json")
    held, own = threading.Event(), ExitStack()
    own.enter_context(lock_home(tmp_path))

    def let_go():
        held.wait(30)
        own.close()

    old = threading.Thread(target=let_go, daemon=True)
    old.start()

    def own_home(owned):
        # The first try finds it locked.
        held.set()
        return owned.enter_context(lock_home(tmp_path))

    with ExitStack() as owned:
        stream = take_over(own_home, owned, orders_to_run(tmp_path, 30), status)
        assert stream == (tmp_path / "stream-id").read_text()
        with pytest.raises(LeaseHeldError), lock_home(tmp_path):
            pass
    old.join(30)
    with lock_home(tmp_path):
        pass


def test_a_take_over_that_fails_half_way_keeps_nothing(tmp_path):
    status = StatusFile(tmp_path / "status.json")

    def fail(owned):
        owned.enter_context(lock_home(tmp_path))
        raise CheckpointCorruptError("The journal is damaged.")

    with ExitStack() as owned:
        with pytest.raises(CheckpointCorruptError):
            take_over(fail, owned, orders_to_run(tmp_path, 30), status)
        with lock_home(tmp_path):
            pass
    assert status.fields()["error"] == {"code": "checkpoint_corrupt", "message": "The journal is damaged."}


def test_a_take_over_waits_no_longer_than_its_order_says(tmp_path):
    status = StatusFile(tmp_path / "status.json")
    with lock_home(tmp_path), ExitStack() as owned, pytest.raises(LeaseHeldError):
        take_over(lambda own: own.enter_context(lock_home(tmp_path)), owned, orders_to_run(tmp_path, 0.1), status)
    assert (status.fields()["state"], status.fields()["error"]["code"]) == ("failed", "lease_held")


def test_a_take_over_that_is_cancelled_while_it_waits_ends_without(tmp_path):
    status = StatusFile(tmp_path / "status.json")
    orders = orders_to_run(tmp_path, 30)

    def own_home(owned):
        StreamControl(2, "cancel").write(tmp_path / "control.json")
        return owned.enter_context(lock_home(tmp_path))

    with lock_home(tmp_path), ExitStack() as owned:
        assert take_over(own_home, owned, orders, status) is None


def test_a_standby_ends_by_a_signal(tmp_path):
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    StreamControl(1, "stand_by").write(tmp_path / "control.json")
    status = StatusFile(tmp_path / "status.json")

    class Signalled(Queries):
        def hold(self, pace):
            signal.raise_signal(signal.SIGTERM)

    try:
        assert not wait_as_standby(Orders(ControlFile(tmp_path / "control.json")), status, Signalled())  # type: ignore[arg-type]
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
