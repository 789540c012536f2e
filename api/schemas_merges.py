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
    is_passed: bool = Field(description="Whether it holds; else reporting is as it was.")
    expected: int
    found: int
    details: dict[str, Any]


class MergeError(CodedMessage):
    """Why a merge failed."""


class MergedSource(BaseModel):
    """How far one source is, and what its merge came to."""

    source: str
    state: Literal["waiting", "merging", "merged", "failed"]
    since: datetime | None = Field(description="From when on staging was read; null is from its beginning.")
    until: datetime | None = Field(description="Up to when staging is in reporting.")
    changed: int = Field(description="Keys that staging had.")
    newer: int = Field(description="Those of them that changed reporting.")
    without_key: int = Field(description="Keys staged that are null as a whole: each row is kept, by its message.")
    partitions: list[str | None] = Field(description="Days that changed; null is that of entities without one.")
    rows_before: int = Field(description="In these partitions.")
    rows_after: int = Field(description="In these partitions.")
    audits: list[MergeAudit]
    error: MergeError | None


class MergeProgress(BaseModel):
    """How many of its sources a merge has done, and the sums of their reports."""

    sources: int
    merged: int
    failed: int
    changed: int
    newer: int
    without_key: int


class MergeOut(BaseModel):
    """One merge job."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE_MERGE]})

    id: str
    state: JobState
    source: str | None = Field(description="Null is every source that had a key when the merge was made.")
    since: datetime | None
    dry_run: bool
    created_by: str = Field(description="schedule:nightly-merge made the nightly one.")
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    progress: MergeProgress
    sources: list[MergedSource]
    restarts: int = Field(description="Drivers that died and were replaced since a person last started it.")
    error: MergeError | None
    etag: str


class MergeNight(MergedSource):
    """How one source fared in one merge that has ended."""

    merge_id: str
    finished_at: datetime | None


class MergeAudits(BaseModel):
    """Sources of merges, the newest merge first; dry runs are left out."""

    nights: list[MergeNight]
