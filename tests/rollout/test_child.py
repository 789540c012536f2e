import os
import signal
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

from model.errors import ProcessEndedError
from rollout.child import Child, Children, stop_all
from tests.waiting import wait_until

SLEEPER = "import time; print('ready', flush=True); time.sleep(60)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER
PARENT = (
    "import subprocess, sys, time; "
    "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
    "print('ready', p.pid, flush=True); time.sleep(60)"
)


@pytest.fixture
def make_child(tmp_path):
    made = []

    def make(code):
        child = Child(
            "sleeper", [sys.executable, "-c", code], environment=os.environ, log=tmp_path / "logs" / "c.log"
        )
        made.append(child)
        return child

    yield make
    for child in made:
        child.kill()


def is_ready(child: Child) -> bool:
    return "ready" in child.log_tail()


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def test_a_child_that_is_asked_to_stop_says_how_it_ended(make_child):
    child = make_child(SLEEPER).start()
    child.wait_until(lambda: is_ready(child), seconds=20, what="begun")
    assert child.is_running
    assert child.exit_code is None
    assert child.stop(seconds=20) == -signal.SIGTERM
    assert not child.is_running


def test_a_deaf_child_is_killed_when_its_time_is_up(make_child):
    child = make_child(DEAF).start()
    child.wait_until(lambda: is_ready(child), seconds=20, what="begun")
    assert child.stop(seconds=0.2) == -signal.SIGKILL


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_a_child_started_goes_with_it(make_child, end):
    child = make_child(PARENT).start()
    child.wait_until(lambda: is_ready(child), seconds=20, what="begun")
    grandchild = int(child.log_tail().split()[1])
    child.stop() if end == "stop" else child.kill()
    wait_until(lambda: is_gone(grandchild), "the grandchild is gone")


def test_starting_again_keeps_the_log_and_a_running_child_is_left_alone(make_child):
    child = make_child(SLEEPER).start()
    child.wait_until(lambda: is_ready(child), seconds=20, what="begun")
    pid = child.pid
    assert child.start().pid == pid
    child.kill()
    child.start().wait_until(lambda: child.log_tail().count("ready") == 2, seconds=20, what="begun again")
    assert child.pid != pid


def test_a_child_that_ends_too_soon_is_reported_with_its_last_lines(make_child):
    child = make_child("import sys; print('no such port'); sys.exit(7)").start()
    with pytest.raises(ProcessEndedError, match=r"ended with code 7(?s:.*)no such port"):
        child.wait_until(lambda: False, seconds=20, what="begun")


def test_a_child_that_was_killed_is_reported_by_the_signal(make_child):
    child = make_child(SLEEPER).start()
    child.kill()
    assert "ended by signal SIGKILL" in child.ended_error().message


def test_a_signal_without_a_name_is_reported_by_its_number(make_child):
    child = make_child(f"import os; os.kill(os.getpid(), {signal.SIGRTMIN + 6})").start()
    with pytest.raises(ProcessEndedError, match=rf"ended by signal {signal.SIGRTMIN + 6}\."):
        child.wait_until(lambda: False, seconds=20, what="begun")


def test_waiting_has_an_end(make_child):
    child = make_child(SLEEPER).start()
    with pytest.raises(ProcessEndedError, match="has not begun to sing in 0 s"):
        child.wait_until(lambda: False, seconds=0.2, what="begun to sing")


def test_a_child_that_was_never_started_has_no_id(make_child):
    child = make_child(SLEEPER)
    assert child.stop() is None
    with pytest.raises(ProcessEndedError, match="was not started"):
        _ = child.pid


def test_leaving_the_block_stops_the_last_started_first(tmp_path):
    stopped = []

    class Noted(Child):
        def stop(self, *, seconds=30.0):
            stopped.append(self.name)
            return super().stop(seconds=seconds)

    with Children() as children:
        for name in ("first", "second"):
            children.start(
                Noted(name, [sys.executable, "-c", SLEEPER], environment=os.environ, log=tmp_path / name)
            )
    assert stopped == ["second", "first"]
    assert [child.is_running for child in children] == [False, False]


def test_the_end_of_a_long_log_is_read_without_the_rest(make_child, monkeypatch):
    child = make_child("print('last words'); raise SystemExit(3)").start()
    wait_until(lambda: not child.is_running, "it ends")
    with child.log.open("r+b") as log:
        words = log.read()
        # 64 sparse MiB before the last line.
        log.seek(1 << 26)
        log.write(b"\n" + words)
    tracemalloc.start()
    try:
        tail = child.log_tail()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert tail.endswith("last words")
    assert peak < 1 << 20


def test_one_that_the_kernel_holds_is_waited_for_once_and_not_for_long(make_child, monkeypatch):
    child = make_child("import time; time.sleep(20)").start()
    with monkeypatch.context() as context:
        # What SIGKILL does to a process in uninterruptible sleep.
        context.setattr(os, "killpg", lambda *_: None)
        began = time.monotonic()
        child.kill(seconds=0.2)
        for _ in range(1_000):
            child.kill()
        assert child.is_running
    assert time.monotonic() - began < 15
    child.kill()
    wait_until(lambda: not child.is_running, "it ends")


def test_all_that_are_to_stop_have_their_time_together(make_child):
    children = [make_child(DEAF).start() for _ in range(5)]
    wait_until(lambda: children[0].log_tail().count("ready") == 5, "all have begun")
    began = time.monotonic()
    stop_all(children, seconds=2)
    assert 2 <= time.monotonic() - began < 9
    assert [child.exit_code for child in children] == [-signal.SIGKILL] * 5
