"""A supervisor over a store of its own, whose drivers are processes that only sleep."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from backfill.steer.kind import BACKFILL
from jobs.store import Job, JobStore
from jobs.supervisor import JobSupervisor
from model.job import JobState, new_job_id
from tests import reaching


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.supervisor._RESTART_WAITS_SECONDS", (0.0, 0.0, 0.0))


@pytest.fixture
def supervisor(store: JobStore, launcher: Any, tmp_path: Path) -> Iterator[JobSupervisor]:
    made = JobSupervisor(BACKFILL, store, launcher, BACKFILL.open_folders(tmp_path), max_running=2)
    with reaching.ending(made) as supervisor:
        yield supervisor


@pytest.fixture
def create(store: JobStore, supervisor: JobSupervisor) -> Callable[..., str]:
    """Make a job that waits, with its folder; ``chosen`` goes to the store."""

    def make(**chosen: Any) -> str:
        job_id = new_job_id("bf")
        supervisor.folder(job_id).write_specification({})
        return store.insert(job_id, BACKFILL.name, {}, actor="ann", **chosen).id

    return make


@pytest.fixture
def reach(store: JobStore, supervisor: JobSupervisor) -> Callable[[str, JobState], Job]:
    """Return what ticks until a job has a state."""
    return partial(reaching.reach, supervisor, store)
