"""The supervisor of backfills: which driver they have, what their figures are, and their chores."""

import time
from datetime import timedelta
from pathlib import Path
from typing import Final

from backfill.chores import KIND, Chores, Verify
from backfill.selection import read_selection
from jobs.files import open_files
from jobs.folder import JobFolder, JobFolders
from jobs.launcher import Launcher
from jobs.progress import CheckpointFolder, CheckpointReader, Progress, ProgressMeter
from jobs.store import JobStore
from jobs.supervisor import LEASE_SECONDS, JobKind, JobSupervisor
from model.job import JobState

_MODULE: Final = "backfill.job"


class Supervisor(JobSupervisor):
    """Drives the backfills of a job store.

    ``verify`` says what is proven of an ended job. Folders, in the home or in ``folders``, go ``keep_job_days``
    after their job has ended.
    """

    def __init__(
        self,
        store: JobStore,
        launcher: Launcher,
        home: Path,
        *,
        max_running: int,
        verify: Verify | None = None,
        keep_job_days: int = 30,
        lease_seconds: float = LEASE_SECONDS,
        folders: JobFolders | None = None,
    ) -> None:
        places = folders or backfill_folders(home)
        super().__init__(
            JobKind(KIND, _MODULE, places, Figures),
            store,
            launcher,
            Chores(store, places, verify=verify, keep=timedelta(days=keep_job_days)),
            max_running=max_running,
            lease_seconds=lease_seconds,
        )


def backfill_folders(home: Path, jobs_folder: str | None = None) -> JobFolders:
    """Return where backfills have their folders: in the home, or in what REFEED_JOBS_FOLDER names."""
    return JobFolders(open_files(jobs_folder or home).folder("backfills"), logs=home / "logs" / "backfills")


class Figures:
    """The figures of one backfill, out of its slices' checkpoints."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._reader = CheckpointReader(CheckpointFolder(folder.progress))
        self._meter = ProgressMeter()
        self._selected: int | None = None
        self._latest: Progress | None = None

    def __call__(self, store: JobStore, job_id: str) -> None:
        """Write them to the store when they have changed since the last call."""
        if self._selected is None:
            selection = read_selection(self._folder.selection)
            self._selected = None if selection is None else selection.rows
        # Paused by a person or by its canary: such time is no part of the rate, nor of the time that is left.
        is_held = store.get(job_id).state is JobState.PAUSED
        progress = self._meter.measure(self._selected, self._reader.read(), time.monotonic(), is_held=is_held)
        if progress != self._latest:
            store.set_progress(job_id, progress)
            # After the store has it: a figure that got lost on the way is written the next time.
            self._latest = progress
