"""What goes wrong around a supervisor: slow looks, files that can't be read, orders that come late."""

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from backfill.steer.kind import BACKFILL
from backup.compaction.kind import COMPACTION
from jobs.folder import JobFolder, JobFolders, Outcome
from jobs.kinds import JobKind
from jobs.launcher import Launch, _Processes
from jobs.store import JobFilter
from jobs.supervisor import JobSupervisor
from model.errors import CheckpointCorruptError
from model.job import JobState, new_job_id
from model.process import DataprocBatch, Driver, Process
from reporting.kind import MERGE
from tests.reaching import ending, reach
from tests.waiting import wait_until
from tests.worlds.launchers import IdleLauncher

KIND = "backfill"
# One that is not here: its life is told by its heartbeat, and nothing is ever signalled.
DRIVER = Process(1, 1, "another machine")


class Drivers(IdleLauncher):
    """A launcher of drivers that are never started."""

    def __init__(self) -> None:
        self.launched: list[Launch] = []
        self.killed: list[Driver] = []
        self.driver: Driver = DRIVER

    def kill(self, driver: Driver) -> None:
        self.killed.append(driver)

    def launch(self, launch: Launch) -> Driver:
        self.launched.append(launch)
        return self.driver


class QuickDrivers(Drivers):
    """Starts real processes, which say at once that all is done."""

    def __init__(self) -> None:
        super().__init__()
        self._processes = _Processes()

    def launch(self, launch: Launch) -> Process:
        outcome = json.dumps({"epoch": launch.attempt, "state": "SUCCEEDED", "error": None})
        command = ["/bin/sh", "-c", f"echo '{outcome}' > outcome-{launch.attempt}.json"]
        return self._processes.start(command, {}, launch.log)

    def exit_reason(self, driver: Driver) -> str | None:
        return self._processes.exit_reason(driver)


def kind_of(write_figures: Callable[[str], None]) -> JobKind:
    return JobKind(
        KIND, "backfills", "bf", "backfills", "module", lambda _: lambda _store, job_id: write_figures(job_id)
    )


@pytest.fixture
def drivers():
    return Drivers()


@pytest.fixture
def supervise(store, drivers, tmp_path):
    """Return what makes a supervisor whose figures are written by the function that is given."""

    def make(write_figures=lambda _: None, **options):
        kind = kind_of(write_figures)
        supervisor = JobSupervisor(kind, store, drivers, JobFolders.at(tmp_path), max_running=4, **options)
        return stack.enter_context(ending(supervisor))

    with ExitStack() as stack:
        yield make


@pytest.fixture
def create(store, tmp_path):
    def create():
        job_id = new_job_id("bf")
        JobFolder(tmp_path / job_id).write_specification({})
        return store.insert(job_id, KIND, {}, actor="ann").id

    return create


def test_a_slow_look_at_one_job_costs_no_lease(store, supervise, create):
    """Else two loaded replicas take jobs from each other for ever, and none gets one launched."""
    job_id = create()
    looks, go_on = threading.Event(), threading.Event()

    def look_slowly(_job_id):
        looks.set()
        assert go_on.wait(60)

    supervisor = supervise(look_slowly, lease_seconds=1.0)
    supervisor.start()
    try:
        assert looks.wait(30), "it looks at the job that it has launched"
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            assert store.take_over(KIND, "another", lease_seconds=60) == []
            time.sleep(0.05)
    finally:
        go_on.set()
    assert store.get(job_id).state is JobState.RUNNING


def test_a_job_that_another_supervisor_has_taken_leaves_nothing_behind(store, supervise, create):
    """Else a service that runs for months keeps a little of every job that it lost."""
    job_id = create()
    supervisor = supervise()
    reach(supervisor, store, job_id, JobState.RUNNING)
    wait_until(lambda: (supervisor.tick(), job_id in supervisor._watches)[1], "it looks at the job's driver")
    store.release_all(supervisor._owner)
    assert [job.id for job in store.take_over(KIND, "another", lease_seconds=60)] == [job_id]
    supervisor.tick()
    assert job_id not in supervisor._watches


def test_a_launch_that_ends_at_once_is_not_taken_for_one_that_goes_on(supervise, create, monkeypatch):
    job_id = create()
    supervisor = supervise()
    monkeypatch.setattr(supervisor._pool, "submit", lambda work, *given: work(*given))
    supervisor.tick()
    assert job_id not in supervisor._launching


def test_an_ended_job_whose_files_can_t_be_read_keeps_no_other_from_its_launch(store, drivers, supervise, create):
    broken = create()
    ended = False

    def read(job_id):
        if ended and job_id == broken:
            raise CheckpointCorruptError

    supervisor = supervise(read)
    reach(supervisor, store, broken, JobState.RUNNING)
    supervisor.folder(broken).write_outcome(Outcome(1, JobState.SUCCEEDED))
    reach(supervisor, store, broken, JobState.SUCCEEDED)
    ended = True
    reach(supervisor, store, create(), JobState.RUNNING)
    assert len(drivers.launched) == 2


def test_a_cancel_that_somebody_else_ended_takes_no_grace_from_the_next_one(
    store, drivers, supervise, create, monkeypatch
):
    monkeypatch.setattr("jobs.supervisor._CANCEL_SECONDS", 0.5)
    drivers.driver = DataprocBatch("projects/p/locations/r/batches/b")
    job_id = create()
    supervisor = supervise()

    def cancel(seconds):
        reach(supervisor, store, job_id, JobState.RUNNING)
        store.move(job_id, JobState.CANCELLING, actor="ann")
        until = time.monotonic() + seconds
        supervisor.tick()
        wait_until(lambda: time.monotonic() >= until, "some time is over")

    cancel(0.6)
    # Its lease was lost, and the other replica has seen the driver's end.
    store.move(job_id, JobState.CANCELLED, actor="another")
    store.move(job_id, JobState.PENDING, actor="ann")
    cancel(0.0)
    assert drivers.killed == []


def test_a_driver_that_was_told_to_stop_by_nobody_is_replaced(store, drivers, supervise, create, monkeypatch):
    """A replica that stood still in writing an order, and wakes up late, may fence the attempt of another one."""
    monkeypatch.setattr("jobs.supervisor._RESTART_WAITS_SECONDS", (0.0,))
    job_id = create()
    supervisor = supervise()
    reach(supervisor, store, job_id, JobState.RUNNING)
    supervisor.folder(job_id).write_outcome(Outcome(1, JobState.CANCELLED))
    reach(supervisor, store, job_id, JobState.PENDING)
    reach(supervisor, store, job_id, JobState.RUNNING)
    assert len(drivers.launched) == 2
    job = store.get(job_id)
    assert (job.epoch, job.restarts) == (2, 1)
    assert "nobody cancelled" in str([event.why for event in store.list_events(job_id)])


def test_a_driver_that_has_ended_before_it_could_be_noted_is_taken_at_its_word(
    store, tmp_path, create, monkeypatch
):
    """The replica stands still right after it has started the driver, which ends meanwhile."""
    of_child = Process.of_child

    def stand_still(pid):
        wait_until(lambda: Process.of(pid) is None, "the driver has ended")
        return of_child(pid)

    monkeypatch.setattr(Process, "of_child", stand_still)
    kind = kind_of(lambda _: None)
    job_id = create()
    with ending(JobSupervisor(kind, store, QuickDrivers(), JobFolders.at(tmp_path), max_running=1)) as supervisor:
        reach(supervisor, store, job_id, JobState.SUCCEEDED)
    assert (store.get(job_id).epoch, store.get(job_id).restarts) == (1, 0)


def test_a_launch_that_fails_is_tried_again_at_the_next_look_and_not_at_once(supervise, create, monkeypatch):
    """A disk is full for minutes: else they go by in attempts of the job, as fast as a core makes them."""
    tries = []
    wakes = []

    def write_control(folder, _):
        tries.append(folder)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(JobFolder, "write_control", write_control)
    create()
    supervisor = supervise()
    monkeypatch.setattr(supervisor, "wake", lambda: wakes.append(True))
    for count in (1, 2):
        supervisor.tick()
        wait_until(lambda: not supervisor._launching, "the launch is over")
        assert (len(tries), wakes) == (count, [])


def test_a_cancel_that_can_t_be_written_down_ends_the_driver_all_the_same(
    store, drivers, supervise, create, monkeypatch
):
    """The disk of the home is full, and the driver works on where it is not."""
    monkeypatch.setattr("jobs.supervisor._CANCEL_SECONDS", 0.2)
    drivers.driver = replace(Process.of(os.getpid()), start_ticks=1)
    job_id = create()
    supervisor = supervise()
    reach(supervisor, store, job_id, JobState.RUNNING)

    def write_control(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(JobFolder, "write_control", write_control)
    store.move(job_id, JobState.CANCELLING, actor="ann")
    wait_until(lambda: (supervisor.tick(), bool(drivers.killed))[1], "the driver is killed", seconds=5.0)


def test_an_interrupt_stops_every_job_that_it_can(store, drivers, supervise, create, monkeypatch):
    first, second = create(), create()
    supervisor = supervise()
    # Of this machine, and gone.
    drivers.driver = replace(Process.of(os.getpid()), start_ticks=1)
    for job_id in (first, second):
        reach(supervisor, store, job_id, JobState.RUNNING)
    write_control = JobFolder.write_control

    def write(folder, control):
        if folder.name == first:
            raise OSError(28, "No space left on device")
        return write_control(folder, control)

    monkeypatch.setattr(JobFolder, "write_control", write)
    supervisor.stop()
    supervisor.interrupt("The service was stopped.")
    assert (store.get(first).state, store.get(second).state) == (JobState.RUNNING, JobState.FAILED)
    assert len(drivers.killed) == 2


@pytest.mark.parametrize("is_forgotten", [True, False])
def test_records_of_jobs_that_schedules_make_for_years_go_after_months(store, tmp_path, monkeypatch, is_forgotten):
    kind = JobKind("merge", "merges", "mg", "merges", "module", lambda _: lambda _store, _id: None)
    kind = replace(kind, is_forgotten=is_forgotten)
    made = [store.insert(new_job_id("mg"), "merge", {}, actor="ann").id for _ in range(3)]
    for job_id in made:
        store.move(job_id, JobState.CANCELLED, actor="ann")
    monkeypatch.setattr("jobs.supervisor._KEPT_RECORDS", 1)
    folders = JobFolders.at(tmp_path / "merges")
    keep = timedelta(days=120)
    supervisor = JobSupervisor(kind, store, Drivers(), folders, max_running=1, keep=keep)
    for days, left in ((119, 3), (121, 1 if is_forgotten else 3)):
        monkeypatch.setattr(store._database, "now", lambda _, days=days: datetime.now(UTC) + timedelta(days=days))
        supervisor._clean()
        assert len(store.list_jobs(JobFilter(kinds=("merge",)), limit=9)) == left
    assert (MERGE.is_forgotten, COMPACTION.is_forgotten, BACKFILL.is_forgotten) == (True, True, False)
