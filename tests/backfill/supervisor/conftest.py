"""A supervisor over a store of its own, whose drivers are processes that only sleep."""

from functools import partial

import pytest

from backfill.steer.kind import BACKFILL
from jobs.supervisor import JobSupervisor
from model.job import new_job_id
from tests import reaching


@pytest.fixture
def no_waiting(monkeypatch):
    monkeypatch.setattr("jobs.supervisor._RESTART_WAITS_SECONDS", (0.0, 0.0, 0.0))


@pytest.fixture
def supervisor(store, launcher, tmp_path):
    made = JobSupervisor(BACKFILL, store, launcher, BACKFILL.open_folders(tmp_path), max_running=2)
    with reaching.ending(made) as supervisor:
        yield supervisor


@pytest.fixture
def create(store, supervisor):
    """Make a job that waits, with its folder; ``chosen`` goes to the store."""

    def make(**chosen):
        job_id = new_job_id("bf")
        supervisor.folder(job_id).write_specification({})
        return store.insert(job_id, BACKFILL.name, {}, actor="ann", **chosen).id

    return make


@pytest.fixture
def reach(store, supervisor):
    """Return what ticks until a job has a state."""
    return partial(reaching.reach, supervisor, store)
