"""The JSON shapes of what there is to replay, as OpenAPI shows them."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from api.schemas_backfills import PlanSubscription, TimeWindow


class TopicOut(BaseModel):
    """A topic: whether it is backed up, the backup's lag, and the volume of the last seven days.

    Null is unknown.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "topic": "orders",
                    "is_attached": True,
                    "subscription": "refeed-backup.orders",
                    "excludes_replays": True,
                    "backlog_messages": 12,
                    "lag_seconds": 0.8,
                    "last_publish_time": "2026-01-03T03:00:00.000000Z",
                    "last_ingest_time": "2026-01-03T03:00:01.000000Z",
                    "freshness_seconds": 2.5,
                    "messages": 840_000,
                    "stored_bytes": 310_000_000,
                    "messages_per_second": 1.4,
                    "subscriptions": [
                        {
                            "name": "refeed-backup.orders",
                            "filter": 'NOT attributes.refeed_replay = "<token>"',
                            "receives_replay": False,
                            "excluded_by": "backup",
                        },
                        {
                            "name": "pipeline-orders",
                            "filter": "",
                            "receives_replay": True,
                            "excluded_by": None,
                        },
                    ],
                }
            ]
        }
    )

    topic: str = Field(description="The topic.")
    is_attached: bool = Field(description="Whether the topic is backed up.")
    subscription: str | None = Field(description="The backup subscription of the topic.")
    excludes_replays: bool | None = Field(
        description="Whether the filter of the backup subscription excludes replays."
    )
    backlog_messages: int | None = Field(description="Number of pending messages in the backup subscription.")
    lag_seconds: float | None = Field(description="Age of the oldest message that is not archived yet.")
    last_publish_time: datetime | None = Field(description="The newest `publish_time` in the archive.")
    last_ingest_time: datetime | None = Field(description="The newest `ingest_time` in the archive.")
    freshness_seconds: float | None = Field(description="Age of the newest archived message.")
    messages: int | None = Field(description="Number of messages that were archived in the last seven days.")
    stored_bytes: int | None = Field(
        description="Compressed bytes of the topic in the archive. If a file contains several topics, its "
        "bytes are divided in proportion to their messages."
    )
    messages_per_second: float | None = Field(
        description="Mean number of messages archived per second since the beginning of the previous hour."
    )
    subscriptions: list[PlanSubscription] = Field(
        description="The topic's subscriptions in its own project, sorted by name."
    )


class TopicsOut(BaseModel):
    """All topics that are in Pub/Sub or have messages of the last seven days in the archive, sorted by name."""

    topics: list[TopicOut]


class HistogramBucket(BaseModel):
    """The messages that were archived in one interval of the histogram."""

    start: datetime = Field(description="Start of the step.")
    messages: int = Field(description="Number of messages.")


class HistogramOut(BaseModel):
    """The archived messages of a topic by minute, hour or day of ingestion."""

    topic: str = Field(description="The topic.")
    step: Literal["minute", "hour", "day"] = Field(description="The length of a bucket.")
    window: TimeWindow = Field(description="The window in which messages are counted.")
    messages: int = Field(description="Number of all messages in the window.")
    buckets: list[HistogramBucket] = Field(description="One bucket for each minute, hour or day of the window.")


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


class LetterReasonOut(BaseModel):
    """The dead letters of one source that have the same code and path."""

    source: str = Field(description="The source.")
    topic: str = Field(description="The topic to which the messages were first published.")
    code: str = Field(description="The code of the reason.")
    path: str | None = Field(
        description="The path of the faulty field in the message. Null if the reason has no path."
    )
    messages: int = Field(description="Number of messages. Each message counts once, with its latest reason.")
    repaired: int | None = Field(description="How many of the dead letters later became rows. Null means unknown.")
    first_ingest_time: datetime | None = Field(description="When the first message became a dead letter.")
    last_ingest_time: datetime | None = Field(description="When the last message became a dead letter.")
    example_message_id: str = Field(description="The id of one message, as an example.")
    example_message_ids: list[str] = Field(description="The ids of up to 5 of the messages, the latest first.")
    example_reason: str = Field(description="The reason of the example message.")
    request: dict[str, Any] = Field(
        description="A body for `POST /backfills` and `POST /backfills:plan`. The backfill sends all messages "
        "that are not repaired yet. An empty list in `codes`, `paths` or `message_ids` means all."
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
