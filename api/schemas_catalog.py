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

    topic: str
    is_attached: bool
    subscription: str | None = Field(description="Its backup subscription.")
    excludes_replays: bool | None = Field(description="Whether that one's filter leaves replays out.")
    backlog_messages: int | None
    lag_seconds: float | None = Field(description="Age of the oldest message that is not archived yet.")
    last_publish_time: datetime | None
    last_ingest_time: datetime | None
    freshness_seconds: float | None = Field(description="Age of the newest archived message.")
    messages: int | None
    stored_bytes: int | None = Field(
        description="As compressed; an estimate where a file has several topics: its bytes are shared out by rows."
    )
    messages_per_second: float | None = Field(
        description="Archived, on average since the hour before this one began; null where nobody counts them."
    )
    subscriptions: list[PlanSubscription] = Field(description="All of the topic that its project has, by name.")


class TopicsOut(BaseModel):
    """Every topic that Pub/Sub has or the archive has lately heard of, by name."""

    topics: list[TopicOut]


class HistogramBucket(BaseModel):
    """Messages that came in from ``start`` on, for one step."""

    start: datetime
    messages: int


class HistogramOut(BaseModel):
    """A topic's messages by minute, hour or day of their ingestion, empty ones too."""

    topic: str
    step: Literal["minute", "hour", "day"]
    window: TimeWindow
    messages: int
    buckets: list[HistogramBucket]


class MessageOut(BaseModel):
    """An archived message; ``data`` is JSON, text or base64, as ``encoding`` says.

    JSON whose numbers an answer would write otherwise, such as 1.10, is text.
    """

    message_id: str
    topic: str
    publish_time: datetime | None
    ingest_time: datetime | None
    ordering_key: str
    attributes: dict[str, str | None]
    data: Any
    encoding: Literal["json", "text", "base64"]
    data_bytes: int = Field(description="The whole payload's size.")
    is_cut: bool = Field(description="Whether `data` is only its first 4 KiB; `full` has all of it.")


class LetterReasonOut(BaseModel):
    """Messages that one source of the pipeline could make no row of, all with one code and at one path."""

    source: str
    topic: str = Field(description="The topic to which the messages were first published.")
    code: str
    path: str | None = Field(
        description="Where in the message, without numbers and keys of lists and maps; null: no place is named."
    )
    messages: int = Field(description="Each counts once, by its latest dead letter.")
    repaired: int | None = Field(
        description="How many have become a row since; null unless REFEED_QUERY_TABLES names the staging table."
    )
    first_ingest_time: datetime | None
    last_ingest_time: datetime | None
    example_message_id: str
    example_reason: str
    request: dict[str, Any] = Field(
        description="A backfill of those that are not known to be repaired, as `POST /backfills` and "
        "`/backfills:plan` take it; empty `codes`, `paths` or `message_ids` stand for all."
    )


class LetterMessageOut(BaseModel):
    """A message that is a dead letter, with its latest reason; null payloads are hidden or not asked for."""

    source: str
    topic: str
    message_id: str
    code: str
    path: str | None
    reason: str
    publish_time: datetime | None
    ingest_time: datetime | None = Field(description="When it became a dead letter, the last time.")
    attributes: dict[str, str | None] | None
    data: str | None = Field(description="The payload's own text or base64, cut at `preview_bytes`.")
    encoding: Literal["text", "base64"] | None
    data_bytes: int | None = Field(description="Of the whole payload.")
    is_cut: bool | None = Field(description="Whether there is more of the payload.")


class LetterMessagesOut(BaseModel):
    """Dead letters of one source, the latest first."""

    messages: list[LetterMessageOut]
    is_cut: bool = Field(description="Whether there are more.")


class LettersOut(BaseModel):
    """The pipeline's dead letters by source, code and path, the most frequent first."""

    reasons: list[LetterReasonOut]


class MessagesOut(BaseModel):
    """Messages of one topic that came in within the window, newest first."""

    window: TimeWindow
    messages: list[MessageOut]
    next_page_token: str | None
