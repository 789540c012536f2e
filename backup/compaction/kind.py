"""Compactions as a kind of job: their driver, and the figures in their history."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from jobs.findings import FindingsWriter
from jobs.kinds import JobKind
from jobs.store import Job


def describe_compaction(job: Job) -> Mapping[str, Any]:
    """Return a webhook's fields of a compaction beside its state."""
    return {"tables": job.request["tables"], "files_removed": (job.findings or {}).get("tables", {})}


def _describe(before: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[str, None]:
    """Return a sentence with the number of replaced files of each table."""
    return ", ".join(f"{name} compacted: {found[name]} files fewer" for name in found if name not in before), None


COMPACTION: Final = JobKind(
    name="compaction",
    collection="compactions",
    prefix="cp",
    folder="compaction-jobs",
    module="backup.compaction.job",
    figures=partial(FindingsWriter, key="tables", describe=_describe),
    describe=describe_compaction,
    goes_on_by_itself=True,
    done="compacted",
    is_forgotten=True,
)
