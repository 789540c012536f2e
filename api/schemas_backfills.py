"""The JSON shapes of backfills and plans, as OpenAPI shows them."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from api.schemas import changes_of
from backfill.plan.plan import PlanWarning, ReplayedTimes, TimeWindow
from backfill.plan.price import PlanPrice
from backfill.plan.reach import PlanSubscription
from backfill.plan.request import BackfillRequest
from backfill.steer.rates import BackfillRate
from backfill.steer.reader import BackfillSlice
from backfill.steer.verification import MissingMessageOut

if TYPE_CHECKING:
    BackfillChange = dict[str, Any]
else:
    BackfillChange = changes_of(
        BackfillRequest,
        "BackfillChange",
        "The fields to change. Other fields keep their values. A rate limit of null removes the limit.",
        example={"rate_limit_messages_per_second": 100},
    )


class BackfillRetry(BaseModel):
    """Which messages a retry sends."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [{"only": "failed"}]})

    only: Literal["all", "failed", "missing"] = Field(
        default="all",
        description="`all`: all messages that are not published yet, including dead letters. `failed`: only "
        "dead letters. `missing`: only messages that are not in the target's staging table.",
    )
    rows: list[Annotated[int, Field(ge=0)]] = Field(
        default_factory=list,
        max_length=10_000,
        description=(
            "Only with `only=failed`: the rows whose dead letters are sent again. An empty list means all rows."
        ),
    )
    code: str | None = Field(
        default=None,
        max_length=64,
        description=(
            "Only with `only=failed`: the code of the dead letters that are sent again. Null means every code."
        ),
    )


class PublishedSide(BaseModel):
    """A message that would be published, without the tags. `data` is text or base64, cut after 4 KiB."""

    attributes: dict[str, str | None]
    data: str
    encoding: Literal["text", "base64"]
    is_cut: bool


class ArchivedSide(PublishedSide):
    """The archived message of a sample."""

    topic: str = Field(description="The topic of the archived message.")
    publish_time: datetime
    ingest_time: datetime
    data_bytes: int = Field(description="The size of the whole payload.")


class SampleComparison(BaseModel):
    """A sample before and after the query."""

    archived: ArchivedSide | None = Field(
        description="The archived message. Null if the window has no message with the sample's id, or if it has "
        "several."
    )
    published: PublishedSide = Field(description="The message as it would be published.")


class PlanSample(BaseModel):
    """A message that would be published. The payload is cut after 4 KiB.

    Without the scope messages.read for its topic, data, encoding and attributes are null.
    """

    message_id: str | None
    publish_time: datetime | None
    topic: str | None = Field(
        description="The value of the column topic in the query's result. Null if the query computes it, and you "
        "may not read messages of all topics."
    )
    attributes: dict[str, str | None] | None
    data: Any
    encoding: Literal["json", "text", "base64"] | None
    comparison: SampleComparison | None = Field(
        default=None, description="The message before and after the query. Only with originals=true."
    )


class PlanHour(BaseModel):
    """The number of rows whose publish_time is in one hour."""

    hour: datetime = Field(description="Start of the hour.")
    rows: int = Field(description="Number of rows.")


class PlanBounds(BaseModel):
    """The limits of a selection. A backfill above these limits fails before it publishes anything."""

    rows: int | None = Field(description="The maximum number of selected rows.")
    bytes: int | None = Field(
        description="The maximum number of bytes in the selected rows, including their attributes."
    )


class PlanOut(BaseModel):
    """The plan of a backfill. Null means unknown."""

    plan_id: str = Field(description="The plan's id, which begins with `pl_`.")
    expires_at: datetime = Field(description="When the plan expires.")
    topic: str = Field(description="The target topic.")
    query: str | None = Field(default=None, description="The query. Null in a plan of an earlier version.")
    window: TimeWindow | None = Field(description="The partitions that the query reads.")
    replays: ReplayedTimes = Field(description="The time window of the selected messages.")
    rows: int | None = Field(description="The exact number of rows. On BigQuery, null without exact=true.")
    bytes: int | None = Field(description="Bytes of the messages' payloads. Null on BigQuery.")
    bytes_scanned: int | None = Field(description="Bytes that the query reads.")
    price_usd: float | None = Field(description="The query's price. Null if no price is set or nothing is billed.")
    replay_price: PlanPrice | None = Field(description="The price of the whole replay. Null if nothing is billed.")
    rows_by_topic: dict[str, int] = Field(
        description="Number of rows for each topic in the query's result. Empty if the query computes the topic, "
        "and you may not read messages of all topics."
    )
    rows_by_hour: list[PlanHour] = Field(description="Number of rows for each hour of `publish_time`.")
    first_publish_time: datetime | None = Field(description="The oldest publish_time.")
    last_publish_time: datetime | None = Field(description="The newest publish_time.")
    messages_without_room: int | None = Field(
        description=(
            "Number of messages that would become dead letters, because the replay's tags make them too large. "
            "Pub/Sub accepts at most 100 attributes and 10 MB."
        )
    )
    messages_with_refused_attributes: int | None = Field(
        description="Number of messages that would become dead letters because Pub/Sub refuses one of their "
        "attributes. A key must have 1 to 256 bytes and must not begin with `goog`. A value must have at most "
        "1,024 bytes."
    )
    messages_with_rewritten_attributes: int | None = Field(
        description="Number of messages with an attribute that the replay's tags or the request's "
        "`attributes` would replace."
    )
    bounds: PlanBounds = Field(description="The limits for the selected rows.")
    samples: list[PlanSample] = Field(description="Up to ten messages that would be published.")
    subscriptions: list[PlanSubscription] = Field(description="The subscriptions of the target topic.")
    warnings: list[PlanWarning] = Field(description="The warnings (docs/sql.md).")


class StoredPlanOut(PlanOut):
    """An earlier plan and its request."""

    request: BackfillRequest = Field(
        description="The planned request. To run the plan, create a backfill with the same request and this "
        "plan's id."
    )


class MissingPage(BaseModel):
    """A page of missing messages, in the order of their rows in the selection."""

    messages: list[MissingMessageOut]
    next_page_token: str | None
    advice: str | None = Field(
        description="Why messages of the list may still arrive, and what to do. Null if no message waits in a "
        "subscription of the target's pipeline."
    )


class BackfillFiguresOut(BaseModel):
    """How a backfill went over time, and the progress of each slice of its selection."""

    intervals: list[BackfillRate] = Field(
        description="The intervals of the backfill, oldest first: at most 240, each one minute or longer."
    )
    slices: list[BackfillSlice] = Field(description="The slices. The list is empty until the query has run.")
