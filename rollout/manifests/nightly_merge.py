"""The schedule that the setting REFEED_MERGE_AT makes, and others that merge the same beside it."""

from contextlib import suppress
from datetime import time, timedelta
from typing import Any, Final

from jobs.store import JobStore
from model.errors import ManifestInvalidError
from rollout.manifests import schedule
from rollout.manifests.manifest import Manifest, read_spec
from rollout.manifests.schedule import MergeJob, ScheduleManifest, read_schedule

# Who owns it, and its name.
SETTINGS: Final = "REFEED_MERGE_AT"
NIGHTLY_MERGE: Final = "nightly-merge"
_DAY: Final = timedelta(days=1)


def nightly_merge(at: time) -> Manifest:
    """Return what a person would write for REFEED_MERGE_AT: of nights that were missed the last is made up for."""
    document = {
        "kind": schedule.KIND,
        "name": NIGHTLY_MERGE,
        "description": f"{SETTINGS}={at:%H:%M}",
        "cron": f"{at.minute} {at.hour} * * *",
        "job": {"kind": "merge", "request": {}},
        "catch_up": {"window_seconds": _DAY.total_seconds(), "max": 1},
        "overlap": "queue",
    }
    return Manifest(document, read_spec(document))


def find_doubles(manifest: Manifest, store: JobStore) -> tuple[dict[str, str], ...]:
    """Return a warning for each other schedule that merges a source which this one merges."""
    job = manifest.spec.job if isinstance(manifest.spec, ScheduleManifest) else None
    found = []
    for record in store.list_manifests(kind=schedule.KIND) if isinstance(job, MergeJob) else ():
        with suppress(ManifestInvalidError):
            other = read_schedule(record.document)
            if record.name != manifest.name and _merge_same(job, other.job):
                way = f"set {SETTINGS}= (empty)" if record.source == SETTINGS else f"delete {record.name}"
                message = (
                    f"The schedule {record.name} merges the same sources, at {other.cron} {other.time_zone}. "
                    f"If one merge is enough, {way}."
                )
                found.append({"code": "merge_scheduled_twice", "message": message})
    return tuple(found)


def _merge_same(job: Any, other: Any) -> bool:
    """Whether both jobs are merges that have a source in common."""
    if not isinstance(job, MergeJob) or not isinstance(other, MergeJob):
        return False
    sources = {job.request.source, other.request.source}
    return len(sources) == 1 or not sources.isdisjoint({None, "all"})
