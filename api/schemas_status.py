"""The JSON shapes of what runs, what waits for a person and what is wrong, as OpenAPI shows them."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from api.schemas_backfills import BackfillOut
from api.schemas_compactions import CompactionOut
from api.schemas_merges import MergeOut
from api.schemas_streams import StreamOut
from model.approval import ApprovalState
from model.job import JobState
from model.rollout_record import RolloutState
from model.stream_record import StreamState


class InboxItemOut(BaseModel):
    """Something that goes on, or is mended, only when a person acts: a job, a stream, a topic or an upload."""

    kind: Literal["approval", "canary", "paused", "failure", "incomplete", "ended", "dead_letters", "gap"]
    resource: Literal["backfill", "merge", "compaction", "stream", "manifest", "approval", "rollout", "topic"]
    id: str = Field(description="Of a stream its name; of an uploaded manifest its file, or where it is uploaded.")
    state: JobState | StreamState | ApprovalState | RolloutState | None = Field(description="Null of a topic.")
    topic: str | None
    created_by: str | None
    since: datetime | None = Field(description="When it began to wait.")
    message: str


class InboxOut(BaseModel):
    """What waits for a person, the longest first; what ended counts for seven days."""

    items: list[InboxItemOut]


class StatusProblemOut(BaseModel):
    """Something that is wrong."""

    code: str
    name: str = Field(description="The stream, job or part that it is about.")
    message: str


class StatusOut(BaseModel):
    """Everything that runs, on one screen."""

    is_ok: bool = Field(description="Whether `problems` is empty.")
    problems: list[StatusProblemOut]
    streams: list[StreamOut]
    backfills: list[BackfillOut] = Field(description="Those that have not ended, oldest first.")
    merges: list[MergeOut] = Field(description="Those that have not ended, oldest first.")
    compactions: list[CompactionOut] = Field(description="Those that have not ended, oldest first.")
    inbox: list[InboxItemOut]
