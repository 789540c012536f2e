"""What becomes of a job whose driver dies, or says that it can't go on."""

import signal
import time

import pytest

from backfill.run.folder import BackfillFolder
from backfill.steer.kind import BACKFILL
from jobs.folder import Control, Order, Outcome
from model.job import JobState
from model.process import Process


def test_a_job_whose_driver_is_killed_goes_on_with_another_one(
    store, supervisor, create, launcher, reach, *, no_waiting
):
    job_id = create()
    reach(job_id, JobState.RUNNING)
    folder = supervisor.folder(job_id)
    folder.driver_log.write_text("first\nthe last thing it said\n")
    launcher.drivers[0].signal_group(signal.SIGKILL)
    reach(job_id, JobState.PENDING)
    # Its tasks may live on in a Connect server: they must stop.
    assert not folder.may_go_on(1)
    again = reach(job_id, JobState.RUNNING)
    assert (again.epoch, again.restarts, again.error, again.driver) == (2, 1, None, launcher.drivers[1])
    why = next(event.why for event in store.list_events(job_id) if event.what == "RUNNING -> PENDING")
    assert why.startswith("Restarted (1 of 3): ")
    assert "was killed" in why
    # A driver's last words may quote a message, so the history only points to the log.
    assert "the last thing it said" not in why
    assert "Its log has details." in why


def test_a_job_whose_driver_dies_again_and_again_fails_and_says_why(
    store, supervisor, create, launcher, reach, *, no_waiting
):
    job_id = create()
    for number in range(4):
        reach(job_id, JobState.RUNNING)
        launcher.drivers[number].signal_group(signal.SIGKILL)
        reach(job_id, JobState.PENDING if number < 3 else JobState.FAILED)
    failed = store.get(job_id)
    assert failed.error.code == "driver_died"
    assert "was killed" in failed.error.message
    assert "restarted 3 times" in failed.error.message
    assert "Its log" not in failed.error.message
    assert not supervisor.folder(job_id).may_go_on(4)
    # A person's retry starts the count anew.
    store.move(job_id, JobState.PENDING, actor="ann")
    assert reach(job_id, JobState.RUNNING).restarts == 0


def test_a_job_whose_selection_can_t_be_read_ends_as_its_driver_says(supervisor, create, launcher, reach):
    """A power cut may leave a file empty; the job would hold its place for ever, and no cancel would end it."""
    job_id = create()
    reach(job_id, JobState.RUNNING)
    folder = BackfillFolder.of(supervisor.folder(job_id))
    folder.selection.make()
    folder.selection.write("manifest.json", b"")
    folder.write_outcome(Outcome(1, JobState.FAILED, {"code": "checkpoint_corrupt", "message": "It is empty."}))
    assert reach(job_id, JobState.FAILED).error.code == "checkpoint_corrupt"


@pytest.mark.parametrize("name", ["outcome-1.json", "pause-1.json"])
def test_a_file_that_a_power_cut_has_emptied_keeps_no_job_from_its_next_driver(
    supervisor, create, launcher, reach, name, *, no_waiting
):
    """A new file whose rename is durable and whose bytes are not: it says nothing."""
    job_id = create()
    reach(job_id, JobState.RUNNING)
    supervisor.folder(job_id).files.write(name, b"")
    launcher.drivers[0].signal_group(signal.SIGKILL)
    reach(job_id, JobState.PENDING)
    assert reach(job_id, JobState.RUNNING).epoch == 2


def test_a_restart_waits_a_moment(supervisor, create, launcher, reach, monkeypatch):
    monkeypatch.setattr("jobs.supervisor._RESTART_WAITS_SECONDS", (600.0,))
    job_id = create()
    reach(job_id, JobState.RUNNING)
    launcher.drivers[0].signal_group(signal.SIGKILL)
    reach(job_id, JobState.PENDING)
    for _ in range(5):
        supervisor.tick()
    assert len(launcher.launched) == 1


def test_a_driver_that_fails_with_a_reason_of_its_own_is_not_restarted_and_no_message_leaves_its_log(
    store, supervisor, create, launcher, reach, *, no_waiting
):
    job_id = create()
    reach(job_id, JobState.RUNNING)
    error = {"code": "query_failed", "message": "Could not convert string 'card 4111' to INT64"}
    supervisor.folder(job_id).write_outcome(Outcome(1, JobState.FAILED, error))
    failed = reach(job_id, JobState.FAILED)
    supervisor.tick()
    assert (failed.error.code, failed.restarts, len(launcher.launched)) == ("query_failed", 0, 1)
    assert "log" in failed.error.message
    told = [failed.error.message, *(event.why or "" for event in store.list_events(job_id))]
    assert not [text for text in told if "4111" in text]
    assert told[-1] == "query_failed: The query failed while it ran."


def test_a_driver_elsewhere_is_followed_by_its_heartbeat_and_replaced_when_that_stops(
    store, supervisor, create, reach, no_waiting, *, monkeypatch
):
    monkeypatch.setattr("jobs.driver_watch._SILENCE_SECONDS", 0.5)
    job_id = create()
    store.claim(BACKFILL.name, "another", limit=1, lease_seconds=-1)
    store.begin_attempt(job_id, owner="another")
    folder = supervisor.folder(job_id)
    folder.write_control(Control(1, Order.RUN))
    store.move(job_id, JobState.RUNNING, actor="refeed", driver=Process(1, 1, "another machine's boot"))
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        folder.beat(1)
        supervisor.tick()
    assert (store.get(job_id).state, store.get(job_id).epoch) == (JobState.RUNNING, 1)
    again = reach(job_id, JobState.PENDING)
    assert again.restarts == 1
    assert reach(job_id, JobState.RUNNING).epoch == 2
    # The next launch may have written its line already, so this is not always the last one.
    (why,) = [str(each.why) for each in store.list_events(job_id) if "Restarted (1 of 3)" in str(each.why)]
    assert "has not reported for 1 s" in why
    assert not folder.may_go_on(1)
