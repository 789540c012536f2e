"""Copies the findings that drivers report beside figures from the jobs' folders to the store."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from jobs.folder import JobFolder
from jobs.store import JobStore
from jobs.supervisor import DRIVER
from model.errors import CheckpointCorruptError

# Takes the findings before and now; returns what has changed and the reason, as texts for people.
DescribeFindings = Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[str, str | None]]


class FindingsWriter:
    """Keeps the driver's latest report under ``key`` of the job's findings."""

    def __init__(self, folder: JobFolder, *, key: str, describe: DescribeFindings) -> None:
        self._folder = folder
        self._key = key
        self._describe = describe

    def __call__(self, store: JobStore, job_id: str) -> None:
        """Write the report to the store, with a line in the history, if it has changed."""
        # An unreadable file is read again at the next look; it must not keep a job from ending.
        with suppress(CheckpointCorruptError):
            found = self._folder.read_findings()
            before = (store.get(job_id).findings or {}).get(self._key, {})
            if found and found != before:
                what, why = self._describe(before, found)
                store.change(job_id, actor=DRIVER, what=what, why=why, findings={self._key: found})
