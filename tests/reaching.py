"""Whether a job has come to a state, however shortly it was in it."""

from collections.abc import Callable

from jobs.store import JobStore
from model.job import JobState


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
