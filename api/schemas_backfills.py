"""The JSON shapes of backfills and plans, as OpenAPI shows them."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from api.schemas import CodedMessage, changes_of
from backfill.plan.plan import TimeWindow
from backfill.plan.price import PlanPrice
from backfill.plan.reach import PlanSubscription
from backfill.plan.request import BackfillRequest
from backfill.steer.rates import BackfillRate
from backfill.steer.reader import BackfillSlice
from backfill.steer.verification import MissingMessageOut
from model.declaration import example_of
from model.job import JobState

EXAMPLE_ID: Final = "bf_01K0ABCDEFGHJKMNPQRSTVWXYZ"
_REQUEST: Final = BackfillRequest(**example_of(BackfillRequest))
_EXAMPLE_BACKFILL: Final[dict[str, Any]] = {
    **_REQUEST.to_json(),
    "id": EXAMPLE_ID,
    "kind": "backfill",
    "state": "RUNNING",
    "created_by": "key:ann",
    "created_at": "2026-01-03T03:00:00Z",
    "started_at": "2026-01-03T03:00:02Z",
    "finished_at": None,
    "window": {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"},
    "replays": {"column": "_PARTITIONTIME", "from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"},
    "canary": {"messages": 10, "state": "ahead"},
    "progress": {
        "selected": 120_000,
        "published": 30_000,
        "failed": 0,
        "bytes": 33_000_000,
        "event_time": "2026-01-01T06:10:00.000000Z",
        "rate_messages_per_second": 500.0,
        "eta_seconds": 180.0,
        "repeated_at_most": 0,
    },
    "restarts": 0,
    "in_flight_at_most": None,
    "approval": None,
    "verification": {
        "state": "pending",
        "selected": 120_000,
        "published": 30_000,
        "landed": None,
        "merged": None,
        "missing": None,
        "waiting": None,
        "advice": None,
        "dead_letters": None,
    },
    "revert": None,
    "error": None,
    "warnings": [],
    "etag": '"4"',
}


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


class ReplayedTimes(TimeWindow):
    """The time window that contains all messages of the query's result."""

    column: Literal["ingest_time", "publish_time", "_PARTITIONTIME"] = Field(
        description=(
            "The time column to which `from` and `to` apply. This is `ingest_time` or `publish_time` if the "
            "query has a lower and an upper limit for that column. If both columns have limits, this is the "
            "column with the shorter window. In all other cases, this is `_PARTITIONTIME`."
        )
    )


class BackfillProgress(BaseModel):
    """The progress of a backfill."""

    selected: int | None = Field(
        description="Number of rows that the query returned. Null until the query has run."
    )
    published: int = Field(description="Number of messages that Pub/Sub has confirmed.")
    failed: int = Field(
        description="Number of messages that can't be published. `GET /dead-letters` lists them with reasons."
    )
    bytes: int = Field(description="Bytes of the publish requests that Pub/Sub has confirmed.")
    event_time: datetime | None = Field(description="The latest `publish_time` of the replayed messages.")
    rate_messages_per_second: float | None = Field(description="The rate of the last 15 seconds.")
    eta_seconds: float | None = Field(
        description="The expected number of seconds until the end, at the rate of the last 15 seconds."
    )
    repeated_at_most: int = Field(
        description="At most this number of messages were published twice, or would be published twice by a "
        "retry. The number is more than 0 only if a process died or an answer of Pub/Sub was lost."
    )


class BackfillVerification(BaseModel):
    """How many selected rows have arrived. Null means unknown."""

    state: Literal["pending", "complete", "incomplete", "unknown"] = Field(
        description="`pending`: the backfill has not ended, its rows are not counted yet, or all rows that are "
        "not in a staging table may not be delivered yet. `complete`: every selected row is in every staging "
        "table of the target. `incomplete`: some rows were not published, or are missing. `unknown`: Refeed knows "
        "no staging table of the target."
    )
    selected: int | None = Field(description="Number of selected rows.")
    published: int = Field(description="Number of messages that Pub/Sub has confirmed.")
    landed: int | None = Field(description="Number of selected rows that are in the target's staging table.")
    merged: int | None = Field(description="Number of selected rows that a merge has read.")
    missing: int | None = Field(
        description="Number of rows that are not in the target's staging table, without those in `waiting`. Rows "
        "that were never sent, because the backfill was cancelled or failed, do not count."
    )
    waiting: int | None = Field(
        None,
        description="At most this number of rows wait in a subscription of the target's pipeline. They are not "
        "delivered yet.",
    )
    advice: str | None = Field(
        None, description="Why rows wait or can't be verified, and what to do. Null if there is nothing to do."
    )
    dead_letters: int | None = Field(
        default=None, description="How many of the missing rows are dead letters of the pipeline."
    )


class BackfillApproval(BaseModel):
    """The approval of a backfill with many rows."""

    required: bool = Field(description="Whether the backfill needs an approval.")
    above_rows: int | None = Field(description="A backfill with more rows than this number needs an approval.")
    rows: int | None = Field(
        description="The number of rows in the plan. After the query has run, the number of selected rows."
    )
    by: str | None = Field(description="Who approved the backfill. Null before the approval.")
    at: datetime | None = Field(description="When the person approved the backfill. Null before the approval.")


class BackfillRevert(BaseModel):
    """Who reverted a backfill, and when."""

    by: str = Field(description="Who reverted the backfill.")
    at: datetime = Field(description="When the backfill was reverted.")
    rows: int = Field(description="Number of rows that were deleted from the staging table.")


class BackfillCanary(BaseModel):
    """The requested canary: the backfill publishes this number of messages first, and then pauses."""

    messages: int = Field(description="Number of messages in the canary.")
    state: Literal["ahead", "reached", "over"] = Field(
        description="`ahead`: not all messages of the canary are published. `reached`: the backfill has paused "
        "after the canary. `over`: the backfill was resumed, or has ended."
    )


class BackfillError(CodedMessage):
    """Why a backfill failed."""


class PlanWarning(CodedMessage):
    """A warning about the backfill."""


@dataclass(frozen=True, kw_only=True)
class BackfillOut(BackfillRequest):
    """One backfill."""

    # Every field is in every answer, whether a request may leave it out or not.
    __pydantic_config__: ClassVar = {
        "json_schema_serialization_defaults_required": True,
        "json_schema_extra": {"examples": [_EXAMPLE_BACKFILL]},
    }

    id: Annotated[str, Field(description="The backfill's id, which begins with `bf_`.")]
    kind: Annotated[Literal["backfill"], Field(description="The kind of the job.")]
    state: Annotated[JobState, Field(description="The backfill's state.")]
    created_by: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    window: Annotated[TimeWindow | None, Field(description="The partitions that the query reads.")]
    replays: Annotated[
        ReplayedTimes | None,
        Field(
            description="The time window of the selected messages. Null if an older version of Refeed created "
            "the backfill."
        ),
    ]
    canary_messages: Annotated[
        int | None, Field(description="The number of messages in the canary. Null after the backfill was resumed.")
    ]
    canary: Annotated[BackfillCanary | None, Field(description="The canary and its state. Null without a canary.")]
    progress: Annotated[BackfillProgress, Field(description="The backfill's progress.")]
    restarts: Annotated[
        int,
        Field(
            description="The number of drivers that died and were replaced since a person last started the job."
        ),
    ]
    in_flight_at_most: Annotated[
        int | None,
        Field(description="The largest number of messages that can still be published after a pause or a cancel."),
    ]
    approval: Annotated[
        BackfillApproval | None, Field(description="The approval. Null if this deployment requires no approvals.")
    ]
    verification: Annotated[
        BackfillVerification, Field(description="How many of the selected messages have arrived.")
    ]
    revert: Annotated[
        BackfillRevert | None,
        Field(
            description="The last revert. Null if nobody reverted the backfill, or if the backfill was retried "
            "after the revert."
        ),
    ]
    error: BackfillError | None
    warnings: Annotated[
        list[PlanWarning],
        Field(description="Reasons why no message will arrive: `nobody_receives` or `nothing_selected`."),
    ]
    etag: str


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
    topic: str | None = Field(description="The value of the column topic in the query's result.")
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
    rows_by_topic: dict[str, int] = Field(description="Number of rows for each topic in the query's result.")
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
