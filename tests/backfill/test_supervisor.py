"""Jobs and their drivers' lives and deaths; drivers are processes that only sleep."""

import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backfill.chores import KIND
from backfill.selection import write_selection
from backfill.supervisor import Supervisor
from jobs.folder import Control, JobFolder, Order, Outcome
from jobs.owner import Owner
from jobs.progress import CheckpointFolder, SliceCheckpoint
from jobs.store import Job, JobStore
from model.errors import LaunchError
from model.job import JobState, new_job_id
from model.process import Process

Wait = Callable[..., None]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    store = JobStore(tmp_path / "jobs.db")
    yield store
    store.close()


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.supervisor._RESTART_WAITS_SECONDS", (0.0, 0.0, 0.0))


@pytest.fixture
def supervisor(store: JobStore, launcher: Any, tmp_path: Path) -> Iterator[Supervisor]:
    supervisor = Supervisor(store, launcher, tmp_path, max_running=2)
    yield supervisor
    supervisor.stop()
    supervisor.join()


def create(store: JobStore, supervisor: Supervisor, **chosen: Any) -> str:
    job_id = new_job_id("bf")
    supervisor.folder(job_id).write_specification({})
    return store.insert(job_id, KIND, {}, actor="ann", **chosen).id


@pytest.fixture
def reach(store: JobStore, supervisor: Supervisor, wait_for: Wait) -> Callable[[str, JobState], Job]:
    """Return what ticks until a job has a state."""

    def reach(job_id: str, state: JobState) -> Job:
        def has_it() -> bool:
            supervisor.tick()
            return store.get(job_id).state is state

        wait_for(has_it, f"{job_id} is {state}")
        return store.get(job_id)

    return reach


def test_what_waits_is_launched_and_its_figures_and_its_end_are_followed(
    store: JobStore, supervisor: Supervisor, launcher: Any, reach: Any
) -> None:
    job_id = create(store, supervisor)
    running = reach(job_id, JobState.RUNNING)
    folder = supervisor.folder(job_id)

    assert launcher.launched[0].argument == f'{{"folder": "{folder.path}", "epoch": 1}}'
    assert folder.read_control() == Control(1, Order.RUN)
    assert running.driver == launcher.drivers[0]

    checkpoints = CheckpointFolder(folder.progress)
    checkpoints.create()
    checkpoints.write(SliceCheckpoint(0, 1, offset=5, published=5))
    supervisor.tick()
    assert store.get(job_id).progress.published == 5

    folder.write_outcome(Outcome(1, JobState.SUCCEEDED))
    reach(job_id, JobState.SUCCEEDED)


def test_a_job_whose_driver_is_killed_goes_on_with_another_one(
    store: JobStore, supervisor: Supervisor, launcher: Any, reach: Any, no_waiting: None
) -> None:
    job_id = create(store, supervisor)
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
    assert why is not None
    assert why.startswith("Restarted (1 of 3): ")
    assert "was killed" in why
    assert "the last thing it said" in why


def test_a_job_whose_driver_dies_again_and_again_fails_and_says_why(
    store: JobStore, supervisor: Supervisor, launcher: Any, reach: Any, no_waiting: None
) -> None:
    job_id = create(store, supervisor)
    for number in range(4):
        reach(job_id, JobState.RUNNING)
        launcher.drivers[number].signal_group(signal.SIGKILL)
        reach(job_id, JobState.PENDING if number < 3 else JobState.FAILED)

    failed = store.get(job_id)
    assert failed.error is not None
    assert failed.error.code == "driver_died"
    assert "was killed" in failed.error.message
    assert "restarted 3 times" in failed.error.message
    assert not supervisor.folder(job_id).may_go_on(4)
    # A person's retry starts the count anew.
    store.move(job_id, JobState.PENDING, actor="ann")
    assert reach(job_id, JobState.RUNNING).restarts == 0


def test_a_restart_waits_a_moment(
    store: JobStore, supervisor: Supervisor, launcher: Any, reach: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.supervisor._RESTART_WAITS_SECONDS", (600.0,))
    job_id = create(store, supervisor)
    reach(job_id, JobState.RUNNING)
    launcher.drivers[0].signal_group(signal.SIGKILL)
    reach(job_id, JobState.PENDING)

    for _ in range(5):
        supervisor.tick()

    assert len(launcher.launched) == 1


def test_a_driver_that_fails_with_a_reason_of_its_own_is_not_restarted(
    store: JobStore, supervisor: Supervisor, launcher: Any, reach: Any, no_waiting: None
) -> None:
    job_id = create(store, supervisor)
    reach(job_id, JobState.RUNNING)
    error = {"code": "query_failed", "message": "division by zero"}
    supervisor.folder(job_id).write_outcome(Outcome(1, JobState.FAILED, error))

    assert reach(job_id, JobState.FAILED).restarts == 0
    supervisor.tick()
    assert len(launcher.launched) == 1


def test_a_driver_that_said_how_it_ended_before_it_died_is_believed(
    store: JobStore, supervisor: Supervisor, launcher: Any, reach: Any
) -> None:
    job_id = create(store, supervisor)
    reach(job_id, JobState.RUNNING)
    error = {"code": "query_failed", "message": "division by zero"}
    supervisor.folder(job_id).write_outcome(Outcome(1, JobState.FAILED, error))
    launcher.drivers[0].signal_group(signal.SIGKILL)

    failed = reach(job_id, JobState.FAILED)

    assert failed.error is not None
    assert (failed.error.code, failed.error.message) == ("query_failed", "division by zero")


def test_a_launch_that_fails_fails_the_job(
    store: JobStore, supervisor: Supervisor, launcher: Any, reach: Any
) -> None:
    launcher.refuses = True
    job_id = create(store, supervisor)

    failed = reach(job_id, JobState.FAILED)

    assert failed.error is not None
    assert (failed.error.code, failed.error.message) == ("launch_failed", "There is no Spark today.")
    assert not supervisor.folder(job_id).may_go_on(1)


def test_only_so_many_run_and_the_oldest_waits_least(
    store: JobStore, supervisor: Supervisor, reach: Any, wait_for: Wait
) -> None:
    jobs = sorted(create(store, supervisor) for _ in range(3))
    reach(jobs[0], JobState.RUNNING)
    reach(jobs[1], JobState.RUNNING)
    for _ in range(5):
        supervisor.tick()
    assert store.get(jobs[2]).state is JobState.PENDING

    supervisor.folder(jobs[0]).write_outcome(Outcome(1, JobState.SUCCEEDED))

    reach(jobs[2], JobState.RUNNING)
    assert store.get(jobs[0]).state is JobState.SUCCEEDED


def test_a_cancelled_job_whose_driver_does_not_stop_is_killed(
    store: JobStore, supervisor: Supervisor, launcher: Any, reach: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.supervisor._CANCEL_SECONDS", 0.2)
    job_id = create(store, supervisor)
    reach(job_id, JobState.RUNNING)

    store.move(job_id, JobState.CANCELLING, actor="ann")

    cancelled = reach(job_id, JobState.CANCELLED)
    assert cancelled.error is None
    assert not launcher.drivers[0].is_alive
    assert not supervisor.folder(job_id).may_go_on(1)


def test_a_retried_job_runs_as_a_new_attempt(
    store: JobStore, supervisor: Supervisor, launcher: Any, reach: Any
) -> None:
    job_id = create(store, supervisor)
    reach(job_id, JobState.RUNNING)
    supervisor.folder(job_id).write_outcome(Outcome(1, JobState.FAILED, {"code": "x", "message": "X."}))
    reach(job_id, JobState.FAILED)

    store.move(job_id, JobState.PENDING, actor="ann")

    again = reach(job_id, JobState.RUNNING)
    assert (again.epoch, again.error) == (2, None)
    assert supervisor.folder(job_id).read_control() == Control(2, Order.RUN)


def test_the_next_supervisor_finds_running_jobs_and_restarts_dead_ones(  # noqa: PLR0917
    store: JobStore,
    supervisor: Supervisor,
    launcher: Any,
    reach: Any,
    tmp_path: Path,
    wait_for: Wait,
    no_waiting: None,
) -> None:
    alive, dead = create(store, supervisor), create(store, supervisor)
    reach(alive, JobState.RUNNING)
    driver = reach(dead, JobState.RUNNING).driver
    waiting = create(store, supervisor)
    supervisor.stop()
    supervisor.join()
    assert driver is not None
    driver.signal_group(signal.SIGKILL)

    another = Supervisor(store, launcher, tmp_path, max_running=2)
    another.start()
    try:
        wait_for(lambda: store.get(dead).restarts == 1, "the dead one is to start again")
        wait_for(lambda: store.get(dead).state is JobState.RUNNING, "it runs before the one that came later")
        assert store.get(alive).epoch == 1
        assert store.get(waiting).state is JobState.PENDING
        assert len(launcher.launched) == 3
    finally:
        another.stop()
        another.join()


def test_an_attempt_that_a_dying_service_began_is_begun_again_and_fences_the_first(
    store: JobStore, supervisor: Supervisor, reach: Any
) -> None:
    job_id = create(store, supervisor)
    # Epoch 1 was given and its driver perhaps started, then the service died.
    store.begin_attempt(job_id)
    supervisor.folder(job_id).write_control(Control(1, Order.RUN))

    assert reach(job_id, JobState.RUNNING).epoch == 2
    assert not supervisor.folder(job_id).may_go_on(1)


def test_two_supervisors_share_the_work_and_no_job(
    store: JobStore, supervisor: Supervisor, launcher: Any, reach: Any, tmp_path: Path
) -> None:
    first, second = create(store, supervisor), create(store, supervisor)
    another = Supervisor(store, launcher, tmp_path, max_running=2)
    reach(first, JobState.RUNNING)
    reach(second, JobState.RUNNING)
    third = create(store, supervisor)

    # Two may run in all, whoever launches them.
    for _ in range(3):
        another.tick()
    assert store.get(third).state is JobState.PENDING
    assert len(launcher.launched) == 2

    another.stop()
    another.join()


def test_a_job_whose_supervisor_is_stopped_is_taken_over_with_its_driver(
    store: JobStore, launcher: Any, tmp_path: Path, wait_for: Wait
) -> None:
    """A process that is stopped can't be told from a slow one, so its lease has to expire."""
    first = Supervisor(store, launcher, tmp_path, max_running=2, lease_seconds=0.2)
    second = Supervisor(store, launcher, tmp_path, max_running=2)
    job_id = create(store, first)

    def tick_first() -> bool:
        first.tick()
        return store.get(job_id).state is JobState.RUNNING

    wait_for(tick_first, "the first one launches it")
    owner = store.get(job_id).lease_owner

    def tick_second() -> bool:
        second.tick()
        return store.get(job_id).lease_owner not in {owner, None}

    wait_for(tick_second, "the second one takes it over")
    second.folder(job_id).write_outcome(Outcome(1, JobState.SUCCEEDED))
    # The first one wakes up late, and finds that it is none of its business.
    first.tick()
    assert store.get(job_id).state is JobState.RUNNING
    second.tick()

    assert store.get(job_id).state is JobState.SUCCEEDED
    assert len(launcher.launched) == 1
    for one in (first, second):
        one.stop()
        one.join()


def test_a_job_of_a_process_that_is_gone_is_taken_over_at_once(
    store: JobStore, supervisor: Supervisor, launcher: Any, reach: Any
) -> None:
    gone = Owner(Owner.current().host, replace(Owner.current().process, start_ticks=1))
    job_id = create(store, supervisor)
    assert store.claim(KIND, str(gone), limit=1, lease_seconds=600)

    assert reach(job_id, JobState.RUNNING).lease_owner != str(gone)


def test_a_job_of_a_process_elsewhere_is_left_to_it(
    store: JobStore, supervisor: Supervisor, launcher: Any
) -> None:
    elsewhere = Owner("far-away", replace(Owner.current().process, boot_id="another"))
    job_id = create(store, supervisor)
    assert store.claim(KIND, str(elsewhere), limit=1, lease_seconds=600)

    for _ in range(3):
        supervisor.tick()

    assert store.get(job_id).state is JobState.PENDING
    assert launcher.launched == []


def test_a_driver_elsewhere_is_followed_by_its_heartbeat_and_replaced_when_that_stops(
    store: JobStore, supervisor: Supervisor, reach: Any, no_waiting: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.following._SILENCE_SECONDS", 0.5)
    job_id = create(store, supervisor)
    store.claim(KIND, "another", limit=1, lease_seconds=-1)
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
    assert "not been heard of" in str(store.list_events(job_id)[-1].why)
    assert reach(job_id, JobState.RUNNING).epoch == 2
    assert not folder.may_go_on(1)


def test_a_launch_that_was_overtaken_leaves_no_driver_behind(
    store: JobStore, supervisor: Supervisor, launcher: Any, wait_for: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While this one was stopped in the middle of a launch, another one took the job and launched it."""
    job_id = create(store, supervisor)
    launch = launcher.launch

    def launch_late(what: Any) -> Process:
        store.release(job_id, store.get(job_id).lease_owner)
        store.claim(KIND, "another", limit=9, lease_seconds=600)
        epoch = store.begin_attempt(job_id, owner="another").epoch
        supervisor.folder(job_id).write_control(Control(epoch, Order.RUN))
        return launch(what)

    monkeypatch.setattr(launcher, "launch", launch_late)
    supervisor.tick()
    wait_for(lambda: bool(launcher.drivers) and not launcher.drivers[0].is_alive, "the late driver is ended")
    supervisor.tick()

    job = store.get(job_id)
    assert (job.state, job.epoch, job.lease_owner) == (JobState.PENDING, 2, "another")
    assert supervisor.folder(job_id).read_control() == Control(2, Order.RUN)


def test_what_changes_while_a_job_runs_reaches_its_driver(
    store: JobStore, supervisor: Supervisor, reach: Any, wait_for: Wait
) -> None:
    """A service that died between the store and the control left only the first."""
    job_id = create(store, supervisor, options={"rate_limit_messages_per_second": 5, "canary_messages": 10})
    reach(job_id, JobState.RUNNING)
    folder = supervisor.folder(job_id)
    assert folder.read_control() == Control(1, Order.RUN, 5, 10)

    def told(control: Control) -> bool:
        supervisor.tick()
        return folder.read_control() == control

    store.change(job_id, actor="ann", what="faster", options={"rate_limit_messages_per_second": 9.5})
    wait_for(lambda: told(Control(1, Order.RUN, 9.5, 10)), "the rate is told")
    store.move(job_id, JobState.PAUSED, actor="ann")
    wait_for(lambda: told(Control(1, Order.PAUSE, 9.5, 10)), "the pause is told")
    store.move(job_id, JobState.RUNNING, actor="ann", options={"canary_messages": None})
    wait_for(lambda: told(Control(1, Order.RUN, 9.5)), "the resume is told")


def test_a_pause_by_the_driver_pauses_the_job_until_a_resume(
    store: JobStore, supervisor: Supervisor, reach: Any
) -> None:
    job_id = create(store, supervisor, options={"canary_messages": 10})
    reach(job_id, JobState.RUNNING)
    folder = supervisor.folder(job_id)

    folder.write_pause(1, "10 canary messages are published.")
    reach(job_id, JobState.PAUSED)

    event = store.list_events(job_id)[-1]
    assert (event.actor, event.why) == ("driver", "10 canary messages are published.")
    assert folder.read_control() == Control(1, Order.PAUSE, None, 10)
    folder.write_control(Control(1, Order.RUN))
    store.move(job_id, JobState.RUNNING, actor="ann", options={"canary_messages": None})
    for _ in range(3):
        supervisor.tick()
    assert store.get(job_id).state is JobState.RUNNING
    assert folder.may_publish(1)


def test_whoever_sees_a_pause_by_the_driver_sees_the_rows_that_it_paused_for(
    store: JobStore, supervisor: Supervisor, reach: Any, rows: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = create(store, supervisor)
    reach(job_id, JobState.RUNNING)
    read_pause = JobFolder.read_pause

    def select_and_pause(folder: JobFolder, epoch: int) -> str | None:
        # The driver is done just when the supervisor has read the figures and looks for a pause.
        if not folder.selection.exists():
            write_selection([rows(30)], folder.selection)
            folder.write_pause(epoch, "30 rows wait for an approval.")
        return read_pause(folder, epoch)

    monkeypatch.setattr(JobFolder, "read_pause", select_and_pause)

    assert reach(job_id, JobState.PAUSED).progress.selected == 30


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_paused_job_whose_driver_ends_stays_paused_and_is_resumed_by_a_new_one(  # noqa: PLR0917
    store: JobStore, supervisor: Supervisor, launcher: Any, reach: Any, wait_for: Wait, is_killed: bool
) -> None:
    job_id = create(store, supervisor)
    reach(job_id, JobState.RUNNING)
    store.move(job_id, JobState.PAUSED, actor="ann")
    if is_killed:
        launcher.drivers[0].signal_group(signal.SIGKILL)
    else:
        supervisor.folder(job_id).write_outcome(Outcome(1, JobState.PAUSED))

    def is_let_go() -> bool:
        supervisor.tick()
        return store.get(job_id).driver is None

    wait_for(is_let_go, "the store knows that there is no driver")
    for _ in range(3):
        supervisor.tick()
    assert (store.get(job_id).state, store.get(job_id).restarts) == (JobState.PAUSED, 0)
    assert [event.what for event in store.list_events(job_id)].count("driver ended") == 1

    store.move(job_id, JobState.PENDING, actor="ann")
    assert reach(job_id, JobState.RUNNING).epoch == 2


def test_a_job_that_is_resumed_in_the_moment_in_which_its_driver_leaves_goes_on(
    store: JobStore, supervisor: Supervisor, reach: Any
) -> None:
    job_id = create(store, supervisor)
    reach(job_id, JobState.RUNNING)
    supervisor.folder(job_id).write_outcome(Outcome(1, JobState.PAUSED))

    reach(job_id, JobState.PENDING)
    again = reach(job_id, JobState.RUNNING)

    assert (again.epoch, again.restarts) == (2, 0)


def test_a_job_that_starts_paused_is_not_launched_and_can_be_cancelled(
    store: JobStore, supervisor: Supervisor, launcher: Any, reach: Any
) -> None:
    job_id = create(store, supervisor, state=JobState.PAUSED)
    for _ in range(3):
        supervisor.tick()
    assert launcher.launched == []

    store.move(job_id, JobState.CANCELLING, actor="ann")

    reach(job_id, JobState.CANCELLED)


def test_a_job_whose_files_are_removed_while_it_runs_fails_and_says_so(
    store: JobStore, supervisor: Supervisor, launcher: Any, reach: Any, no_waiting: None
) -> None:
    job_id = create(store, supervisor)
    reach(job_id, JobState.RUNNING)
    shutil.rmtree(supervisor.folder(job_id).path)
    launcher.drivers[0].signal_group(signal.SIGKILL)

    failed = reach(job_id, JobState.FAILED)

    assert failed.error is not None
    assert failed.error.code == "selection_gone"


def test_a_job_whose_files_were_removed_fails_and_says_so(
    store: JobStore, supervisor: Supervisor, launcher: Any, reach: Any
) -> None:
    job_id = store.insert(new_job_id("bf"), KIND, {}, actor="ann").id

    failed = reach(job_id, JobState.FAILED)

    assert failed.error is not None
    assert failed.error.code == "selection_gone"
    assert launcher.launched == []


def test_interrupted_jobs_fail_and_their_drivers_end(
    store: JobStore, supervisor: Supervisor, launcher: Any, reach: Any
) -> None:
    job_id = create(store, supervisor)
    reach(job_id, JobState.RUNNING)

    supervisor.interrupt("The service was stopped.")

    job = store.get(job_id)
    assert job.state is JobState.FAILED
    assert job.error is not None
    assert job.error.code == "interrupted"
    assert not launcher.drivers[0].is_alive
    assert not supervisor.folder(job_id).may_go_on(1)


def test_a_paused_job_that_is_interrupted_stays_paused_without_its_driver(
    store: JobStore, supervisor: Supervisor, launcher: Any, reach: Any
) -> None:
    job_id = create(store, supervisor)
    reach(job_id, JobState.RUNNING)
    store.move(job_id, JobState.PAUSED, actor="ann")

    supervisor.interrupt("The service was stopped.")

    assert (store.get(job_id).state, store.get(job_id).driver) == (JobState.PAUSED, None)
    assert not launcher.drivers[0].is_alive


def test_a_job_that_waits_for_spark_stays_pending_when_the_service_ends(
    store: JobStore, supervisor: Supervisor, launcher: Any, wait_for: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_starting, is_over = threading.Event(), threading.Event()

    def prepare() -> None:
        is_starting.set()
        assert is_over.wait(20)
        raise LaunchError("Spark was stopped while it started.")

    monkeypatch.setattr(launcher, "prepare", prepare)
    job_id = create(store, supervisor)
    supervisor.tick()
    assert is_starting.wait(20)

    supervisor.stop()
    is_over.set()
    supervisor.join()

    assert store.get(job_id).state is JobState.PENDING
