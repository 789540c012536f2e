"""Jobs that put streams back, as tests read and end them."""

from typing import Any

from jobs.steps import StepRunner
from jobs.store import RESTORE, JobStore, restore_of
from jobs.stream_threads import StreamThreads
from model.fault import FaultRecord
from model.job import JobState
from model.stream_snapshot import RestoreRecord
from rollout.restorer import StreamRestorer, StreamSite


def list_running_restores(store: JobStore) -> list[RestoreRecord]:
    return [restore_of(job) for job in store.list_step_jobs([RESTORE])]


def end_restore(store: JobStore, restore_id: str, *, error: FaultRecord | None = None, **memory: Any) -> None:
    """End a rollback as an agent does, with what its steps found."""
    job = store.get(restore_id)
    job = store.begin_step(job, job.step or "", owner=None, memory=memory)
    store.end_step_job(job, JobState.SUCCEEDED if error is None else JobState.FAILED, owner=None, error=error)


def restore_now(store: JobStore, restorer: StreamRestorer, restore_id: str, place: StreamSite) -> RestoreRecord:
    """Carry out a rollback in this thread, and return how it ended.

    Raises:
        RefeedError: something that passes by itself.
    """
    runner, job = StepRunner(store, [restorer.kind()], StreamThreads("test")), store.get(restore_id)
    while not job.state.is_final:
        if job.state is JobState.PENDING:
            job = store.begin_step(job, job.step or "", owner=None)
        job = runner.carry_out(job, place)
    return restore_of(job)
