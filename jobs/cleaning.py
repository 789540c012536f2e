"""Removes the folders of jobs that ended long ago; the store keeps their rows and histories."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import structlog

from jobs.folder import JobFolders
from jobs.store import Job, JobStore
from model.errors import JobNotFoundError

_LOG: Final = structlog.get_logger()
# A create makes its folder before its job; none takes so long.
_ORPHAN_AGE: Final = timedelta(days=1)


def clean_folders(store: JobStore, place: JobFolders | Path, *, keep: timedelta, now: datetime) -> list[str]:
    """Remove folders of jobs that ended longer than ``keep`` ago, and those without a job that are a day old.

    Returns their names. With a folder go the selection, the dead letters and the log: such a job can't be retried
    any more. Several replicas may clean the same folders at once.
    """
    folders = JobFolders.at(place)
    folders.files.sweep()
    removed = []
    for name in folders.files.list():
        if _is_over(store, folders, name, keep, now) and _remove(store, folders, name, keep, now):
            _LOG.info("removed a folder", folder=name)
            removed.append(name)
    return removed


def _is_over(store: JobStore, folders: JobFolders, name: str, keep: timedelta, now: datetime) -> bool:
    job = _find(store, name)
    if job is not None:
        return _ended_before(job, now - keep)
    changed = folders.files.changed_at(name)
    return changed is not None and datetime.fromtimestamp(changed, UTC) < now - _ORPHAN_AGE


def _remove(store: JobStore, folders: JobFolders, name: str, keep: timedelta, now: datetime) -> bool:
    """Remove the folder, unless its job was retried just now."""

    def is_wanted() -> bool:
        job = _find(store, name)
        return job is not None and not _ended_before(job, now - keep)

    return folders.remove(name, is_wanted)


def _ended_before(job: Job, moment: datetime) -> bool:
    return job.finished_at is not None and job.finished_at < moment


def _find(store: JobStore, name: str) -> Job | None:
    try:
        return store.get(name)
    except JobNotFoundError:
        return None
