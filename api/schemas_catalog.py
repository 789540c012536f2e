"""The JSON shapes of what there is to replay, as OpenAPI shows them."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from backfill.plan.plan import TimeWindow
from backfill.plan.redrive import LetterReasonOut
from inventory.catalog import TopicOut


class TopicsOut(BaseModel):
    """All topics that are in Pub/Sub or have messages of the last seven days in the archive, sorted by name."""

    topics: list[TopicOut]


class MessageOut(BaseModel):
    """An archived message.

    JSON whose numbers an answer would write otherwise, such as 1.10, is text.
    """

    message_id: str
    topic: str = Field(description="The message's topic.")
    publish_time: datetime | None
    ingest_time: datetime | None
    ordering_key: str
    attributes: dict[str, str | None]
    data: Any
    encoding: Literal["json", "text", "base64"]
    data_bytes: int = Field(description="The size of the whole payload.")
    is_cut: bool = Field(
        description="Whether `data` is only the beginning of the payload. `full` shows whole payloads."
    )


class LetterMessageOut(BaseModel):
    """A dead letter of the pipeline, with its latest reason."""

    source: str = Field(description="The source that could not read the message.")
    topic: str = Field(description="The topic to which the message was first published.")
    message_id: str
    code: str = Field(description="The code of the reason.")
    path: str | None = Field(
        description="The path of the faulty field in the message. Null if the reason has no path."
    )
    reason: str = Field(description="The reason, in a sentence.")
    publish_time: datetime | None
    ingest_time: datetime | None = Field(description="When the message last became a dead letter.")
    attributes: dict[str, str | None] | None
    data: str | None = Field(description="The payload as text or base64, cut after `preview_bytes`.")
    encoding: Literal["text", "base64"] | None
    data_bytes: int | None = Field(description="The size of the whole payload.")
    is_cut: bool | None = Field(description="Whether `data` is only the beginning of the payload.")


class LetterMessagesOut(BaseModel):
    """Dead letters of one source, newest first."""

    messages: list[LetterMessageOut]
    is_cut: bool = Field(description="Whether the source has more dead letters than this list.")


class LettersOut(BaseModel):
    """The pipeline's dead letters by source, code and path, the most frequent first."""

    reasons: list[LetterReasonOut]


class MessagesOut(BaseModel):
    """The messages of a topic that were archived within the window, newest first."""

    window: TimeWindow = Field(description="The window of `ingest_time` from which the messages come.")
    messages: list[MessageOut]
    next_page_token: str | None
