"""The JSON shapes of snapshots of streams and of rollbacks, as OpenAPI shows them."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from api.schemas import StreamJobOut
from model.fault import FaultRecord


class SnapshotCreate(BaseModel):
    """A snapshot to make."""

    model_config = ConfigDict(extra="forbid")

    with_source: bool = Field(
        default=False,
        description="Whether to make a Pub/Sub snapshot of each of the stream's subscriptions too.",
    )


class RollbackCreate(BaseModel):
    """A rollback to a snapshot."""

    model_config = ConfigDict(extra="forbid")

    snapshot: str = Field(
        description="The snapshot's id.", examples=["sn_01M7Z1H20HKNZ6PGKRYCX6J210"], max_length=64
    )
    discard_staged: bool = Field(
        default=False,
        description="Whether to delete the rows that a pipeline staged since the snapshot. The pipeline stages "
        "the rows again when Pub/Sub delivers the messages again. Rows that were already merged stay in the "
        "reporting tables.",
    )


class SourceSnapshotOut(BaseModel):
    """Pub/Sub's snapshot of one subscription."""

    subscription: str = Field(description="The subscription's id.")
    snapshot: str = Field(description="The Pub/Sub snapshot's id.")
    topic: str = Field(description="The subscription's topic.")
    expire_time: datetime = Field(description="When Pub/Sub deletes this snapshot.")


class SnapshotOut(BaseModel):
    """A snapshot of a stream. Until the snapshot is COMPLETED, some fields are null."""

    id: str = Field(description="The snapshot's id, which begins with `sn_`.")
    stream: str = Field(description="The stream's name.")
    kind: str = Field(description="The stream's kind.")
    state: Literal["PENDING", "COMPLETED", "FAILED", "DELETING"] = Field(description="The snapshot's state.")
    reason: Literal["manual", "scheduled", "update"] = Field(description="Why the snapshot was made.")
    with_source: bool = Field(description="Whether the snapshot includes Pub/Sub snapshots of the subscriptions.")
    release: str | None = Field(description="The release that ran the stream. Null means the installed version.")
    format_version: int | None = Field(description="The format number of the state in the snapshot.")
    subscriptions: list[SourceSnapshotOut] = Field(
        validation_alias="sources", description="The Pub/Sub snapshots."
    )
    expire_time: datetime | None = Field(
        description="When Pub/Sub deletes the first of the Pub/Sub snapshots. Null if there are no Pub/Sub "
        "snapshots."
    )
    taken_at: datetime | None = Field(description="When the state was copied.")
    size_bytes: int | None = Field(description="The size of the snapshot's files.")
    seconds_paused: float | None = Field(
        description="How long the stream paused its commits for the snapshot, in seconds."
    )
    known_messages: int | None = Field(description="Number of message ids that the snapshot contains.")
    error: FaultRecord | None
    created_by: str
    created_at: datetime
    finished_at: datetime | None


class SnapshotsOut(BaseModel):
    """A page of snapshots, newest first."""

    snapshots: list[SnapshotOut]
    next_page_token: str | None


class RollbackOut(StreamJobOut):
    """A rollback of a stream to a snapshot."""

    id: str = Field(description="The rollback's id, which begins with `rs_`.")
    kind: Literal["restore"] = Field(default="restore", description="The kind of the job.")
    stream: str = Field(description="The stream's name.")
    snapshot: str = Field(validation_alias="snapshot_id", description="The snapshot's id.")
    state: Literal["RUNNING", "SUCCEEDED", "FAILED"] = Field(description="The rollback's state.")
    step: Literal["waiting", "restored", "sought"] = Field(description="The last finished step.")
    discard_staged: bool = Field(description="Whether the rows staged since the snapshot are deleted.")
    discarded_rows: dict[str, int] = Field(description="Number of deleted rows, by staging table.")
    not_reverted: list[str] = Field(
        description="The changes that the rollback could not revert, each as a sentence."
    )
    error: FaultRecord | None
    created_by: str
    created_at: datetime
    finished_at: datetime | None
