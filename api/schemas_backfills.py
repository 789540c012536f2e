"""The JSON shapes of backfills and plans, as OpenAPI shows them."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from api.schemas import CodedMessage, changes_of
from backfill.plan.request import BackfillRequest
from backfill.run.dead_letters import DeadLetterReason
from model.declaration import example_of
from model.job import JobState

EXAMPLE_ID: Final = "bf_01K0ABCDEFGHJKMNPQRSTVWXYZ"
_REQUEST: Final = BackfillRequest(**example_of(BackfillRequest))
_EXAMPLE_BACKFILL: Final[dict[str, Any]] = {
    **_REQUEST.to_json(),
    "id": EXAMPLE_ID,
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
        "What changes; a field that is not there stays as it is, a rate limit of null lifts the limit.",
        example={"rate_limit_messages_per_second": 100},
    )


class BackfillRetry(BaseModel):
    """What a retry sends."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [{"only": "failed"}]})

    only: Literal["all", "failed", "missing"] = Field(
        default="all",
        description="all: what is left of one that failed or was cancelled; failed: its dead letters; "
        "missing: what has not landed.",
    )
    rows: list[Annotated[int, Field(ge=0)]] = Field(
        default_factory=list, max_length=10_000, description="With failed: these dead letters alone, by their row."
    )
    code: str | None = Field(
        default=None, max_length=64, description="With failed: the dead letters of this code alone."
    )


class TimeWindow(BaseModel):
    """A half-open interval of ingestion time."""

    model_config = ConfigDict(populate_by_name=True)

    start: datetime = Field(alias="from")
    end: datetime = Field(alias="to")


class ReplayedTimes(TimeWindow):
    """The times between which all messages lie that the query lets through."""

    column: Literal["ingest_time", "publish_time", "_PARTITIONTIME"] = Field(
        description="Which time of a message; _PARTITIONTIME where the query bounds no other from both sides."
    )


class BackfillProgress(BaseModel):
    """A backfill's figures."""

    selected: int | None = Field(description="Rows of the query's result; null until it has run.")
    published: int = Field(description="Messages that Pub/Sub has confirmed.")
    failed: int = Field(description="Rows that can't be published; /dead-letters has each with its reason.")
    bytes: int = Field(description="Bytes of the confirmed requests.")
    event_time: datetime | None = Field(description="The latest publish_time among what has been replayed.")
    rate_messages_per_second: float | None = Field(description="Over the last 15 seconds.")
    eta_seconds: float | None = Field(description="What is left, at the rate of the last 15 seconds.")
    repeated_at_most: int = Field(
        description="How many messages may have gone out twice, or will with a retry, at most: 0 unless a process "
        "died or an answer was lost."
    )


class BackfillVerification(BaseModel):
    """What is proven of a backfill, in rows of its selection; null is what can't be known."""

    state: Literal["pending", "complete", "incomplete", "unknown"] = Field(
        description="pending: it has not ended, or nobody has counted yet. complete: every selected row was "
        "published and has landed in each staging table of the target. incomplete: some were not, or have not. "
        "unknown: published whole, and no staging table of the target is known."
    )
    selected: int | None
    published: int
    landed: int | None = Field(description="Rows that reached the target's staging table.")
    merged: int | None = Field(description="Rows that a merge has taken into the reporting table.")
    missing: int | None = Field(description="Selected rows that have not landed.")


class BackfillApproval(BaseModel):
    """Whether somebody other than the creator has to approve, and who did."""

    required: bool
    above_rows: int | None
    rows: int | None = Field(description="Those of the plan, then those that were selected.")
    by: str | None
    at: datetime | None


class BackfillRevert(BaseModel):
    """Who reverted a backfill, and when."""

    by: str
    at: datetime
    rows: int = Field(description="Rows that were deleted from staging.")


class BackfillCanary(BaseModel):
    """The canary that was asked for."""

    messages: int
    state: Literal["ahead", "reached", "over"] = Field(
        description="reached: paused after it, waiting for :resume; over: resumed after it, or ended."
    )


class BackfillError(CodedMessage):
    """Why a backfill failed."""


class PlanWarning(CodedMessage):
    """Something to know before it runs."""


@dataclass(frozen=True, kw_only=True)
class BackfillOut(BackfillRequest):
    """One backfill."""

    # Every field is in every answer, whether a request may leave it out or not.
    __pydantic_config__: ClassVar = {
        "json_schema_serialization_defaults_required": True,
        "json_schema_extra": {"examples": [_EXAMPLE_BACKFILL]},
    }

    id: str
    state: JobState
    created_by: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    window: Annotated[TimeWindow | None, Field(description="The partitions that are read.")]
    replays: Annotated[ReplayedTimes | None, Field(description="Null of one that an earlier Refeed made.")]
    canary_messages: Annotated[int | None, Field(description="Null once a resume has ended the canary.")]
    canary: Annotated[BackfillCanary | None, Field(description="Null when none was asked for.")]
    progress: BackfillProgress
    restarts: Annotated[
        int, Field(description="Drivers that died and were replaced since a person last started it.")
    ]
    in_flight_at_most: Annotated[
        int | None,
        Field(description="Of one that is paused or being cancelled: messages that may still go out. Null else."),
    ]
    approval: Annotated[BackfillApproval | None, Field(description="Null where this deployment asks for none.")]
    verification: BackfillVerification
    revert: Annotated[
        BackfillRevert | None, Field(description="Null when nobody reverted it, or it was retried since.")
    ]
    error: BackfillError | None
    warnings: Annotated[
        list[PlanWarning], Field(description="nobody_receives, nothing_selected: nothing arrives anywhere.")
    ]
    etag: str


class PublishedSide(BaseModel):
    """A message as it would be published, without the tags; data is its own text, else base64, cut at 4 KiB."""

    attributes: dict[str, str | None]
    data: str
    encoding: Literal["text", "base64"]
    is_cut: bool


class ArchivedSide(PublishedSide):
    """The same message as it was archived."""

    topic: str
    publish_time: datetime
    ingest_time: datetime
    data_bytes: int = Field(description="Of the whole payload.")


class SampleComparison(BaseModel):
    """A sample before and after the query."""

    archived: ArchivedSide | None = Field(
        description="Null where no message, or more than one, has the sample's id in the window."
    )
    published: PublishedSide


class PlanSample(BaseModel):
    """A message that would be replayed; data is JSON when it is, else text or base64, cut at 4 KiB.

    Without the scope messages.read for its topic, data, encoding and attributes are null.
    """

    message_id: str | None
    publish_time: datetime | None
    topic: str | None
    attributes: dict[str, str | None] | None
    data: Any
    encoding: Literal["json", "text", "base64"] | None
    comparison: SampleComparison | None = Field(default=None, description="With originals=true alone.")


class PlanHour(BaseModel):
    """Rows that were published within one hour, by publish_time."""

    hour: datetime
    rows: int


class PlanSubscription(BaseModel):
    """A subscription of the target, and whether replayed messages reach it."""

    name: str
    filter: str
    receives_replay: bool
    excluded_by: Literal["backup", "filter", "detached"] | None = Field(
        default=None,
        description="What keeps replays from it: as a backup its filter, its own filter, or that it is detached.",
    )


class PlanBounds(BaseModel):
    """What one selection may come to in this deployment; beyond it a backfill fails before its first message."""

    rows: int | None
    bytes: int | None = Field(description="Of the selected rows, attributes and all.")


class PlanPricePart(BaseModel):
    """One thing that a replay makes somebody pay for."""

    what: str
    bytes: int | None = Field(description="Null where they are not known, or not what is billed.")
    usd: float | None = Field(description="At list prices; null is unknown.")


class PlanPrice(BaseModel):
    """What a replay costs, the query and all that follows, at the list prices of docs/cost.md."""

    usd: float | None = Field(description="Null while a part is unknown.")
    at_least_usd: float = Field(description="The sum of the parts that are known.")
    parts: list[PlanPricePart]


class PlanOut(BaseModel):
    """What a backfill would do. Null is what can't be known before; it is never zero."""

    plan_id: str
    expires_at: datetime
    topic: str
    window: TimeWindow | None = Field(description="The partitions that are read.")
    replays: ReplayedTimes
    rows: int | None = Field(description="Exact; null on BigQuery without exact=true.")
    bytes: int | None = Field(description="Of the messages' data.")
    bytes_scanned: int | None = Field(description="What the query reads.")
    price_usd: float | None = Field(description="Of the query; null where no price is set or nothing is billed.")
    replay_price: PlanPrice | None = Field(description="Of the whole replay; null where nothing of it is billed.")
    rows_by_topic: dict[str, int]
    rows_by_hour: list[PlanHour]
    first_publish_time: datetime | None
    last_publish_time: datetime | None
    messages_without_room: int | None = Field(
        description="Messages with no room for the tags (100 attributes, 10 MB): they would become dead letters."
    )
    messages_with_refused_attributes: int | None = Field(
        description="Messages with an attribute that Pub/Sub refuses (keys have 1 to 256 bytes and do not begin "
        "with goog, values have 1,024 bytes at most): they would become dead letters."
    )
    messages_with_rewritten_attributes: int | None = Field(
        description="Messages with attributes of their own whose place the replay's tags or added attributes take."
    )
    bounds: PlanBounds
    samples: list[PlanSample]
    subscriptions: list[PlanSubscription]
    warnings: list[PlanWarning]


class StoredPlanOut(PlanOut):
    """A plan that was made."""

    request: BackfillRequest = Field(description="What it is of; a create that quotes the plan sends the same.")


class BackfillEvent(BaseModel):
    """One line of a backfill's history."""

    number: int = Field(description="Grows, with gaps; what ?after= and Last-Event-ID take.")
    at: datetime
    actor: str
    what: str
    why: str | None


class BackfillSlice(BaseModel):
    """How far one slice of the selection is."""

    number: int
    first_row: int
    rows: int
    state: Literal["waiting", "begun", "done"]
    offset: int = Field(description="Rows of it with an answer from Pub/Sub, good or bad.")
    published: int
    failed: int
    bytes: int
    event_time: datetime | None
    repeated_at_most: int


class BackfillSlices(BaseModel):
    """A backfill's slices, in order; none before its query has run."""

    slices: list[BackfillSlice]


class DeadLetterOut(BaseModel):
    """A message that could not be published; null payload and attributes are those of who may not read them."""

    row: int = Field(description="The row's number in the selection.")
    topic: str | None
    message_id: str | None
    publish_time: datetime | None
    ordering_key: str
    code: str = Field(
        description="attribute_without_text, no_room_for_tags, message_too_large, refused_by_pubsub, gave_up or "
        "ordering_key_stopped."
    )
    reason: str
    at: datetime = Field(description="When it failed for the last time.")
    attributes: dict[str, str | None] | None = Field(description="Null without the scope messages.read.")
    data: str | None = Field(description="Its own text or base64; null without the scope messages.read.")
    encoding: Literal["text", "base64"] | None
    data_bytes: int = Field(description="Of the whole payload.")
    is_cut: bool = Field(description="Whether there is more of the payload.")


class DeadLetterPageOut(BaseModel):
    """Some of the messages that could not be published, by row; a page ends early at 16 MB of data."""

    dead_letters: list[DeadLetterOut]
    next_page_token: str | None


class DeadLetterReasons(BaseModel):
    """Why messages could not be published, the most frequent reason first."""

    reasons: list[DeadLetterReason]


class MissingMessageOut(BaseModel):
    """A message that was selected and has not landed."""

    row: int
    message_id: str | None
    topic: str | None
    publish_time: datetime | None


class MissingPage(BaseModel):
    """Some of the messages that have not landed, by row."""

    messages: list[MissingMessageOut]
    next_page_token: str | None


class BackfillRate(BaseModel):
    """What a backfill did in one interval; null is unknown."""

    start: datetime
    end: datetime
    over_seconds: float
    published: int | None = Field(
        description="In the interval; null where the total fell: dead letters went again."
    )
    failed: int | None
    rate_messages_per_second: float | None
    rate_limit_messages_per_second: float | None = Field(
        description="That held at the end; null: none, or unknown."
    )
    event_time: datetime | None = Field(description="The latest publish_time that was replayed by the end.")
    state: str | None


class BackfillRates(BaseModel):
    """A backfill's intervals, oldest first: of a minute while there are few, 240 at most."""

    intervals: list[BackfillRate]
