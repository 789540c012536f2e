"""The JSON shapes of merges, as OpenAPI shows them."""

from datetime import datetime
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from api.schemas import CodedMessage
from model.job import JobState

EXAMPLE_ID: Final = "mg_01K0ABCDEFGHJKMNPQRSTVWXYZ"
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
    "id": EXAMPLE_ID,
    "kind": "merge",
    "state": "SUCCEEDED",
    "source": "orders",
    "since": None,
    "dry_run": False,
    "created_by": "key:ann",
    "created_at": "2026-01-03T00:15:00Z",
    "started_at": "2026-01-03T00:15:01Z",
    "finished_at": "2026-01-03T00:15:09Z",
    "progress": {"sources": 1, "merged": 1, "failed": 0, "changed": 12_000, "newer": 11_998, "without_key": 3},
    "sources": [_EXAMPLE_SOURCE],
    "restarts": 0,
    "error": None,
    "etag": '"5"',
}


class MergeAudit(BaseModel):
    """An audit of a source's merge. Audits run before the commit."""

    name: str = Field(description="The audit: `keys_unique`, `counts_reconciled` or `freshness`.")
    is_passed: bool = Field(description="Whether the audit passed. If not, the reporting table did not change.")
    expected: int = Field(description="The number that the audit expected.")
    found: int = Field(description="The number that the audit found.")
    details: dict[str, Any] = Field(description="More figures from the audit.")


class MergeError(CodedMessage):
    """Why a merge failed."""


class MergedSource(BaseModel):
    """The progress and the result of one source's merge."""

    source: str = Field(description="The source's name.")
    state: Literal["waiting", "merging", "merged", "failed"] = Field(
        description="The progress of the source in this merge."
    )
    since: datetime | None = Field(
        description="The time from which staging was read. Null means that all of staging was read."
    )
    until: datetime | None = Field(description="The time up to which staging is merged into reporting.")
    changed: int = Field(description="Number of keys in the rows that the merge read from staging.")
    newer: int = Field(description="Number of keys whose row in the reporting table changed.")
    without_key: int = Field(
        description="Number of staged rows in which all key columns are null. Each row without a key "
        "becomes a separate row in the reporting table."
    )
    partitions: list[str | None] = Field(
        description="The days of the changed partitions. A null in the list means the partition of entities "
        "without a day."
    )
    rows_before: int = Field(description="Number of rows in the changed partitions before the merge.")
    rows_after: int = Field(description="Number of rows in the changed partitions after the merge.")
    audits: list[MergeAudit] = Field(description="The audits of the merge.")
    error: MergeError | None


class MergeProgress(BaseModel):
    """The progress of a merge over all its sources."""

    sources: int = Field(description="Number of sources.")
    merged: int = Field(description="Number of merged sources.")
    failed: int = Field(description="Number of failed sources.")
    changed: int = Field(description="The sum of `changed` over all sources.")
    newer: int = Field(description="The sum of `newer` over all sources.")
    without_key: int = Field(description="The sum of `without_key` over all sources.")


class MergeOut(BaseModel):
    """One merge job."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE_MERGE]})

    id: str = Field(description="The merge's id, which begins with `mg_`.")
    kind: Literal["merge"] = Field(description="The kind of the job.")
    state: JobState = Field(description="The merge's state.")
    source: str | None = Field(
        description="The merged source. Null means every source that had a key when the merge was created."
    )
    since: datetime | None = Field(
        description="The time from which the merge reads staging again. Null means that the merge of each source "
        "begins where its last merge stopped."
    )
    dry_run: bool = Field(description="Whether the merge changes nothing.")
    created_by: str = Field(description="Who created the merge. For the nightly merge: schedule:nightly-merge.")
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    progress: MergeProgress = Field(description="The merge's progress.")
    sources: list[MergedSource] = Field(description="The result of each source's merge.")
    restarts: int = Field(
        description="The number of drivers that died and were replaced since a person last started the job."
    )
    error: MergeError | None
    etag: str


class MergeNight(MergedSource):
    """The result of one source in one ended merge."""

    merge_id: str = Field(description="The merge's id.")
    finished_at: datetime | None


class MergeAudits(BaseModel):
    """The results of ended merges by source, newest merge first. Dry runs are not listed."""

    nights: list[MergeNight]
