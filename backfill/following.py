"""What a supervisor remembers of a job between two looks: its figures, and when its driver was last heard of."""

import time
from typing import Final

from backfill.selection import read_selection
from jobs.folder import JobFolder
from jobs.launcher import Launcher
from jobs.progress import CheckpointFolder, CheckpointReader, Progress, ProgressMeter
from jobs.store import Job

# A driver says five times a second that it lives; storage that machines share may show that late.
_SILENCE_SECONDS: Final = 30.0


class Followed:
    """One job's figures and its driver's life, as they change."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._reader = CheckpointReader(CheckpointFolder(folder.progress))
        self._meter = ProgressMeter()
        self._selected: int | None = None
        self._latest: Progress | None = None
        self._heartbeat: tuple[int, str | None] | None = None
        self._heard_at = 0.0

    def measure(self) -> Progress | None:
        """Return the figures, or None when they have not changed."""
        if self._selected is None:
            selection = read_selection(self._folder.selection)
            self._selected = None if selection is None else selection.rows
        progress = self._meter.measure(self._selected, self._reader.read(), time.monotonic())
        if progress == self._latest:
            return None
        self._latest = progress
        return progress

    def death(self, job: Job, launcher: Launcher) -> str | None:
        """Return None while the job's driver lives, else what is known of its end, as a sentence.

        A driver on another machine, whose service is gone, is known by its heartbeat alone.
        """
        if job.driver is None:
            return "No driver is known."
        if job.driver.is_here:
            return launcher.exit_reason(job.driver)
        heartbeat = (job.epoch, self._folder.read_heartbeat(job.epoch))
        if heartbeat != self._heartbeat:
            self._heartbeat, self._heard_at = heartbeat, time.monotonic()
        silence = time.monotonic() - self._heard_at
        if silence < _SILENCE_SECONDS:
            return None
        return f"The driver, on another machine, has not been heard of for {silence:.0f} s."
