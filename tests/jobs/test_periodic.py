import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jobs.periodic import PeriodicTask, PeriodicTasks


@contextmanager
def periodic(*found: PeriodicTask) -> Iterator[PeriodicTasks]:
    thread = PeriodicTasks(found)
    try:
        yield thread
    finally:
        thread.stop()
        thread.join()


def tick_until(thread: PeriodicTasks, is_true: Callable[[], bool], why: str) -> None:
    deadline = time.monotonic() + 20
    while not is_true():
        thread.tick()
        assert time.monotonic() < deadline, why
        time.sleep(0.005)


def test_one_chore_at_a_time_the_first_that_is_due_comes_first() -> None:
    done: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        go_on.wait(20)
        done.append("slow")

    with periodic(PeriodicTask(slow, 3600), PeriodicTask(lambda: done.append("quick"), 3600)) as thread:
        thread.tick()
        assert begun.wait(20)
        for _ in range(5):
            thread.tick()
        assert done == [], "the second waits for the first"
        go_on.set()
        tick_until(thread, lambda: done == ["slow", "quick"], "both are done")
        for _ in range(5):
            thread.tick()
    assert done == ["slow", "quick"], "neither is due again"


def test_a_chore_that_fails_is_done_again() -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise ValueError("not today")

    with periodic(PeriodicTask(fail, 0.0)) as thread:
        tick_until(thread, lambda: len(calls) >= 3, "it is tried again")


def test_nothing_begins_once_it_is_stopped() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        go_on.wait(20)

    thread = PeriodicTasks([PeriodicTask(slow, 3600)])
    thread.tick()
    assert begun.wait(20)
    thread.stop()
    go_on.set()
    thread.join()
