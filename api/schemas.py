"""The API's JSON shapes, as OpenAPI shows them."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from model.job import JobState

_QUERY = """\
SELECT data, attributes, message_id
FROM backup.messages
WHERE _PARTITIONTIME >= @from AND _PARTITIONTIME < @to AND topic = 'orders'"""


class QueryParameter(BaseModel):
    """A named parameter's type and value; BYTES are base64, DATE and TIMESTAMP are RFC 3339, arrays are lists."""

    model_config = ConfigDict(extra="forbid")

    type: str = Field(max_length=64, examples=["TIMESTAMP"])
    value: Any = Field(examples=["2026-01-01T00:00:00Z"])


class BackfillCreate(BaseModel):
    """What to replay, and where to."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [
                {
                    "query": _QUERY,
                    "topic": "orders",
                    "parameters": {
                        "from": {"type": "TIMESTAMP", "value": "2026-01-01T00:00:00Z"},
                        "to": {"type": "TIMESTAMP", "value": "2026-01-02T00:00:00Z"},
                    },
                    "description": "New Year's orders lost their currency.",
                    "labels": {"ticket": "shop-123"},
                }
            ]
        },
    )

    query: str = Field(min_length=1, description="One SELECT over the archive, in GoogleSQL.")
    topic: str = Field(min_length=1, max_length=300, description="Id of the topic that the messages go to.")
    parameters: dict[str, QueryParameter] = Field(default_factory=dict)
    description: str = Field(default="", description="Why; up to 2,000 characters.")
    labels: dict[str, str] = Field(default_factory=dict)


class TimeWindow(BaseModel):
    """A half-open interval of ingestion time."""

    model_config = ConfigDict(populate_by_name=True)

    start: datetime = Field(alias="from")
    end: datetime = Field(alias="to")


class BackfillProgress(BaseModel):
    """A backfill's figures; ``selected`` is null until its query has run."""

    selected: int | None
    published: int
    failed: int
    bytes: int
    event_time: datetime | None = Field(description="The latest publish_time among what has been replayed.")
    rate_messages_per_second: float | None
    eta_seconds: float | None
    repeated_at_most: int = Field(description="How many messages may have gone out twice, at most.")


class BackfillError(BaseModel):
    """Why a backfill failed."""

    code: str
    message: str


class BackfillOut(BaseModel):
    """One backfill."""

    id: str
    state: JobState
    query: str
    parameters: dict[str, QueryParameter]
    topic: str
    description: str
    labels: dict[str, str]
    created_by: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    window: TimeWindow | None
    progress: BackfillProgress
    error: BackfillError | None
    etag: str


class BackfillPage(BaseModel):
    """Some backfills, newest first."""

    backfills: list[BackfillOut]
    next_page_token: str | None


class BackfillEvent(BaseModel):
    """One line of a backfill's history."""

    number: int
    at: datetime
    actor: str
    what: str
    why: str | None


class BackfillEvents(BaseModel):
    """A backfill's history, oldest first."""

    events: list[BackfillEvent]


class PlanSample(BaseModel):
    """A message that would be replayed; data is JSON when it is, else text or base64, cut at 4 KiB."""

    message_id: str | None
    publish_time: datetime | None
    topic: str | None
    attributes: dict[str, str | None]
    data: Any
    encoding: Literal["json", "text", "base64"]


class PlanOut(BaseModel):
    """What a backfill would publish; ``bytes_scanned`` is the size of the files that may be read."""

    window: TimeWindow | None
    rows: int
    bytes: int
    bytes_scanned: int
    rows_by_topic: dict[str, int]
    first_publish_time: datetime | None
    last_publish_time: datetime | None
    samples: list[PlanSample]


class ProblemItem(BaseModel):
    """One of several things that are wrong; SQL has line and column, other fields a pointer."""

    code: str
    message: str
    pointer: str | None = None
    line: int | None = None
    column: int | None = None
    rewrite: str | None = None


class Problem(BaseModel):
    """RFC 9457 problem details; ``code`` is stable."""

    type: Annotated[str, Field(json_schema_extra={"format": "uri"})]
    title: str
    status: int
    detail: str
    instance: str
    code: str
    errors: list[ProblemItem]


def problem_schemas() -> dict[str, Any]:
    """Return OpenAPI's schemas of a problem and of what it is made of."""
    schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    return {**schema.pop("$defs"), "Problem": schema}


class Health(BaseModel):
    """Whether the service lives, or what is not ready yet."""

    status: Literal["ok", "not_ready"]
    problems: dict[str, str] = Field(default_factory=dict)
