import threading

import pytest
import structlog

from jobs import loop as loops
from jobs.loop import BackgroundLoop
from model.errors import QueryError, StoreUnavailableError
from tests.waiting import wait_until


@pytest.fixture
def open_loop():
    opened = []

    def start(turn, *, every_seconds=0.001):
        loop = BackgroundLoop("looks", turn, every_seconds=every_seconds)
        opened.append(loop)
        loop.start()
        return loop

    yield start
    for loop in opened:
        loop.stop()
        assert not loop.is_alive


def test_the_first_turn_is_taken_at_once_and_the_next_when_woken(open_loop):
    turns = threading.Semaphore(0)
    loop = open_loop(turns.release, every_seconds=3600)
    assert turns.acquire(timeout=20)
    loop.wake()
    assert turns.acquire(timeout=20), "woken, it does not wait for an hour"


def test_the_interval_is_asked_for_after_each_turn(open_loop):
    seconds = iter([0.0, 0.0, 3600.0])
    turns = []
    open_loop(lambda: turns.append(1), every_seconds=lambda: next(seconds))
    wait_until(lambda: len(turns) == 3, "three turns")


def test_a_stop_ends_a_long_wait_and_no_turn_is_taken_after_it():
    turns = []

    def wait_long():
        turns.append(1)
        loop.wait(3600)

    loop = BackgroundLoop("looks", wait_long, every_seconds=3600)
    loop.start()
    wait_until(lambda: turns, "the first turn")
    loop.stop()
    assert (turns, loop.is_alive, loop.is_stopping) == ([1], False, True)


def test_a_stop_waits_for_a_turn_under_way_no_longer_than_asked(open_loop):
    begun, go_on = threading.Event(), threading.Event()

    def hang():
        begun.set()
        assert go_on.wait(20)

    loop = open_loop(hang)
    assert begun.wait(20)
    loop.stop(0.01)
    assert loop.is_alive
    go_on.set()


def test_one_that_was_never_started_can_be_stopped():
    BackgroundLoop("looks", lambda: None, every_seconds=1.0).stop()


def test_an_error_is_logged_once_and_the_loop_goes_on_until_it_is_over():
    errors = [StoreUnavailableError(), StoreUnavailableError(), ValueError("card 4111")]
    turns = []
    with structlog.testing.capture_logs() as lines:

        def turn():
            turns.append(loop.problem)
            if errors:
                raise errors.pop(0)

        loop = BackgroundLoop("looks", turn, every_seconds=0.001)
        loop.start()
        wait_until(lambda: len(turns) >= 5, "five turns")
        loop.stop()
    assert [(line["log_level"], line["event"]) for line in lines] == [
        ("warning", "background loop fails; trying again"),
        ("error", "background loop fails; trying again"),
        ("info", "background loop works again"),
    ]
    first, second, third, fourth, fifth = turns[:5]
    assert first is None
    assert second == third
    assert (second or "").startswith("store_unavailable: ")
    assert "ValueError" in (fourth or "")
    assert "4111" not in (fourth or "")
    assert fifth is None


def test_a_problem_quotes_no_message(open_loop):
    def fail():
        raise QueryError("Could not convert 'card 4111'")

    loop = open_loop(fail)
    wait_until(lambda: loop.problem, "it has failed")
    assert loop.problem == "query_failed: The query failed while it ran."


def test_a_turn_that_does_not_come_back_is_a_problem(open_loop, monkeypatch):
    monkeypatch.setattr(loops, "_HANG_SECONDS", 0.01)
    go_on = threading.Event()
    loop = open_loop(lambda: go_on.wait(20))
    wait_until(lambda: loop.problem, "it hangs")
    assert loop.problem == "The task's last run has not ended after 0 s."
    go_on.set()
