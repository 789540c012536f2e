"""Merges as a kind of job: their driver, and what of their findings the history and webhooks show."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from jobs.findings import FindingsWriter
from jobs.kinds import JobKind
from jobs.store import Job
from model.naming import counted
from reporting.view import Merge


def describe_merge(job: Job) -> dict[str, Any]:
    """Return a webhook's fields of a merge beside its state, without the messages of an engine."""
    merge = Merge.from_job(job)
    sources = [{"source": source.source, "state": source.state} for source in merge.sources]
    return {"dry_run": merge.dry_run, "progress": merge.progress.model_dump(), "sources": sources}


def _describe(before: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return what has changed, and its figures."""
    new = [source for name, source in found.items() if source != before.get(name)]
    what = ", ".join(f"{source['source']} {source['state']}" for source in new)
    return what, "; ".join(filter(None, map(_figures, new))) or None


def _figures(source: Mapping[str, Any]) -> str:
    if source["state"] == "failed":
        return f"{source['source']}: {source['error']['message']}"
    if source["state"] == "merged":
        changed = f"{counted(source['changed'], 'key')} read, {counted(source['newer'], 'key')} changed"
        counts = f"{changed}, {counted(len(source['partitions']), 'partition')}"
        keyless = f", {counted(source['without_key'], 'row')} without a key" if source.get("without_key") else ""
        return f"{source['source']}: {counts}{keyless}"
    return ""


MERGE: Final = JobKind(
    name="merge",
    collection="merges",
    prefix="mg",
    folder="merge-jobs",
    module="reporting.job",
    figures=partial(FindingsWriter, key="sources", describe=_describe),
    describe=describe_merge,
    goes_on_by_itself=True,
    done="merged",
    is_forgotten=True,
)
