"""The schedule that the setting REFEED_MERGE_AT makes."""

from datetime import time, timedelta
from typing import Final

from rollout.manifests import schedule
from rollout.manifests.manifest import Manifest, read_spec

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
