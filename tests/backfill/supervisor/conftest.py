"""A supervisor over a store of its own, whose drivers are processes that only sleep."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backfill.steer.kind import BACKFILL
from jobs.store import Job, JobStore
from jobs.supervisor import JobSupervisor
from model.job import JobState, new_job_id
from tests.reaching import watch_for
from tests.waiting import wait_until


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.supervisor._RESTART_WAITS_SECONDS", (0.0, 0.0, 0.0))


@pytest.fixture
def supervisor(store: JobStore, launcher: Any, tmp_path: Path) -> Iterator[JobSupervisor]:
    supervisor = JobSupervisor(BACKFILL, store, launcher, BACKFILL.open_folders(tmp_path), max_running=2)
    yield supervisor
    supervisor.stop()
    supervisor.join()


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

    def reach(job_id: str, state: JobState) -> Job:
        has_been = watch_for(store, job_id, state)

        def has_it() -> bool:
            supervisor.tick()
            return has_been()

        wait_until(has_it, f"{job_id} is {state}")
        return store.get(job_id)

    return reach
