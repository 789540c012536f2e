"""Jobs that make snapshots, as tests carry them out and end them."""

from typing import Any

from jobs.store import DELETION, SNAPSHOT, Job, JobStore
from model.fault import FaultRecord
from model.job import JobState
from model.stream_snapshot import SnapshotPlace, SnapshotRecord

FACTS = {"sources": [], "format_version": 1, "size_bytes": 1, "seconds_paused": 0.1, "known_messages": 1}


def begin_snapshot(store: JobStore, snapshot_id: str, place: SnapshotPlace | None = None) -> Job:
    """Begin a run of the job that makes a PENDING snapshot, and note the place of its files."""
    (job,) = [each for each in store.list_step_jobs([SNAPSHOT]) if each.request["snapshot_id"] == snapshot_id]
    job = store.begin_step(job, "make", owner=None)
    return job if place is None else store.note_step(job, {"place": place})


def complete_snapshot(store: JobStore, snapshot_id: str, job: Job | None = None, **facts: Any) -> SnapshotRecord:
    """Make a PENDING snapshot COMPLETED, as a run found it."""
    job = job or begin_snapshot(store, snapshot_id)
    made = {"taken_at": store.get_snapshot(snapshot_id).created_at, **FACTS, **facts}
    job = store.note_step(job, {"made": made})
    store.end_step_job(job, JobState.SUCCEEDED, owner=None, ended=store.end_snapshot)
    return store.get_snapshot(snapshot_id)


def fail_snapshot(store: JobStore, snapshot_id: str, error: FaultRecord, job: Job | None = None) -> SnapshotRecord:
    job = job or begin_snapshot(store, snapshot_id)
    store.end_step_job(job, JobState.FAILED, owner=None, error=error, ended=store.end_snapshot)
    return store.get_snapshot(snapshot_id)


def end_deletion(store: JobStore, error: FaultRecord | None = None) -> None:
    (job,) = store.list_step_jobs([DELETION])
    job = store.begin_step(job, "delete", owner=None)
    state = JobState.SUCCEEDED if error is None else JobState.FAILED
    store.end_step_job(job, state, owner=None, error=error, ended=store.end_deletion)
