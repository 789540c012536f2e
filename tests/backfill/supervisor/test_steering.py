"""How pauses, resumes, changes and ends reach a driver, and how its own reach the store."""

import signal

import pytest

from backfill.run.folder import BackfillFolder
from backfill.run.selection import write_selection
from jobs.folder import Control, JobFolder, Order, Outcome
from model.job import JobState
from tests.waiting import wait_until


def test_what_changes_while_a_job_runs_reaches_its_driver(store, supervisor, create, reach):
    """A service that died between the store and the control left only the first."""
    job_id = create(options={"rate_limit_messages_per_second": 5, "canary_messages": 10})
    reach(job_id, JobState.RUNNING)
    folder = supervisor.folder(job_id)
    assert folder.read_control() == Control(1, Order.RUN, 5, 10)

    def told(control: Control) -> bool:
        supervisor.tick()
        return folder.read_control() == control

    store.change(job_id, actor="ann", what="faster", options={"rate_limit_messages_per_second": 9.5})
    wait_until(lambda: told(Control(1, Order.RUN, 9.5, 10)), "the rate is told")
    store.move(job_id, JobState.PAUSED, actor="ann")
    wait_until(lambda: told(Control(1, Order.PAUSE, 9.5, 10)), "the pause is told")
    store.move(job_id, JobState.RUNNING, actor="ann", options={"canary_messages": None})
    wait_until(lambda: told(Control(1, Order.RUN, 9.5)), "the resume is told")


def test_a_pause_by_the_driver_pauses_the_job_until_a_resume(store, supervisor, create, reach):
    job_id = create(options={"canary_messages": 10})
    reach(job_id, JobState.RUNNING)
    folder = supervisor.folder(job_id)
    folder.write_pause(1, "10 canary messages are published.")
    reach(job_id, JobState.PAUSED)
    event = store.list_events(job_id)[-1]
    assert (event.actor, event.why) == ("driver", "10 canary messages are published.")
    assert store.get(job_id).news_at is not None
    assert folder.read_control() == Control(1, Order.PAUSE, None, 10)
    folder.write_control(Control(1, Order.RUN))
    store.move(job_id, JobState.RUNNING, actor="ann", options={"canary_messages": None})
    for _ in range(3):
        supervisor.tick()
    assert store.get(job_id).state is JobState.RUNNING
    assert folder.may_publish(1)


def test_a_pause_by_the_driver_is_shown_with_the_rows_that_it_paused_for(create, reach, rows, monkeypatch):
    job_id = create()
    reach(job_id, JobState.RUNNING)
    read_pause = JobFolder.read_pause

    def select_and_pause(folder: JobFolder, epoch: int) -> str | None:
        # The driver is done just when the supervisor has read the figures and looks for a pause.
        selection = BackfillFolder.of(folder).selection
        if not selection.exists():
            write_selection([rows(30)], selection)
            folder.write_pause(epoch, "30 rows wait for an approval.")
        return read_pause(folder, epoch)

    monkeypatch.setattr(JobFolder, "read_pause", select_and_pause)
    assert reach(job_id, JobState.PAUSED).progress["selected"] == 30


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_paused_job_whose_driver_ends_stays_paused_and_is_resumed_by_a_new_one(
    store, supervisor, create, launcher, reach, *, is_killed
):
    job_id = create()
    reach(job_id, JobState.RUNNING)
    store.move(job_id, JobState.PAUSED, actor="ann")
    if is_killed:
        launcher.drivers[0].signal_group(signal.SIGKILL)
    else:
        supervisor.folder(job_id).write_outcome(Outcome(1, JobState.PAUSED))

    def is_let_go() -> bool:
        supervisor.tick()
        return store.get(job_id).driver is None

    wait_until(is_let_go, "the store knows that there is no driver")
    for _ in range(3):
        supervisor.tick()
    assert (store.get(job_id).state, store.get(job_id).restarts) == (JobState.PAUSED, 0)
    assert [event.what for event in store.list_events(job_id)].count("driver ended") == 1
    store.move(job_id, JobState.PENDING, actor="ann")
    assert reach(job_id, JobState.RUNNING).epoch == 2


def test_a_job_that_is_resumed_in_the_moment_in_which_its_driver_leaves_goes_on(supervisor, create, reach):
    job_id = create()
    reach(job_id, JobState.RUNNING)
    supervisor.folder(job_id).write_outcome(Outcome(1, JobState.PAUSED))
    reach(job_id, JobState.PENDING)
    again = reach(job_id, JobState.RUNNING)
    assert (again.epoch, again.restarts) == (2, 0)


def test_a_cancelled_job_whose_driver_does_not_stop_is_killed(
    store, supervisor, create, launcher, reach, *, monkeypatch
):
    monkeypatch.setattr("jobs.supervisor._CANCEL_SECONDS", 0.2)
    job_id = create()
    reach(job_id, JobState.RUNNING)
    store.move(job_id, JobState.CANCELLING, actor="ann")
    cancelled = reach(job_id, JobState.CANCELLED)
    assert cancelled.error is None
    assert not launcher.drivers[0].is_alive
    assert not supervisor.folder(job_id).may_go_on(1)


def test_a_paused_job_that_is_interrupted_stays_paused_without_its_driver(
    store, supervisor, create, launcher, reach
):
    job_id = create()
    reach(job_id, JobState.RUNNING)
    store.move(job_id, JobState.PAUSED, actor="ann")
    supervisor.interrupt("The service was stopped.")
    assert (store.get(job_id).state, store.get(job_id).driver) == (JobState.PAUSED, None)
    assert not launcher.drivers[0].is_alive
