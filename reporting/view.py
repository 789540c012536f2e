"""A merge job as people see it: one shape for the API and for ``--json``."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal, Self

from jobs.store import Job
from jobs.view import DrivenJob
from model.failure import safe_message
from model.moment import render_moment
from warehouse.merges import MergeReport


@dataclass(frozen=True, kw_only=True)
class Merge(DrivenJob):
    """One merge job; ``sources`` has how far each of its sources is, in order.

    ``source`` is the one that was requested, None for all that had a key when the job was made.
    """

    source: str | None
    since: datetime | None
    dry_run: bool
    progress: Mapping[str, int]
    sources: list[dict[str, Any]]

    @classmethod
    def from_job(cls, job: Job) -> Self:
        """Return the merge that a job of kind ``merge`` is."""
        found = (job.findings or {}).get("sources", {})
        sources = [{**SourceProgress(name).to_json(), **found.get(name, {})} for name in job.request["sources"]]
        states = [source["state"] for source in sources]
        since = job.request["since"]
        return cls(
            **cls.fields_of(job),
            source=job.request["source"],
            since=None if since is None else datetime.fromisoformat(since),
            dry_run=job.request["dry_run"],
            progress={
                "sources": len(sources),
                "merged": states.count("merged"),
                "failed": states.count("failed"),
                "changed": sum(source["changed"] for source in sources),
                "newer": sum(source["newer"] for source in sources),
                "without_key": sum(source["without_key"] for source in sources),
            },
            sources=sources,
        )


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """How far one source of a merge is, as a job's findings and the API have it."""

    source: str
    state: Literal["waiting", "merging", "merged", "failed"] = "waiting"
    since: str | None = None
    until: str | None = None
    changed: int = 0
    newer: int = 0
    partitions: Sequence[str | None] = ()
    rows_before: int = 0
    rows_after: int = 0
    audits: Sequence[Mapping[str, Any]] = ()
    error: Mapping[str, str] | None = None
    without_key: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {**asdict(self), "partitions": list(self.partitions), "audits": list(self.audits)}


def describe_report(report: MergeReport) -> dict[str, Any]:
    """Return what a source's merge came to."""
    return SourceProgress(
        report.source,
        "merged",
        render_moment(report.since),
        render_moment(report.until),
        report.changed,
        report.newer,
        report.partitions,
        report.rows_before,
        report.rows_after,
        [audit.to_json() for audit in report.audits],
        without_key=report.without_key,
    ).to_json()


def describe_failure(source: str, code: str, message: str, audits: list[dict[str, Any]]) -> dict[str, Any]:
    """Return why a source was not merged, with the audits that failed, if any did."""
    error = {"code": code, "message": safe_message(code, message)}
    return SourceProgress(source, "failed", audits=audits, error=error).to_json()
