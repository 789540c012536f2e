"""A supervisor's memory of one driver between two looks: its figures and its last heartbeat."""

import time
from contextlib import suppress
from typing import Final

from jobs.folder import Control, JobFolder
from jobs.kinds import WriteFigures
from jobs.launcher import Launcher
from jobs.store import Job
from model.errors import CheckpointCorruptError

# A driver writes five heartbeats a second; shared storage may show them late.
_SILENCE_SECONDS: Final = 30.0
# A service writes the store and then the control, well within this time.
_ASTRAY_SECONDS: Final = 0.8


class DriverWatch:
    """Follows one job's figures, its driver's heartbeat and the driver's control."""

    def __init__(self, folder: JobFolder, write_figures: WriteFigures) -> None:
        self._folder = folder
        self.write_figures = write_figures
        self._heartbeat: tuple[int, str | None] | None = None
        self._heard_at = 0.0
        self._told: tuple[Control, Control | None] | None = None
        self._told_at = 0.0

    def death(self, job: Job, launcher: Launcher) -> str | None:
        """Return None while the job's driver lives, else a sentence about its end.

        Only the heartbeat shows whether a driver on another machine lives.
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
        return f"The driver, which runs on another machine, has not reported for {silence:.0f} s."

    def is_astray(self, wanted: Control, *, at_once: bool) -> bool:
        """Whether the driver's control differs from ``wanted``, and has done so for longer than a service takes.

        With ``at_once`` a difference counts immediately.
        """
        found: Control | None = None
        with suppress(CheckpointCorruptError):
            found = self._folder.read_control()
        if found == wanted:
            self._told = None
            return False
        if self._told != (wanted, found):
            self._told, self._told_at = (wanted, found), time.monotonic()
        return at_once or time.monotonic() - self._told_at > _ASTRAY_SECONDS
