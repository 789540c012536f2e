"""The JSON shapes of snapshots of streams and of rollbacks, as OpenAPI shows them."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from api.schemas import CodedMessage


class SnapshotCreate(BaseModel):
    """A snapshot to make."""

    model_config = ConfigDict(extra="forbid")

    with_source: bool = Field(
        default=False,
        description="Whether to make a Pub/Sub snapshot of each of the stream's subscriptions at the same moment.",
    )


class RollbackCreate(BaseModel):
    """The snapshot that a stream goes back to."""

    model_config = ConfigDict(extra="forbid")

    snapshot: str = Field(
        description="The snapshot's id.", examples=["sn_01M7Z1H20HKNZ6PGKRYCX6J210"], max_length=64
    )
    discard_staged: bool = Field(
        default=False,
        description="Whether to delete the rows that a pipeline staged since the snapshot; they are staged again "
        "when their messages come again. Reporting tables keep what was merged.",
    )


class SnapshotFaultOut(CodedMessage):
    """Why a snapshot or a rollback failed."""


class SourceSnapshotOut(BaseModel):
    """Pub/Sub's snapshot of one subscription."""

    subscription: str
    snapshot: str
    topic: str
    expire_time: datetime


class SnapshotOut(BaseModel):
    """A snapshot of a stream; null is unknown until it is COMPLETED."""

    id: str
    stream: str
    kind: str
    state: Literal["PENDING", "COMPLETED", "FAILED", "DELETING"]
    reason: Literal["manual", "scheduled", "update"]
    with_source: bool
    release: str | None = Field(description="The release that ran the stream; null is the installed one.")
    format_version: int | None = Field(description="The format of the state in it.")
    subscriptions: list[SourceSnapshotOut] = Field(validation_alias="sources")
    expire_time: datetime | None = Field(
        description="When Pub/Sub drops the first of its snapshots, as it answered; null without a source."
    )
    taken_at: datetime | None
    size_bytes: int | None
    seconds_paused: float | None = Field(description="How long the stream committed nothing for it.")
    known_messages: int | None = Field(description="How many ids the stream's journal knew.")
    error: SnapshotFaultOut | None
    created_by: str
    created_at: datetime
    finished_at: datetime | None


class SnapshotsOut(BaseModel):
    """A page of snapshots, newest first."""

    snapshots: list[SnapshotOut]
    next_page_token: str | None


class RollbackOut(BaseModel):
    """One time that a stream goes back to a snapshot."""

    id: str
    stream: str
    snapshot: str = Field(validation_alias="snapshot_id")
    state: Literal["RUNNING", "SUCCEEDED", "FAILED"]
    step: Literal["waiting", "restored", "sought"] = Field(description="The last step that is done.")
    discard_staged: bool = Field(description="Whether what was staged since the snapshot is deleted.")
    not_reverted: list[str] = Field(description="What could not go back, in sentences.")
    error: SnapshotFaultOut | None
    created_by: str
    created_at: datetime
    finished_at: datetime | None


class RollbacksOut(BaseModel):
    """Every time that a stream went back, newest first."""

    rollbacks: list[RollbackOut]
