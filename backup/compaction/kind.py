"""Compactions as a kind of job: their driver, and the figures that their history shows."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from jobs.folder import JobFolder
from jobs.kinds import JobKind
from jobs.store import Job, JobStore
from jobs.supervisor import DRIVER
from model.errors import CheckpointCorruptError


class CompactionFigures:
    """How many files of each table a compaction has merged away, out of its folder."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder

    def __call__(self, store: JobStore, job_id: str) -> None:
        """Write it to the store, with a line in the history, when it has changed."""
        # What can't be read now is read at the next look; it must not keep a job from its end.
        with suppress(CheckpointCorruptError):
            found = self._folder.read_findings()
            before = (store.get(job_id).findings or {}).get("tables", {})
            if found and found != before:
                what = ", ".join(
                    f"{name} compacted: {found[name]} files fewer" for name in found if name not in before
                )
                store.change(job_id, actor=DRIVER, what=what, findings={"tables": found})


def describe_compaction(job: Job) -> Mapping[str, Any]:
    """Return a webhook's fields of a compaction beside its state."""
    return {"tables": job.request["tables"], "files_removed": (job.findings or {}).get("tables", {})}


COMPACTION: Final = JobKind(
    name="compaction",
    collection="compactions",
    prefix="cp",
    folder="compaction-jobs",
    module="backup.compaction.job",
    figures=CompactionFigures,
    describe=describe_compaction,
    goes_on_by_itself=True,
    done="compacted",
    is_forgotten=True,
)
