"""What drivers report of their jobs beside figures, on its way from a job's folder to the store."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from jobs.folder import JobFolder
from jobs.store import JobStore
from jobs.supervisor import DRIVER
from model.errors import CheckpointCorruptError

# Returns what has changed between two reports and the reason, both for people.
DescribeFindings = Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[str, str | None]]


class FindingsWriter:
    """Keeps what a job's driver has reported so far, by name, under ``key`` of the job's findings."""

    def __init__(self, folder: JobFolder, *, key: str, describe: DescribeFindings) -> None:
        self._folder = folder
        self._key = key
        self._describe = describe

    def __call__(self, store: JobStore, job_id: str) -> None:
        """Write it to the store, with a line in the history, when the store has something else."""
        # What can't be read now is read at the next look; it must not keep a job from its end.
        with suppress(CheckpointCorruptError):
            found = self._folder.read_findings()
            before = (store.get(job_id).findings or {}).get(self._key, {})
            if found and found != before:
                what, why = self._describe(before, found)
                store.change(job_id, actor=DRIVER, what=what, why=why, findings={self._key: found})
