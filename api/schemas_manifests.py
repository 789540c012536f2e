"""The JSON shapes of manifests and of schedules, as OpenAPI shows them."""

from datetime import datetime
from typing import Any, Literal

from pydantic import AliasPath, BaseModel, ConfigDict, Field

from api.schemas import CodedMessage
from api.schemas_updates import UpdateOut


class ManifestOut(BaseModel):
    """An applied manifest."""

    name: str = Field(description="The manifest's name.")
    kind: str = Field(description="The manifest's kind.")
    document: dict[str, Any] = Field(description="The manifest's content as JSON.")
    source: str = Field(
        description='The owner of the name: api, REFEED_MERGE_AT, or "upload:" and a folder or bucket.'
    )
    version: int = Field(description="The version of the manifest. Later versions have higher numbers.")
    etag: str
    applied_by: str
    created_at: datetime
    changed_at: datetime


class ManifestUploadOut(BaseModel):
    """A file of the folder or bucket that REFEED_MANIFESTS names."""

    file: str = Field(description="The file's name.")
    source: str = Field(description="The folder or bucket.")
    generation: str = Field(
        description="The newest version of the file. In a bucket, this is the ETag of the file. In a "
        "folder, this is the time of its last change."
    )
    noted_at: datetime = Field(description="When the newest version was read.")
    fault: str | None = Field(
        description="Why the newest version is not applied. Null if the newest version is applied."
    )
    applied_generation: str | None = Field(description="The version of the file that was applied last.")
    gone_at: datetime | None = Field(
        description="When Refeed first found that the file was missing. The manifest stays until somebody removes "
        "it. Null if the file exists."
    )


class UploadSourceOut(BaseModel):
    """The folder or bucket that REFEED_MANIFESTS names."""

    source: str = Field(description="The folder or bucket.")
    problem: str | None = Field(
        description="Why Refeed can't read the folder or bucket. While Refeed can't read the folder or bucket, "
        "the applied manifests do not change."
    )


class ManifestsOut(BaseModel):
    """All applied manifests, sorted by name, and all uploaded files."""

    manifests: list[ManifestOut] = Field(description="The applied manifests.")
    uploads: list[ManifestUploadOut] = Field(description="The uploaded files.")
    upload_source: UploadSourceOut | None = Field(
        description="The watched folder or bucket. Null if `REFEED_MANIFESTS` is not set."
    )


class DifferenceOut(BaseModel):
    """A value that changes, and its JSON pointer. Null means no value."""

    pointer: str = Field(description="The value's JSON pointer.")
    before: Any = Field(description="The value before the change.")
    after: Any = Field(description="The value after the change.")


class ManifestPlanOut(BaseModel):
    """The change that a call makes when it applies or removes a manifest."""

    name: str = Field(description="The manifest's name.")
    kind: str = Field(description="The manifest's kind.")
    action: Literal["create", "update", "none", "remove"] = Field(description="What the call would do.")
    differences: list[DifferenceOut] = Field(description="The values that would change.")
    hash: str = Field(description="The hash of this change. Send the hash as `plan` to make exactly this change.")
    note: str | None = Field(
        description="The result of the earlier rollout, if the same manifest was applied before."
    )
    warnings: list[CodedMessage] = Field(description="Warnings about the query of the manifest's job.")


class PruneRequest(BaseModel):
    """The manifests that stay."""

    model_config = ConfigDict(extra="forbid")

    keep: list[str] = Field(min_length=1, max_length=10_000, description="The names of the manifests that stay.")
    plan: str | None = Field(
        default=None,
        max_length=64,
        description="The `hash` of an earlier answer: remove exactly these manifests. Null: remove nothing.",
    )


class PruneOut(BaseModel):
    """The manifests that were removed, or that the call would remove."""

    plans: list[ManifestPlanOut] = Field(description="The removals, sorted by name.")
    hash: str = Field(description="The hash of these removals. Send the hash as `plan` to make exactly these.")


class AppliedOut(BaseModel):
    """An applied manifest, and the change that it made."""

    manifest: ManifestOut = Field(description="The applied manifest.")
    plan: ManifestPlanOut = Field(description="The change.")
    update: UpdateOut | None = Field(
        description="The newest update that the manifest, a rollout, has begun. Null for a schedule."
    )


class ScheduleRunOut(BaseModel):
    """One slot of a schedule (the time between two runs), and the run at the end of the slot."""

    slot: datetime = Field(description="End of the slot. The time of the request, if somebody requested the run.")
    slot_start: datetime = Field(description="Start of the time that the job covers.")
    slot_end: datetime = Field(
        description="End of this time: `slot`, or the end of the newest slot before the request."
    )
    state: Literal["QUEUED", "STARTING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "SKIPPED"] = Field(
        description="The state of the run."
    )
    job_kind: str | None = Field(description="The kind of the resource that the run has started.")
    job_id: str | None = Field(description="The id of the job, snapshot or update, or the stream's name.")
    why: str | None = Field(description="Why the run failed or was skipped. Null without a reason.")
    asked_by: str | None = Field(description="Who requested the run. Null if the slot was due.")
    created_at: datetime
    finished_at: datetime | None


class ScheduleOut(BaseModel):
    """A schedule, with the times of its next runs, and with its last runs, newest first."""

    name: str = Field(validation_alias=AliasPath("record", "name"), description="The schedule's name.")
    description: str = Field(
        validation_alias=AliasPath("spec", "description"), description="The manifest's description."
    )
    job: str = Field(
        validation_alias=AliasPath("spec", "job", "kind"), description="The kind of the schedule's job."
    )
    cron: str = Field(validation_alias=AliasPath("spec", "cron"), description="The cron expression.")
    time_zone: str = Field(
        validation_alias=AliasPath("spec", "time_zone"), description="The time zone of the cron expression."
    )
    source: str = Field(
        validation_alias=AliasPath("record", "source"), description="The owner of the manifest's name."
    )
    paused: str | None = Field(
        validation_alias=AliasPath("record", "paused"),
        description="Why the schedule is paused. Null if the schedule is not paused.",
    )
    applied_by: str = Field(validation_alias=AliasPath("record", "applied_by"))
    changed_at: datetime = Field(validation_alias=AliasPath("record", "changed_at"))
    etag: str = Field(validation_alias=AliasPath("record", "etag"))
    next_slots: list[datetime] = Field(description="The times of the next runs.")
    runs: list[ScheduleRunOut] = Field(description="The last runs.")


class SchedulesOut(BaseModel):
    """All schedules, sorted by name."""

    schedules: list[ScheduleOut]
