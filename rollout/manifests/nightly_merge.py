"""The schedule of the setting REFEED_MERGE_AT, and warnings of other schedules that merge the same sources."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import time, timedelta
from typing import Any, Final

from jobs.store import JobStore
from model.errors import ManifestInvalidError
from rollout.manifests import schedule
from rollout.manifests.manifest import Manifest, read_spec
from rollout.manifests.schedule import MergeJob, ScheduleManifest, read_schedule

# The owner and the name of the schedule.
SETTINGS: Final = "REFEED_MERGE_AT"
NIGHTLY_MERGE: Final = "nightly-merge"
_DAY: Final = timedelta(days=1)


def nightly_merge(at: time) -> Manifest:
    """Return the schedule for REFEED_MERGE_AT; of missed nights it catches up only the last one."""
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


def find_doubles(changes: Mapping[str, Manifest | None], store: JobStore) -> dict[str, list[dict[str, str]]]:
    """Return warnings by the name of a schedule: one for each other schedule that merges one of its sources.

    ``changes`` are the manifests to apply, None for a manifest to remove.
    """
    specs: dict[str, Any] = {name: each.spec for name, each in changes.items() if each is not None}
    owners = {}
    for record in store.list_manifests(kind=schedule.KIND):
        owners[record.name] = record.source
        if record.name not in changes:
            with suppress(ManifestInvalidError):
                specs[record.name] = read_schedule(record.document)
    merges = {
        name: (spec.job.request.source or "all", _render_double(spec, owners.get(name)))
        for name, spec in specs.items()
        if isinstance(spec, ScheduleManifest) and isinstance(spec.job, MergeJob)
    }
    return {
        name: [
            {"code": "merge_scheduled_twice", "message": message}
            for other, (source, message) in merges.items()
            if other != name and (source == merges[name][0] or "all" in {source, merges[name][0]})
        ]
        for name in merges.keys() & changes.keys()
    }


def _render_double(spec: ScheduleManifest, owner: str | None) -> str:
    way = f"set {SETTINGS}= (empty)" if owner == SETTINGS else f"delete {spec.name}"
    return (
        f"The schedule {spec.name} merges the same sources, at {spec.cron} {spec.time_zone}. "
        f"If one merge is enough, {way}."
    )
