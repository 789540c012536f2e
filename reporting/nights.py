"""What merges found over nights: one line for each source of each merge that ended, newest first."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Final

from jobs.store import Job, JobFilter, JobStore
from model.job import JobState
from reporting.kind import MERGE
from reporting.view import Merge

# A year of nights; one merge holds all sources.
_MOST_MERGES: Final = 400
_ENDED: Final = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


def list_merged_sources(store: JobStore, since: datetime, source: str | None = None) -> list[dict[str, Any]]:
    """Return how each source fared in each merge that ended since a time, in the API's shape, newest first.

    Dry runs are left out, as they change nothing and make no audits; so are sources that a merge did not get to.
    The newest 400 merges are looked at.
    """
    ended = JobFilter(states=_ENDED, ended_since=since)
    return list(_lines(store.list_jobs(MERGE.name, limit=_MOST_MERGES, where=ended), source))


def _lines(jobs: Iterable[Job], source: str | None) -> Iterator[dict[str, Any]]:
    for merge in map(Merge.from_job, jobs):
        for found in merge.sources if not merge.dry_run else ():
            if found["state"] in {"merged", "failed"} and source in {None, found["source"]}:
                yield {"merge_id": merge.id, "finished_at": merge.finished_at, **found}
