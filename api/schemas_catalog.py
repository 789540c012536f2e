"""The JSON shapes of what there is to replay, as OpenAPI shows them."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from backfill.plan.plan import TimeWindow
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


class MessagesOut(BaseModel):
    """The messages of a topic that were archived within the window, newest first."""

    window: TimeWindow = Field(description="The window of `ingest_time` from which the messages come.")
    messages: list[MessageOut]
    next_page_token: str | None
