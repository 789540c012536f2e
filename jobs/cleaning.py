"""Removes the folders of jobs that ended long ago; the store keeps the jobs' records longer."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import structlog

from jobs.folder import JobFolders
from jobs.store import JobStore

_LOG: Final = structlog.get_logger()
# A create makes the folder before the job, and takes far less than this.
_ORPHAN_AGE: Final = timedelta(days=1)
# Job ids per query: an hourly schedule makes 744 folders a month, and each cleaning checks all of them.
_ASKED_AT_ONCE: Final = 500


def clean_folders(store: JobStore, place: JobFolders | Path, *, keep: timedelta, now: datetime) -> list[str]:
    """Remove folders of jobs that ended longer than ``keep`` ago, and day-old folders without a job.

    Returns the names of the removed folders. The selection, the dead letters and the log are in the folder, so the
    job can't be retried afterwards. Several replicas may clean the same folders at once.
    """
    folders = JobFolders.at(place)
    folders.files.sweep()
    removed = []
    names = folders.files.list()
    for begin in range(0, len(names), _ASKED_AT_ONCE):
        some = names[begin : begin + _ASKED_AT_ONCE]
        ends = store.find_ends(some)
        for name in some:
            is_over = _ended_before(ends[name], now - keep) if name in ends else _is_orphan(folders, name, now)
            if is_over and _remove(store, folders, name, keep, now):
                _LOG.info("removed a folder", folder=name)
                removed.append(name)
    return removed


def _is_orphan(folders: JobFolders, name: str, now: datetime) -> bool:
    changed = folders.files.changed_at(name)
    return changed is not None and datetime.fromtimestamp(changed, UTC) < now - _ORPHAN_AGE


def _remove(store: JobStore, folders: JobFolders, name: str, keep: timedelta, now: datetime) -> bool:
    """Remove the folder, unless its job was retried just now."""

    def is_wanted() -> bool:
        ends = store.find_ends([name])
        return name in ends and not _ended_before(ends[name], now - keep)

    return folders.remove(name, is_wanted)


def _ended_before(finished_at: datetime | None, moment: datetime) -> bool:
    return finished_at is not None and finished_at < moment
