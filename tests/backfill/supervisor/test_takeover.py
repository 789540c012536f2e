"""Several supervisors of one job store: who drives a job, and who takes it over."""

import signal
from dataclasses import replace

from backfill.steer.kind import BACKFILL
from jobs.folder import Control, Order
from jobs.lease_owner import LeaseOwner
from jobs.supervisor import JobSupervisor
from model.job import JobState
from tests.waiting import wait_until


def test_the_next_supervisor_finds_running_jobs_and_restarts_dead_ones(
    store, supervisor, create, launcher, reach, *, tmp_path, no_waiting
):
    alive, dead = create(), create()
    reach(alive, JobState.RUNNING)
    driver = reach(dead, JobState.RUNNING).driver
    waiting = create()
    supervisor.stop()
    supervisor.join()
    driver.signal_group(signal.SIGKILL)
    another = JobSupervisor(BACKFILL, store, launcher, BACKFILL.open_folders(tmp_path), max_running=2)
    another.start()
    try:
        wait_until(lambda: store.get(dead).restarts == 1, "the dead one is to start again")
        wait_until(lambda: store.get(dead).state is JobState.RUNNING, "it runs before the one that came later")
        assert store.get(alive).epoch == 1
        assert store.get(waiting).state is JobState.PENDING
        assert len(launcher.launched) == 3
    finally:
        another.stop()
        another.join()


def test_an_attempt_that_a_dying_service_began_is_begun_again_and_fences_the_first(
    store, supervisor, create, reach
):
    job_id = create()
    # Epoch 1 was given and its driver perhaps started, then the service died.
    store.begin_attempt(job_id)
    supervisor.folder(job_id).write_control(Control(1, Order.RUN))
    assert reach(job_id, JobState.RUNNING).epoch == 2
    assert not supervisor.folder(job_id).may_go_on(1)


def test_a_job_of_a_process_that_is_gone_is_taken_over_at_once(store, create, reach):
    gone = LeaseOwner(LeaseOwner.current().host, replace(LeaseOwner.current().process, start_ticks=1))
    job_id = create()
    assert store.claim(BACKFILL.name, str(gone), limit=1, lease_seconds=600)
    assert reach(job_id, JobState.RUNNING).lease_owner != str(gone)


def test_a_launch_that_was_overtaken_leaves_no_driver_behind(store, supervisor, create, launcher, monkeypatch):
    """While this one was stopped in the middle of a launch, another one took the job and launched it."""
    job_id = create()
    launch = launcher.launch

    def launch_late(what):
        store.release_all(store.get(job_id).lease_owner)
        store.claim(BACKFILL.name, "another", limit=9, lease_seconds=600)
        epoch = store.begin_attempt(job_id, owner="another").epoch
        supervisor.folder(job_id).write_control(Control(epoch, Order.RUN))
        return launch(what)

    monkeypatch.setattr(launcher, "launch", launch_late)
    supervisor.tick()
    wait_until(lambda: bool(launcher.drivers) and not launcher.drivers[0].is_alive, "the late driver is ended")
    supervisor.tick()
    job = store.get(job_id)
    assert (job.state, job.epoch, job.lease_owner) == (JobState.PENDING, 2, "another")
    assert supervisor.folder(job_id).read_control() == Control(2, Order.RUN)
