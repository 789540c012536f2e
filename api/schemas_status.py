"""The JSON shapes of what runs, what waits for a person and what is wrong, as OpenAPI shows them."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from api.schemas_backfills import BackfillOut
from api.schemas_merges import MergeOut
from api.schemas_streams import StreamOut
from model.job import JobState


class InboxItemOut(BaseModel):
    """A job or a stream that goes on, or is mended, only when somebody does something."""

    kind: Literal["approval", "canary", "paused", "failure", "incomplete", "ended"]
    resource: Literal["backfill", "merge", "stream"]
    id: str = Field(description="Of a stream its name.")
    state: JobState | Literal["DRAINED"]
    topic: str | None
    created_by: str
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
    inbox: list[InboxItemOut]
