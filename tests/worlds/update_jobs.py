"""Updates as tests bring them from step to step, without the processes of an agent."""

from typing import Any

from jobs.store import JobStore, update_of
from model.fault import FaultRecord
from model.job import JobState
from model.stream_update import UNWANTED, UPDATE_STEPS, StreamUpdate, UpdateFault, UpdateState

_STEP_OF = {state: step for step, state in UPDATE_STEPS.items()}


def advance_update(
    store: JobStore,
    seen: StreamUpdate,
    state: UpdateState,
    *,
    error: UpdateFault | None = None,
    why: str | None = None,
    **memory: Any,
) -> StreamUpdate:
    """Bring an update to a state as its agent does; ``memory`` is what the step found."""
    job = store.get(seen.id)
    if error is not None:
        memory["error"] = error
    if not state.is_ended:
        if state is UpdateState.HANDING_OVER:
            memory = {"handed_over_at": store.now(), "outgoing_id": "in_1", **memory}
        reason = why if error is None else str(error)
        begun = store.begin_step(
            job,
            _STEP_OF[state],
            owner=None,
            why=reason,
            memory=memory,
            entered=lambda job: store.enter_update_step(job, reason),
        )
        return update_of(begun)
    if job.state is JobState.PENDING:
        job = store.begin_step(job, str(job.step), owner=None)
    ends = {UpdateState.STABLE: JobState.SUCCEEDED, UpdateState.ROLLED_BACK: JobState.FAILED}
    is_unwanted = error is not None and error.code == UNWANTED
    ended = store.end_step_job(
        job,
        JobState.CANCELLED if is_unwanted else ends.get(state, JobState.FAILED),
        owner=None,
        error=None if error is None or state is UpdateState.STABLE else FaultRecord(error.code, error.message),
        ended=store.end_update,
        memory={**memory, "outcome": state, "why": why},
    )
    return update_of(ended)


def note_update(store: JobStore, seen: StreamUpdate, **memory: Any) -> StreamUpdate:
    """Keep what the present step of an update has found."""
    return update_of(store.note_step(store.get(seen.id), memory))
