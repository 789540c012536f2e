"""Entries of histories, of whatever object they are."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from model.event import HistoryEventType


class EventOut(BaseModel):
    """An entry in the history of a job, a stream, a manifest, a topic, a source or a key."""

    number: int = Field(
        description="The number of the entry. Later entries of the same object have higher numbers. To get only "
        "later entries, send this number as `?after=` or Last-Event-ID, if the call accepts it."
    )
    at: datetime
    resource: str = Field(description="The kind of the job, or `stream`, `manifest`, `topic`, `source` or `key`.")
    id: str = Field(description="The id of a job, or the name of another object.")
    type: HistoryEventType = Field(description="The kind of the entry.")
    actor: str | None = Field(description="Who did it. Null if this is unknown.")
    what: str = Field(description="What happened, in a sentence.")
    why: str | None = Field(description="Why it happened. Null without a reason.")
    generation: int | None = Field(
        description="The generation of a stream: each launch under the same name begins a new generation."
    )
    fields: dict[str, Any] = Field(description="Details for programs. The fields depend on the type.")


class EventPage(BaseModel):
    """Entries of histories, newest first."""

    events: list[EventOut]
    next_page_token: str | None
