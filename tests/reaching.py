"""Supervisors that a test looks with, and whether a job has come to a state, however shortly it was in it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jobs.store import Job, JobStore
from jobs.supervisor import JobSupervisor
from model.job import JobState
from tests.waiting import wait_until


def watch_for(store: JobStore, job_id: str, state: JobState) -> Callable[[], bool]:
    """Return what tells whether the job is in the state, or was since this call.

    A job whose driver has ended waits for its next one between two looks at it, or within one.
    """
    seen = len(store.list_events(job_id))

    def has_been() -> bool:
        if store.get(job_id).state is state:
            return True
        return any(event.what.endswith(f" -> {state}") for event in store.list_events(job_id)[seen:])

    return has_been


def reach(supervisor: JobSupervisor, store: JobStore, job_id: str, state: JobState) -> Job:
    has_been = watch_for(store, job_id, state)

    def has_it() -> bool:
        supervisor.tick()
        return has_been()

    wait_until(has_it, f"{job_id} is {state}")
    return store.get(job_id)


@contextmanager
def ending(supervisor: JobSupervisor) -> Iterator[JobSupervisor]:
    try:
        yield supervisor
    finally:
        supervisor.stop()
        supervisor.join()
