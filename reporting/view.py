"""A merge job as people see it: one shape for the API, for ``--json`` and for what its driver notes."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from jobs.store import Job
from jobs.view import DrivenJob, shape_of
from model.audit import Audit
from model.failure import safe_message
from model.fault import FaultRecord
from warehouse.merges import MergeReport

_EXAMPLE_SOURCE: Final[dict[str, Any]] = {
    "source": "orders",
    "state": "merged",
    "since": "2026-01-02T00:15:00Z",
    "until": "2026-01-03T00:15:02Z",
    "changed": 12_000,
    "newer": 11_998,
    "without_key": 3,
    "partitions": ["2026-01-01", "2026-01-02", None],
    "rows_before": 80_000,
    "rows_after": 91_000,
    "audits": [{"name": "keys_unique", "is_passed": True, "expected": 91_000, "found": 91_000, "details": {}}],
    "error": None,
}
_EXAMPLE_MERGE: Final[dict[str, Any]] = {
    "id": "mg_01K0ABCDEFGHJKMNPQRSTVWXYZ",
    "kind": "merge",
    "source": "orders",
    "since": None,
    "dry_run": False,
    "progress": {"sources": 1, "merged": 1, "failed": 0, "changed": 12_000, "newer": 11_998, "without_key": 3},
    "sources": [_EXAMPLE_SOURCE],
}


class MergeResult(BaseModel):
    """The result of one source's merge."""

    model_config = ConfigDict(frozen=True, json_schema_serialization_defaults_required=True)

    until: datetime | None = Field(
        default=None, description="The time up to which staging is merged into reporting."
    )
    changed: int = Field(default=0, description="Number of keys in the rows that the merge read from staging.")
    newer: int = Field(default=0, description="Number of keys whose row in the reporting table changed.")
    without_key: int = Field(
        default=0,
        description="Number of staged rows in which all key columns are null. Each row without a key becomes a "
        "separate row in the reporting table.",
    )
    rows_before: int = Field(default=0, description="Number of rows in the changed partitions before the merge.")
    rows_after: int = Field(default=0, description="Number of rows in the changed partitions after the merge.")
    error: FaultRecord | None = None


class MergedSource(MergeResult):
    """The progress and the result of one source's merge."""

    source: str = Field(description="The source's name.")
    state: Literal["waiting", "merging", "merged", "failed"] = Field(
        default="waiting", description="The progress of the source in this merge."
    )
    since: datetime | None = Field(
        default=None,
        description="The time from which staging was read. Null means that all of staging was read.",
    )
    partitions: list[str | None] = Field(
        default=[],
        description="The days of the changed partitions. A null in the list means the partition of entities "
        "without a day.",
    )
    audits: list[Audit] = Field(default=[], description="The audits of the merge.")


class MergeNight(MergedSource):
    """The result of one source in one ended merge."""

    merge_id: str = Field(description="The merge's id.")
    finished_at: datetime | None


class MergeProgress(BaseModel):
    """The progress of a merge over all its sources."""

    sources: int = Field(description="Number of sources.")
    merged: int = Field(description="Number of merged sources.")
    failed: int = Field(description="Number of failed sources.")
    changed: int = Field(description="The sum of `changed` over all sources.")
    newer: int = Field(description="The sum of `newer` over all sources.")
    without_key: int = Field(description="The sum of `without_key` over all sources.")


@dataclass(frozen=True, kw_only=True)
class Merge(DrivenJob):
    """One merge job."""

    __pydantic_config__: ClassVar[dict[str, Any]] = shape_of(_EXAMPLE_MERGE)

    kind: Annotated[Literal["merge"], Field(description="The kind of the job.")]
    source: Annotated[
        str | None,
        Field(description="The merged source. Null means every source that had a key when the merge was created."),
    ]
    since: Annotated[
        datetime | None,
        Field(
            description="The time from which the merge reads staging again. Null means that the merge of each "
            "source begins where its last merge stopped."
        ),
    ]
    dry_run: Annotated[bool, Field(description="Whether the merge changes nothing.")]
    progress: Annotated[MergeProgress, Field(description="The merge's progress.")]
    sources: Annotated[list[MergedSource], Field(description="The result of each source's merge.")]

    @classmethod
    def from_job(cls, job: Job) -> Self:
        """Return the merge that a job of kind ``merge`` is."""
        found = (job.findings or {}).get("sources", {})
        sources = [
            MergedSource.model_validate({"source": name, **found.get(name, {})}) for name in job.request["sources"]
        ]
        states = [source.state for source in sources]
        progress = MergeProgress(
            sources=len(sources),
            merged=states.count("merged"),
            failed=states.count("failed"),
            changed=sum(source.changed for source in sources),
            newer=sum(source.newer for source in sources),
            without_key=sum(source.without_key for source in sources),
        )
        asked = {name: job.request[name] for name in ("source", "since", "dry_run")}
        return cls.read(job, **asked, progress=progress, sources=sources)


def describe_report(report: MergeReport) -> dict[str, Any]:
    """Return what a source's merge came to, as a job's findings have it."""
    merged = MergedSource.model_validate(report, from_attributes=True).model_copy(update={"state": "merged"})
    return merged.model_dump(mode="json")


def describe_failure(source: str, code: str, message: str, audits: list[dict[str, Any]]) -> dict[str, Any]:
    """Return why a source was not merged, with the audits that failed, if any did."""
    error = FaultRecord(code, safe_message(code, message))
    failed = MergedSource.model_validate({"source": source, "state": "failed", "audits": audits, "error": error})
    return failed.model_dump(mode="json")
