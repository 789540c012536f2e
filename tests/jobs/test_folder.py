import json
from pathlib import Path

import pytest

from jobs.folder import Control, JobFolder, Order, Outcome
from model.errors import CheckpointCorruptError
from model.job import JobState


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    folder = JobFolder(tmp_path / "bf_1")
    folder.write_specification({"query": "SELECT 1"})
    return folder


def test_only_the_attempt_that_counts_may_go_on(folder: JobFolder) -> None:
    folder.write_control(Control(2, Order.RUN))

    assert folder.may_go_on(2)
    assert not folder.may_go_on(1)


def test_nobody_goes_on_once_the_order_is_to_stop(folder: JobFolder) -> None:
    folder.write_control(Control(2, Order.RUN))
    folder.write_control(Control(2, Order.STOP))

    assert not folder.may_go_on(2)


def test_a_paused_attempt_lives_on_and_publishes_nothing(folder: JobFolder) -> None:
    folder.write_control(Control(2, Order.PAUSE))

    assert folder.may_go_on(2)
    assert not folder.may_publish(2)
    assert not folder.may_go_on(1)

    folder.write_control(Control(2, Order.RUN))

    assert folder.may_publish(2)
    assert not folder.may_publish(1)


def test_how_fast_an_attempt_may_be_changes_while_it_runs(folder: JobFolder) -> None:
    control = Control(2, Order.RUN, rate_limit_messages_per_second=0.5, canary_messages=10)
    folder.write_control(control)

    assert folder.read_control() == control
    assert folder.may_publish(2)


def test_a_control_written_before_there_were_limits_has_none(folder: JobFolder) -> None:
    (folder.path / "control.json").write_text('{"epoch":3,"order":"run"}')

    assert folder.read_control() == Control(3, Order.RUN, None, None)


def test_an_attempt_says_why_it_paused_until_it_is_told_to_run(folder: JobFolder) -> None:
    assert folder.read_pause(2) is None

    folder.write_pause(2, "The canary of 10 messages is out.")
    folder.write_control(Control(2, Order.PAUSE))

    assert folder.read_pause(2) == "The canary of 10 messages is out."
    assert folder.read_pause(3) is None

    folder.write_control(Control(2, Order.RUN))

    assert folder.read_pause(2) is None


def test_a_task_that_can_not_see_its_orders_does_not_go_on(folder: JobFolder) -> None:
    with pytest.raises(CheckpointCorruptError):
        folder.may_go_on(1)


def test_the_slices_that_tasks_work_on_are_those_of_their_attempt(folder: JobFolder) -> None:
    assert folder.running_slices(2) == []
    for number in (12, 3):
        folder.enter_slice(number, 2)
    folder.enter_slice(5, 1)

    assert folder.running_slices(2) == [3, 12]

    folder.leave_slice(12, 2)
    folder.leave_slice(12, 2)

    assert folder.running_slices(2) == [3]


def test_an_outcome_belongs_to_its_attempt(folder: JobFolder) -> None:
    folder.write_outcome(Outcome(1, JobState.FAILED, {"code": "query_failed", "message": "no"}))

    assert folder.read_outcome(1) == Outcome(1, JobState.FAILED, {"code": "query_failed", "message": "no"})
    assert folder.read_outcome(2) is None


def test_the_specification_is_for_its_owner_only(folder: JobFolder) -> None:
    assert folder.read_specification() == {"query": "SELECT 1"}
    assert folder.path.stat().st_mode & 0o077 == 0


def test_a_damaged_file_is_named(folder: JobFolder) -> None:
    (folder.path / "specification.json").write_text(json.dumps([1]))

    with pytest.raises(CheckpointCorruptError, match=r"specification\.json"):
        folder.read_specification()


def test_the_end_of_a_long_log_is_whole_lines(folder: JobFolder) -> None:
    folder.driver_log.write_text("".join(f"line {n}\n" for n in range(1000)))

    lines = folder.read_log_tail(100).splitlines()

    assert lines[-1] == "line 999"
    assert all(line.startswith("line ") for line in lines)
    assert folder.read_log_tail(1 << 20).splitlines()[0] == "line 0"


def test_a_job_without_a_log_has_an_empty_one(folder: JobFolder) -> None:
    assert folder.read_log_tail() == ""
