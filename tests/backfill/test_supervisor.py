"""Jobs and their drivers' lives and deaths; drivers are processes that only sleep."""

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backfill.supervisor import KIND, Supervisor
from jobs.folder import Control, Order, Outcome
from jobs.progress import CheckpointFolder, SliceCheckpoint
from jobs.store import Job, JobStore
from model.errors import LaunchError
from model.job import JobState, new_job_id

Wait = Callable[..., None]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    store = JobStore(tmp_path / "jobs.db")
    yield store
    store.close()


@pytest.fixture
def supervisor(store: JobStore, launcher: Any, tmp_path: Path) -> Iterator[Supervisor]:
    supervisor = Supervisor(store, launcher, tmp_path, max_running=2)
    yield supervisor
    supervisor.stop()
    supervisor.join()


def create(store: JobStore, supervisor: Supervisor) -> str:
    job_id = new_job_id("bf")
    supervisor.folder(job_id).write_specification({})
    return store.insert(job_id, KIND, {}, actor="ann").id


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


def test_a_job_whose_driver_is_killed_fails_and_says_why(
    store: JobStore, supervisor: Supervisor, launcher: Any, reach: Any
) -> None:
    job_id = create(store, supervisor)
    reach(job_id, JobState.RUNNING)
    folder = supervisor.folder(job_id)
    folder.driver_log.write_text("first\nthe last thing it said\n")

    launcher.drivers[0].signal_group(signal.SIGKILL)
    failed = reach(job_id, JobState.FAILED)

    assert failed.error is not None
    assert failed.error.code == "driver_died"
    assert "was killed" in failed.error.message
    assert "the last thing it said" in failed.error.message
    # Its tasks may live on in a Connect server: they must stop.
    assert not folder.may_go_on(1)


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
    monkeypatch.setattr("backfill.supervisor._CANCEL_SECONDS", 0.2)
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
    launcher.drivers[0].signal_group(signal.SIGKILL)
    reach(job_id, JobState.FAILED)

    store.move(job_id, JobState.PENDING, actor="ann")

    again = reach(job_id, JobState.RUNNING)
    assert (again.epoch, again.error) == (2, None)
    assert supervisor.folder(job_id).read_control() == Control(2, Order.RUN)


def test_the_next_supervisor_finds_running_jobs_and_buries_dead_ones(  # noqa: PLR0917
    store: JobStore, supervisor: Supervisor, launcher: Any, reach: Any, tmp_path: Path, wait_for: Wait
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
        wait_for(lambda: store.get(dead).state is JobState.FAILED, "the dead one is FAILED")
        wait_for(lambda: store.get(waiting).state is JobState.RUNNING, "the waiting one is launched")
        assert store.get(alive).state is JobState.RUNNING
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


def test_of_two_supervisors_of_one_home_one_supervises(
    store: JobStore, supervisor: Supervisor, launcher: Any, reach: Any, tmp_path: Path
) -> None:
    job_id = create(store, supervisor)
    another = Supervisor(store, launcher, tmp_path, max_running=2)
    reach(job_id, JobState.RUNNING)
    waiting = create(store, supervisor)

    another.tick()
    another.stop()
    another.join()

    assert store.get(waiting).state is JobState.PENDING
    assert len(launcher.launched) == 1


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
