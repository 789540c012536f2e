"""The JSON shapes of manifests and of schedules, as OpenAPI shows them."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field


class ManifestOut(BaseModel):
    """A manifest as it was applied."""

    name: str
    kind: str
    document: dict[str, Any] = Field(description="What was written, as JSON.")
    source: str = Field(description="Who owns the name: api, or REFEED_MERGE_AT.")
    version: int
    applied_by: str
    created_at: datetime
    changed_at: datetime


class ManifestsOut(BaseModel):
    """All manifests, by name."""

    manifests: list[ManifestOut]


class DifferenceOut(BaseModel):
    """A value that changes, by its JSON pointer; null is none."""

    pointer: str
    before: Any
    after: Any


class ManifestPlanOut(BaseModel):
    """What applying or removing a manifest changes."""

    name: str
    kind: str
    action: Literal["create", "update", "none", "remove"]
    differences: list[DifferenceOut]
    hash: str = Field(description="Stands for exactly this change; apply and delete may quote it as plan.")


class AppliedOut(BaseModel):
    """A manifest that was applied, and what that has changed."""

    manifest: ManifestOut
    plan: ManifestPlanOut


class ScheduleRunOut(BaseModel):
    """One slot of a schedule, [start, slot); it is due at its end, and known by it."""

    slot: datetime
    slot_start: datetime
    state: Literal["QUEUED", "STARTING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "SKIPPED"]
    job_kind: str | None
    job_id: str | None = Field(description="The job's id, or the snapshot's, or a stream's name.")
    why: str | None
    created_at: datetime
    finished_at: datetime | None


class ScheduleOut(BaseModel):
    """A schedule with its next slots and its last runs, newest first."""

    name: str
    description: str
    job: str = Field(description="The kind of its job.")
    cron: str
    time_zone: str
    source: str
    paused: str | None = Field(description="Why no slot is due; null where it is not paused.")
    applied_by: str
    changed_at: datetime
    next_slots: list[datetime]
    runs: list[ScheduleRunOut]


class SchedulesOut(BaseModel):
    """All schedules, by name."""

    schedules: list[ScheduleOut]
