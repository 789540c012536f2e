"""How an attempt's end gets into its folder, whatever the work did."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
import structlog

from jobs.driver import run_driver
from jobs.folder import Control, JobFolder, Order, Outcome
from model.errors import QueryStoppedError, StorageFullError, WarehouseError
from model.job import JobState
from tests.waiting import wait_until


@pytest.fixture
def folder(tmp_path):
    # A driver has its process for itself.
    before = structlog.get_config()
    folder = JobFolder(tmp_path / "mg_1")
    folder.write_specification({})
    folder.write_control(Control(3, Order.RUN))
    yield folder
    structlog.configure(**before)


def drive(folder: JobFolder, work: Callable[[], Outcome]) -> tuple[int, Outcome | None]:
    code = run_driver(json.dumps({"folder": folder.location, "epoch": 3}), lambda _folder, _epoch: work())
    return code, folder.read_outcome(3)


def raising(error: Exception) -> Callable[[], Outcome]:
    def work() -> Outcome:
        raise error

    return work


def test_what_the_work_says_is_the_outcome(folder):
    assert drive(folder, lambda: Outcome(3, JobState.SUCCEEDED)) == (0, Outcome(3, JobState.SUCCEEDED))
    error = {"code": "audit_failed", "message": "a key has more than one row"}
    assert drive(folder, lambda: Outcome(3, JobState.FAILED, error)) == (1, Outcome(3, JobState.FAILED, error))


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (StorageFullError("The disk of the spill is full."), "storage_full", "The disk of the spill is full."),
        (
            WarehouseError("Value 'card 4111' is no INT64."),
            "warehouse_error",
            "The warehouse answered with an error. The job's log has the engine's own error.",
        ),
        (ValueError("card 4111"), "driver_failed", "The driver failed with ValueError. Its log has the details."),
    ],
)
def test_an_error_is_a_failure_with_its_code_and_a_sentence_that_quotes_no_message(folder, error, code, message):
    failed = Outcome(3, JobState.FAILED, {"code": code, "message": message})
    assert drive(folder, raising(error)) == (1, failed)


def test_the_log_says_where_an_error_came_from_without_the_values_of_variables(folder, capsys):
    def work() -> Outcome:
        payload = b"card 4111"
        raise ValueError(len(payload))

    drive(folder, work)
    log = capsys.readouterr().out
    assert "ValueError: 9" in log
    assert "raise ValueError(len(payload))" in log
    assert "4111" not in log


def test_work_that_stops_because_it_was_told_to_is_cancelled(folder):
    assert drive(folder, raising(QueryStoppedError())) == (0, Outcome(3, JobState.CANCELLED))


def test_a_driver_that_writes_its_outcome_is_not_cancelled_any_more(folder, monkeypatch):
    exits = []
    monkeypatch.setattr("jobs.driver._STOP_CHECK_SECONDS", 0.01)
    monkeypatch.setattr("jobs.driver._STOP_GRACE_SECONDS", 0.01)
    monkeypatch.setattr("os._exit", exits.append)
    write, threads = JobFolder.write_outcome, threading.active_count()

    def write_late(self, outcome):
        if outcome.state is JobState.SUCCEEDED:
            self.write_control(Control(3, Order.STOP))
            wait_until(lambda: threading.active_count() == threads, "nothing waits for an order any more")
        write(self, outcome)

    monkeypatch.setattr(JobFolder, "write_outcome", write_late)
    assert drive(folder, lambda: Outcome(3, JobState.SUCCEEDED)) == (0, Outcome(3, JobState.SUCCEEDED))
    assert exits == []


def test_a_driver_whose_work_does_not_stop_leaves_and_says_that_it_was_cancelled(folder):
    script = (
        "import sys, time; from jobs.driver import run_driver; "
        "run_driver(sys.argv[1], lambda folder, epoch: time.sleep(60))"
    )
    argument = json.dumps({"folder": folder.location, "epoch": 3})
    with subprocess.Popen([sys.executable, "-c", script, argument]) as driver:
        wait_until(lambda: folder.read_heartbeat(3) is not None, "it is heard of")
        folder.write_control(Control(3, Order.STOP))
        assert driver.wait(30) == 0
    assert folder.read_outcome(3) == Outcome(3, JobState.CANCELLED)
