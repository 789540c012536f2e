"""How jobs come to have a driver, and how those that wait get their turn."""

import threading

from backfill.run.folder import BackfillFolder
from backfill.run.progress import CheckpointFolder, SliceCheckpoint
from backfill.steer.kind import BACKFILL
from jobs.folder import Control, Order, Outcome
from model.errors import LaunchError
from model.job import JobState, new_job_id


def test_what_waits_is_launched_and_its_figures_and_its_end_are_followed(
    store, supervisor, create, launcher, reach
):
    job_id = create()
    running = reach(job_id, JobState.RUNNING)
    folder = BackfillFolder.of(supervisor.folder(job_id))
    assert launcher.launched[0].argument == f'{{"folder": "{folder.path}", "epoch": 1}}'
    assert folder.read_control() == Control(1, Order.RUN)
    assert running.driver == launcher.drivers[0]
    checkpoints = CheckpointFolder(folder.progress)
    checkpoints.create()
    checkpoints.write(SliceCheckpoint(0, 1, offset=5, published=5))
    supervisor.tick()
    assert store.get(job_id).progress.get("published") == 5
    folder.write_outcome(Outcome(1, JobState.SUCCEEDED))
    reach(job_id, JobState.SUCCEEDED)


def test_a_launch_that_fails_fails_the_job(supervisor, create, launcher, reach):
    launcher.refuses = True
    job_id = create()
    failed = reach(job_id, JobState.FAILED)
    assert (failed.error.code, failed.error.message) == ("launch_failed", "There is no Spark today.")
    assert not supervisor.folder(job_id).may_go_on(1)


def test_only_so_many_run_and_the_oldest_waits_least(store, supervisor, create, reach):
    jobs = sorted(create() for _ in range(3))
    reach(jobs[0], JobState.RUNNING)
    reach(jobs[1], JobState.RUNNING)
    for _ in range(5):
        supervisor.tick()
    assert store.get(jobs[2]).state is JobState.PENDING
    supervisor.folder(jobs[0]).write_outcome(Outcome(1, JobState.SUCCEEDED))
    reach(jobs[2], JobState.RUNNING)
    assert store.get(jobs[0]).state is JobState.SUCCEEDED


def test_a_job_whose_files_were_removed_fails_and_says_so(store, launcher, reach):
    job_id = store.insert(new_job_id("bf"), BACKFILL.name, {}, actor="ann").id
    failed = reach(job_id, JobState.FAILED)
    assert failed.error.code == "selection_gone"
    assert launcher.launched == []


def test_a_job_that_waits_for_spark_stays_pending_when_the_service_ends(
    store, supervisor, create, launcher, monkeypatch
):
    is_starting, is_over = threading.Event(), threading.Event()

    def prepare():
        is_starting.set()
        assert is_over.wait(20)
        raise LaunchError("Spark was stopped while it started.")

    monkeypatch.setattr(launcher, "prepare", prepare)
    job_id = create()
    supervisor.tick()
    assert is_starting.wait(20)
    supervisor.stop()
    is_over.set()
    supervisor.join()
    assert store.get(job_id).state is JobState.PENDING
