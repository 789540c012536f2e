"""Work of streams in threads, by a clock that the test moves."""

import threading
from collections.abc import Callable

import pytest
import structlog

from jobs.stream_threads import FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS, StreamThreads
from model.errors import StorageFullError


class Yard:
    """Threads whose clock the test moves, and how often their work was begun."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.now = 0.0
        self.begun = 0
        self.threads = StreamThreads("test", now=lambda: self.now)
        self._work = work

    def go(self, seconds: float, key: str = "sn_1", every_seconds: float = 0.5) -> int:
        """Look again and again, and return how often the work was begun."""
        before = self.begun
        for _ in range(int(seconds / every_seconds)):
            self.threads.begin("backup", key, self._do)
            self.threads.join(10)
            self.now += every_seconds
        return self.begun - before

    def _do(self) -> None:
        self.begun += 1
        self._work()


@pytest.mark.parametrize("error", [ZeroDivisionError(), StorageFullError()])
def test_work_that_raises_anything_is_begun_less_and_less_often(error: Exception) -> None:
    def fail() -> None:
        raise error

    yard = Yard(fail)
    # A traceback takes long to be written.
    with structlog.testing.capture_logs():
        assert yard.go(FIRST_WAIT_SECONDS) == 1
        assert yard.go(600, every_seconds=2.5) <= 8
        assert yard.go(10 * LONGEST_WAIT_SECONDS, every_seconds=10) <= 11, "and never gives up"
        assert yard.go(FIRST_WAIT_SECONDS, key="sn_2") == 1, "another thing of the stream does not wait"


def test_work_that_works_again_has_no_wait_before_it() -> None:
    errors: list[Exception] = [ZeroDivisionError()]

    def work() -> None:
        if errors:
            raise errors.pop()

    yard = Yard(work)
    assert yard.go(FIRST_WAIT_SECONDS) == 1
    assert yard.go(2) == 4
    errors.append(ZeroDivisionError())
    assert yard.go(FIRST_WAIT_SECONDS) == 1, "the first wait is short again"


def test_a_wait_is_forgotten_with_what_it_is_of() -> None:
    yard = Yard(lambda: 1 / 0)
    assert yard.go(FIRST_WAIT_SECONDS) == 1
    yard.threads.keep({"backup"}, {"sn_1"})
    assert yard.go(1) == 1
    assert yard.go(1) == 0
    yard.threads.keep(set(), set())
    assert yard.go(0.5) == 1


def test_one_thing_of_a_stream_is_done_at_a_time() -> None:
    threads, goes_on = StreamThreads("test"), threading.Event()
    begun: list[str] = []

    def work(name: str) -> None:
        begun.append(name)
        goes_on.wait(10)

    threads.begin("backup", "sn_1", lambda: work("first"))
    threads.begin("backup", "sn_2", lambda: work("second"))
    threads.begin("shop", "sn_3", lambda: work("third"))
    goes_on.set()
    threads.join(10)
    assert sorted(begun) == ["first", "third"]
