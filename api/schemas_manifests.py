"""The JSON shapes of manifests and of schedules, as OpenAPI shows them."""

from datetime import datetime
from typing import Any, Literal

from pydantic import AliasPath, BaseModel, Field

from api.routes_rollouts import RolloutOut
from api.schemas import CodedMessage


class ManifestOut(BaseModel):
    """A manifest as it was applied."""

    name: str
    kind: str
    document: dict[str, Any] = Field(description="What was written, as JSON.")
    source: str = Field(description="Who owns the name: api, REFEED_MERGE_AT, or upload: and a folder or bucket.")
    version: int
    applied_by: str
    created_at: datetime
    changed_at: datetime


class ManifestUploadOut(BaseModel):
    """A file of the folder or bucket that REFEED_MANIFESTS names."""

    file: str
    source: str
    generation: str = Field(description="The newest version: a bucket's generation, or a mark of a file's time.")
    noted_at: datetime = Field(description="When that version was looked at.")
    fault: str | None = Field(description="Why that version is not applied; null where it is.")
    applied_generation: str | None = Field(description="The version that was applied last.")
    gone_at: datetime | None = Field(description="Since when the file is missing.")
    waits: str | None = Field(description="Why the manifest of a missing file stays until somebody decides.")
    approval_id: str | None = Field(description="The approval that the removal waits for.")


class UploadSourceOut(BaseModel):
    """The folder or bucket that REFEED_MANIFESTS names."""

    source: str
    problem: str | None = Field(description="Why it can't be watched; nothing is changed for as long.")


class ManifestsOut(BaseModel):
    """All manifests, by name, and the files of those that come by upload."""

    manifests: list[ManifestOut]
    uploads: list[ManifestUploadOut]
    upload_source: UploadSourceOut | None


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
    note: str | None = Field(description="Of a rollout whose content is applied again: what became of it.")
    warnings: list[CodedMessage] = Field(description="Of its query, with the times of the last slot.")


class AppliedOut(BaseModel):
    """A manifest that was applied, and what that has changed."""

    manifest: ManifestOut
    plan: ManifestPlanOut
    rollout: RolloutOut | None = Field(description="The newest rollout of a manifest of that kind.")


class ScheduleRunOut(BaseModel):
    """One slot of a schedule, [start, slot); it is due at its end, and known by it."""

    slot: datetime
    slot_start: datetime
    state: Literal["QUEUED", "STARTING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "SKIPPED"]
    job_kind: str | None
    job_id: str | None = Field(description="The job's id, the snapshot's or the rollout's, or a stream's name.")
    why: str | None
    created_at: datetime
    finished_at: datetime | None


class ScheduleOut(BaseModel):
    """A schedule with its next slots and its last runs, newest first."""

    name: str = Field(validation_alias=AliasPath("record", "name"))
    description: str = Field(validation_alias=AliasPath("spec", "description"))
    job: str = Field(validation_alias=AliasPath("spec", "job", "kind"), description="The kind of its job.")
    cron: str = Field(validation_alias=AliasPath("spec", "cron"))
    time_zone: str = Field(validation_alias=AliasPath("spec", "time_zone"))
    source: str = Field(validation_alias=AliasPath("record", "source"))
    paused: str | None = Field(
        validation_alias=AliasPath("record", "paused"),
        description="Why no slot is due; null where it is not paused.",
    )
    applied_by: str = Field(validation_alias=AliasPath("record", "applied_by"))
    changed_at: datetime = Field(validation_alias=AliasPath("record", "changed_at"))
    next_slots: list[datetime]
    runs: list[ScheduleRunOut]


class SchedulesOut(BaseModel):
    """All schedules, by name."""

    schedules: list[ScheduleOut]
