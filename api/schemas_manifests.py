"""The JSON shapes of manifests and of schedules, as OpenAPI shows them."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from api.schemas import ProblemItem, read_at
from api.schemas_updates import UpdateOut
from backfill.plan.plan import PlanWarning


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
    applied_by: str = Field(description="Who applied the content.")
    created_at: datetime = Field(description="When the manifest was applied first.")
    changed_at: datetime = Field(
        description="When the manifest last got a new version. Also a pause and a resume make a version."
    )


class ManifestVersionOut(BaseModel):
    """A change that made a version of a manifest: new content, a pause or a resume."""

    type: Literal["applied", "paused", "resumed"] = Field(description="What happened to the manifest.")
    at: datetime
    actor: str | None = Field(description="Who made the change.")
    why: str | None = Field(description="The reason of a pause. Null without a reason.")


class ManifestDetails(ManifestOut):
    """An applied manifest with its last changes."""

    applied_at: datetime | None = Field(description="When the content was applied. Null means unknown.")
    last_change: ManifestVersionOut | None = Field(description="The newest change. Null means unknown.")


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
    """The change of one manifest."""

    name: str = Field(description="The manifest's name.")
    kind: str = Field(description="The manifest's kind.")
    action: Literal["create", "update", "none", "remove"] = Field(description="How the manifest changes.")
    differences: list[DifferenceOut] = Field(description="The values that change.")
    note: str | None = Field(
        description="The result of the earlier rollout, if the same manifest was applied before."
    )
    warnings: list[PlanWarning] = Field(
        description="Warnings about the manifest's job, such as a query that may miss messages."
    )
    manifest: ManifestOut | None = Field(
        validation_alias="record",
        description="The applied or removed manifest. Null with `validate_only`.",
    )
    update: UpdateOut | None = Field(
        description="The newest update that the manifest, a rollout, has begun. Null with `validate_only`, and "
        "for other kinds."
    )


class RefusedManifestOut(BaseModel):
    """A manifest that can't be applied."""

    name: str | None = Field(description="The manifest's name. Null if the document has none.")
    kind: str | None = Field(description="The manifest's kind. Null if the document has none.")
    code: str = read_at("error.code", "The code of the error.")
    message: str = read_at("error.message", "Why the manifest is refused, in a sentence.")
    errors: list[ProblemItem] = Field(
        validation_alias="faults", description="Every fault, with line and column in the body."
    )


class ManifestsAppliedOut(BaseModel):
    """The changes of all manifests of a call."""

    is_applied: bool = Field(description="Whether the changes were made. False with `validate_only`.")
    hash: str = Field(
        description="The hash of these changes. Send the hash as `plan` to make exactly these changes."
    )
    plans: list[ManifestPlanOut] = Field(
        description="The changes, in the order of the body, and then the removals of `prune`."
    )
    refused: list[RefusedManifestOut] = Field(
        description="The refused manifests. If there are any, a call without `validate_only` fails."
    )


class ScheduleRunOut(BaseModel):
    """One slot of a schedule (the time between two runs), and the run at the end of the slot."""

    slot: datetime = Field(description="End of the slot. The time of the request, if somebody requested the run.")
    slot_start: datetime = Field(description="Start of the period that the job covers.")
    slot_end: datetime = Field(
        description="End of this period: `slot`, or the end of the newest slot before the request."
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

    name: str = read_at("record.name", "The schedule's name.")
    description: str = read_at("spec.description", "The manifest's description.")
    job: str = read_at("spec.job.kind", "The kind of the schedule's job.")
    cron: str = read_at("spec.cron", "The cron expression.")
    time_zone: str = read_at("spec.time_zone", "The time zone of the cron expression.")
    source: str = read_at("record.source", "The owner of the manifest's name.")
    paused: str | None = read_at(
        "record.paused", "Why the schedule is paused. Null if the schedule is not paused."
    )
    applied_by: str = read_at("record.applied_by")
    changed_at: datetime = read_at("record.changed_at")
    etag: str = read_at("record.etag")
    next_slots: list[datetime] = Field(description="The times of the next runs.")
    runs: list[ScheduleRunOut] = Field(description="The last runs.")


class SchedulesOut(BaseModel):
    """All schedules, sorted by name."""

    schedules: list[ScheduleOut]
