"""A backfill's folder: its selection, its checkpoints, its dead letters, and the slices that tasks work on."""

from pathlib import Path
from typing import Self

from jobs.files import Files
from jobs.folder import JobFolder


class BackfillFolder(JobFolder):
    """The folder of a job that is a backfill, with the folders that only backfills have."""

    def __init__(self, place: Files | Path | str, *, logs: Path | None = None) -> None:
        super().__init__(place, logs=logs)
        self.progress = self.files.folder("progress")
        self.selection = self.files.folder("selection")
        self.dead_letters = self.files.folder("dead-letters")
        self._running = self.files.folder("running")

    @classmethod
    def of(cls, folder: JobFolder) -> Self:
        """Return the same folder as a backfill's."""
        found = cls(folder.files)
        found.driver_log = folder.driver_log
        return found

    def enter_slice(self, number: int, epoch: int) -> None:
        """Write that a task of attempt ``epoch`` works on slice ``number``."""
        self._running.make()
        self._running.write(f"{number}.{epoch}", b"")

    def leave_slice(self, number: int, epoch: int) -> None:
        """Take that back: the task is done with the slice for now; one that was killed never does so."""
        self._running.remove(f"{number}.{epoch}")

    def running_slices(self, epoch: int) -> list[int]:
        """Return the numbers of the slices that tasks of attempt ``epoch`` work on, in order."""
        pairs = (name.split(".") for name in self._running.list())
        return sorted(int(number) for number, attempt in pairs if int(attempt) == epoch)
