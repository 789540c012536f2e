import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from model.errors import LeaseHeldError, SnapshotRefusedError
from rollout.pausing import hold_still, pause_stream
from streams.lease import lock_home
from streams.status import StatusFile


class Stream:
    """A stream that carries out its orders at once, with the status file of a real one."""

    def __init__(self, path: Path, *, follows: bool = True) -> None:
        self.path = path
        self.orders: list[str] = []
        self._status = StatusFile(path)
        self._follows = follows
        self._status.write(state="running", control_number=0)

    def pause(self, timeout_seconds: float) -> int:
        self.orders.append(f"pause {timeout_seconds:g}")
        number = len(self.orders)
        if self._follows:
            self.write("paused", number)
        return number

    def resume(self) -> None:
        self.orders.append("run")
        self.write("running", len(self.orders))

    def write(self, state: str, number: int) -> None:
        self._status.write(state=state, control_number=number)


def test_the_block_runs_between_the_pause_and_the_order_to_go_on(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "status.json")
    with pause_stream(stream.path, stream, timeout_seconds=5):
        assert stream.orders == ["pause 5"]
    assert stream.orders == ["pause 5", "run"]


def test_a_pause_of_another_order_is_not_this_one(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "status.json", follows=False)
    stream.write("paused", 7)
    with (
        pytest.raises(SnapshotRefusedError, match="did not pause within"),
        pause_stream(stream.path, stream, timeout_seconds=0.1),
    ):
        pytest.fail("the stream has not paused")
    assert stream.orders == ["pause 0.1", "run"]


def end_by_itself(stream: Stream) -> None:
    stream.write("running", 1)


def be_overtaken(stream: Stream) -> None:
    stream.write("paused", 2)


@pytest.mark.parametrize("change", [end_by_itself, be_overtaken])
def test_a_block_that_outlasts_the_pause_fails(tmp_path: Path, change: Callable[[Stream], None]) -> None:
    stream = Stream(tmp_path / "status.json")
    with (
        pytest.raises(SnapshotRefusedError, match="longer than the stream's pause"),
        pause_stream(stream.path, stream, timeout_seconds=5),
    ):
        change(stream)
    assert stream.orders[-1] == "run"


def test_a_stream_goes_on_after_a_block_that_failed(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "status.json")
    with pytest.raises(ZeroDivisionError), pause_stream(stream.path, stream, timeout_seconds=5):
        raise ZeroDivisionError
    assert stream.orders == ["pause 5", "run"]


def test_a_state_at_rest_is_held_until_the_block_ends(tmp_path: Path) -> None:
    tried: list[str] = []

    def start() -> None:
        try:
            with lock_home(tmp_path):
                tried.append("started")
        except LeaseHeldError:
            tried.append("held")

    with hold_still(tmp_path):
        thread = threading.Thread(target=start, daemon=True)
        thread.start()
        thread.join()
    start()
    assert tried == ["held", "started"]
