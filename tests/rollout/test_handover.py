"""Two processes of one stream, one of which goes on; the processes here are small scripts with a home's lock."""

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from model.errors import ProcessEndedError
from rollout import handover
from rollout.handover import HandOver, HandOverState, Pause, is_ready
from rollout.process import StreamProcess
from streams.control import BatchPace, Order, StreamControl
from streams.folder import StreamFolder
from tests.rollout.handing import wait_for_end, wait_for_standby
from tests.waiting import wait_until

# A stream that commits nothing: it waits for its home, and lets go of it when it drains; "deaf" takes no orders.
STREAM = """
import sys, time
from contextlib import ExitStack
from pathlib import Path
from streams.control import ControlFile
from streams.folder import StreamFolder
from streams.orders import Orders
from streams.lease import lock_home
from streams.standby import take_over
from streams.status import StatusFile

folder = StreamFolder.of(Path(sys.argv[1]), "backup", sys.argv[2])
mood = sys.argv[3]
folder.run.mkdir(parents=True, exist_ok=True)
orders = Orders(ControlFile(folder.control))
status = StatusFile(folder.status, instance=folder.instance_id)
while orders.is_standing_by:
    status.write(state="standby")
    time.sleep(0.01)
if mood == "broken":
    sys.exit(3)
with ExitStack() as owned:
    take_over(lambda own: own.enter_context(lock_home(folder.state)), owned, orders, status)
    status.write(state="running", first_commit_at=time.time())
    while mood == "deaf" or not orders.is_ending:
        time.sleep(0.01)
        status.write(last_commit_at=time.time())
status.write_last(state="stopped", not_committed=0)
"""


class Yard:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.made: list[StreamProcess] = []

    def start(self, order: Order, mood: str = "") -> StreamProcess:
        instance = f"in_{len(self.made)}"
        found = StreamProcess.start(
            StreamFolder.of(self.home, "backup", instance),
            [sys.executable, "-c", STREAM, str(self.home), instance, mood],
            BatchPace(),
            environment={**os.environ, "PYTHONPATH": str(Path.cwd())},
            log=self.home / f"{instance}.log",
            order=order,
        )
        self.made.append(found)
        return found

    def start_both(self, old_mood: str = "", new_mood: str = "") -> tuple[StreamProcess, StreamProcess]:
        old = self.start("run", old_mood)
        new = self.start("stand_by", new_mood)
        wait_for_standby(new, seconds=30)
        wait_until(lambda: old.status().get("last_commit_at") is not None, "the old one runs")
        return old, new


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path)
    yield yard
    for process in yard.made:
        process.kill()


def test_the_new_process_goes_on_when_the_old_one_has_let_go_and_the_pause_is_known(yard: Yard) -> None:
    old, new = yard.start_both()
    assert is_ready(new)
    passing = HandOver(old, new, timeout_seconds=30)
    assert wait_for_end(passing, seconds=30) is HandOverState.HANDED_OVER
    assert (passing.was_killed, is_ready(new)) == (False, False)
    assert (old.control.order, old.control.timeout_seconds, new.control.order) == ("drain", 30, "run")
    seconds = Pause.between(old.status(), new.status()).seconds
    assert 0 <= seconds < 30
    # Another agent comes and finds nothing to order.
    numbers = (old.control.number, new.control.number)
    assert HandOver(old, new, timeout_seconds=30).look() is HandOverState.HANDED_OVER
    assert (old.control.number, new.control.number) == numbers


def test_an_old_process_that_does_not_let_go_is_killed_when_its_time_is_over(yard, monkeypatch):
    monkeypatch.setattr(handover, "KILL_GRACE_SECONDS", 0.2)
    old, new = yard.start_both("deaf")
    passing = HandOver(old, new, timeout_seconds=0.1)
    assert passing.look() is HandOverState.UNDER_WAY
    assert old.is_running
    assert wait_for_end(passing, seconds=30) is HandOverState.HANDED_OVER
    assert (passing.was_killed, old.is_running) == (True, False)


def test_a_new_process_that_ends_before_it_owns_the_stream_is_told(yard: Yard) -> None:
    old, new = yard.start_both("", "broken")
    assert wait_for_end(HandOver(old, new, timeout_seconds=30), seconds=30) is HandOverState.NEW_ENDED
    spare = yard.start("stand_by")
    wait_for_standby(spare, seconds=30)
    assert wait_for_end(HandOver(None, spare, timeout_seconds=30), seconds=30) is HandOverState.HANDED_OVER


def test_a_standby_that_ends_or_is_late_is_not_waited_for(yard: Yard) -> None:
    ended = yard.start("drain", "broken")
    with pytest.raises(ProcessEndedError, match="code 3"):
        wait_for_standby(ended, seconds=30)
    with pytest.raises(ProcessEndedError, match="not ready after 0 s"):
        wait_for_standby(yard.start("run", "deaf"), seconds=0.1)


def test_a_pause_is_unknown_until_both_have_committed_and_never_negative() -> None:
    assert [Pause(1.0, None).seconds, Pause(None, 1.0).seconds, Pause(1.0, 2.5).seconds] == [None, None, 1.5]
    # Two clocks of one machine may differ by a moment.
    assert Pause(2.0, 1.9999).seconds == 0


def test_orders_that_a_full_disk_did_not_take_are_given_again(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = yard.start_both()
    passing = HandOver(old, new, timeout_seconds=30)
    with monkeypatch.context() as patched:
        patched.setattr(StreamControl, "write", _fill_disk)
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                passing.look()
    assert wait_for_end(passing, seconds=30) is HandOverState.HANDED_OVER
    assert (old.control.order, new.control.order, passing.was_killed) == ("drain", "run", False)


def _fill_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
