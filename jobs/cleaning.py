"""Removes what ended backfills leave on disk; the store keeps their rows and histories."""

import shutil
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import structlog

from jobs.store import Job, JobStore
from model.errors import JobNotFoundError

_LOG: Final = structlog.get_logger()
# A create makes its folder before its job; none takes so long.
_ORPHAN_AGE: Final = timedelta(days=1)
_REMOVED: Final = ".removed-"


def clean_folders(store: JobStore, folders: Path, *, keep: timedelta, now: datetime) -> list[str]:
    """Remove folders of jobs that ended longer than ``keep`` ago, and those without a job that are a day old.

    Returns their names. With a folder go the selection, the dead letters and the log: such a job can't be retried
    any more. Several replicas may clean the same folders at once.
    """
    if not folders.exists():
        return []
    removed = []
    for folder in sorted(folders.iterdir()):
        if folder.name.startswith(_REMOVED):
            # Whoever renamed it was ended before it was gone.
            shutil.rmtree(folder, ignore_errors=True)
        elif _is_over(store, folder, keep, now) and _remove(store, folder, keep, now):
            _LOG.info("removed a folder", folder=folder.name)
            removed.append(folder.name)
    return removed


def _is_over(store: JobStore, folder: Path, keep: timedelta, now: datetime) -> bool:
    job = _find(store, folder.name)
    if job is not None:
        return job.finished_at is not None and job.finished_at < now - keep
    try:
        changed = datetime.fromtimestamp(folder.stat().st_mtime, UTC)
    except FileNotFoundError:
        return False
    return changed < now - _ORPHAN_AGE


def _remove(store: JobStore, folder: Path, keep: timedelta, now: datetime) -> bool:
    """Remove the folder in one step for everybody else, unless its job was retried just now."""
    gone = folder.with_name(_REMOVED + folder.name)
    try:
        folder.rename(gone)
    except OSError:
        return False
    job = _find(store, folder.name)
    if job is not None and not _is_over(store, folder, keep, now):
        with suppress(OSError):
            gone.rename(folder)
        return False
    shutil.rmtree(gone, ignore_errors=True)
    return True


def _find(store: JobStore, name: str) -> Job | None:
    try:
        return store.get(name)
    except JobNotFoundError:
        return None
