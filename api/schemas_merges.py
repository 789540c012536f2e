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
    """One check of one source's merge, made before it was committed."""

    name: str = Field(description="keys_unique, counts_reconciled or freshness.")
    is_passed: bool = Field(description="Whether the check passed. If not, reporting did not change.")
    expected: int = Field(description="The expected number.")
    found: int = Field(description="The found number.")
    details: dict[str, Any] = Field(description="More figures of the check.")


class MergeError(CodedMessage):
    """Why a merge failed."""


class MergedSource(BaseModel):
    """The progress and the result of one source's merge."""

    source: str = Field(description="The source's name.")
    state: Literal["waiting", "merging", "merged", "failed"] = Field(description="How far the source is.")
    since: datetime | None = Field(description="The time from which staging was read. Null is its beginning.")
    until: datetime | None = Field(description="The time up to which staging is merged into reporting.")
    changed: int = Field(description="Number of keys in the rows read from staging.")
    newer: int = Field(description="Number of those keys that changed reporting.")
    without_key: int = Field(
        description="Number of staged rows whose whole key is null. Each stays a row of its own, by topic and id."
    )
    partitions: list[str | None] = Field(
        description="Changed days. Null is the partition of entities without a day."
    )
    rows_before: int = Field(description="Rows of these partitions.")
    rows_after: int = Field(description="Rows of these partitions.")
    audits: list[MergeAudit] = Field(description="The checks before the commit.")
    error: MergeError | None


class MergeProgress(BaseModel):
    """Number of sources by state, and the sums of their reports."""

    sources: int = Field(description="Number of sources.")
    merged: int = Field(description="Number of merged sources.")
    failed: int = Field(description="Number of failed sources.")
    changed: int = Field(description="Sum of the sources' changed.")
    newer: int = Field(description="Sum of the sources' newer.")
    without_key: int = Field(description="Sum of the sources' without_key.")


class MergeOut(BaseModel):
    """One merge job."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE_MERGE]})

    id: str = Field(description='The merge\'s id, "mg_" and a ULID.')
    state: JobState = Field(description="The merge's state.")
    source: str | None = Field(
        description="The source. Null is every source that had a key when the merge was created."
    )
    since: datetime | None = Field(
        description="The time from which to read staging again. Null is where each source's last merge ended."
    )
    dry_run: bool = Field(description="Whether the merge changes nothing.")
    created_by: str = Field(description="Who created the merge. The nightly one has schedule:nightly-merge.")
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    progress: MergeProgress = Field(description="How far the merge is.")
    sources: list[MergedSource] = Field(description="The report of each source.")
    restarts: int = Field(
        description="Number of drivers that died and were replaced since a person last started it."
    )
    error: MergeError | None
    etag: str


class MergeNight(MergedSource):
    """The result of one source in one ended merge."""

    merge_id: str = Field(description="The merge's id.")
    finished_at: datetime | None


class MergeAudits(BaseModel):
    """Sources of ended merges, newest merge first, without dry runs."""

    nights: list[MergeNight]
