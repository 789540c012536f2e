"""The JSON shapes of streams, as OpenAPI shows them."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, WithJsonSchema

from api.schemas import CodedMessage
from model.declaration import declared_fields
from model.stream_options import OPTIONS, StreamOptions
from model.stream_record import DRAIN_TIMEOUT_SECONDS, MAX_DRAIN_TIMEOUT_SECONDS, StreamEventType
from rollout.check import Remedy

State = Literal[
    "STARTING",
    "RUNNING",
    "WAITING",
    "UPDATING",
    "DRAINING",
    "DRAINED",
    "CANCELLED",
    "FAILED",
    "NOT_REPORTING",
]


class StreamError(CodedMessage):
    """Why a stream ended or can't be started."""


class StreamAlert(BaseModel):
    """A source of a pipeline, or its registry, that has a fault; all others go on."""

    about: str
    code: str
    message: str


class StreamOwner(BaseModel):
    """A process: that a stream runs in, or that looks after one."""

    host: str
    pid: int


class StreamPlace(BaseModel):
    """The folder of a stream's state on the machine that ran it last."""

    host: str
    path: str


class StreamOut(BaseModel):
    """A stream as it last reported, and as it was launched; null is unknown, or was started by hand."""

    name: str
    kind: Literal["backup", "pipeline", "kinesis"] | None
    state: State = Field(
        description="NOT_REPORTING 15 seconds after the last report of a stream that had not ended; DRAINING "
        "also while a cancelled stream's process has not ended."
    )
    owner: StreamOwner | None
    instance_id: str | None = Field(
        description='Of its newest start, "in_" and a ULID; of the home, where it was started by hand.'
    )
    is_retired: bool | None = Field(
        description="Whether the registry no longer has the pipeline's group; null while it can't be read."
    )
    started_at: datetime | None
    reported_at: datetime | None
    seconds_since_report: float | None
    totals: dict[str, float]
    rates: dict[str, float] | None = Field(
        description="The totals' growth a second over over_seconds; null unless it is RUNNING."
    )
    over_seconds: float | None
    batch_seconds: float | None = Field(
        description="What its latest batch with messages took to be committed and acknowledged."
    )
    backlog_messages: int | None
    lag_seconds: float | None = Field(
        description="Age of the oldest message of its subscriptions at lag_measured_at."
    )
    lag_measured_at: datetime | None = Field(
        description="At Google a sample of Cloud Monitoring, one to three minutes old when it is first seen."
    )
    alerts: list[StreamAlert] | None = Field(description="Of a pipeline: its sources that have a fault.")
    error: StreamError | None
    redelivered: float | None = Field(description="Messages that came again and were not written again.")
    not_committed: int | None = Field(
        description="Messages that its end gave back unacknowledged; they come again."
    )
    retained_until: datetime | None = Field(
        description="Pub/Sub deletes nothing that waits for it before this; null: nothing waits, or nobody knows."
    )
    release: str | None = Field(description="The version that it was launched with; null is the installed one.")
    options: dict[str, Any] | None = Field(
        description="Those that it was launched with; one that is absent is as the settings say."
    )
    wanted: Literal["RUNNING", "DRAINED", "CANCELLED"] | None
    drain_timeout_seconds: float | None = Field(description="Of the drain that was asked for.")
    generation: int | None = Field(description="How often a stream was launched under this name.")
    agent: StreamOwner | None = Field(description="The agent that looks after it; null while nobody does.")
    home: StreamPlace | None
    snapshot_id: str | None = Field(description="The snapshot that it was launched from.")
    created_by: str | None = Field(description="Who launched a stream under this name for the first time.")
    created_at: datetime | None
    launched_by: str | None = Field(description="Who launched the generation that it is at.")
    launched_at: datetime | None
    etag: str | None


class StreamsOut(BaseModel):
    """Every stream that was launched or has ever reported, by name."""

    streams: list[StreamOut]


class StreamDrain(BaseModel):
    """How long a drain may take."""

    model_config = ConfigDict(extra="forbid", strict=True)

    timeout_seconds: Annotated[
        float,
        Field(
            ge=0,
            le=MAX_DRAIN_TIMEOUT_SECONDS,
            description="After it the stream ends with what is not committed unacknowledged; that comes again.",
            examples=[30],
        ),
    ] = DRAIN_TIMEOUT_SECONDS


class StreamEventOut(BaseModel):
    """One line of a stream's history."""

    number: int = Field(description="Grows, with gaps; what ?after= takes.")
    generation: int
    at: datetime
    actor: str
    type: StreamEventType
    what: str
    why: str | None
    fields: dict[str, Any] = Field(description="What programs read, by the type.")


class StreamEvents(BaseModel):
    """A stream's history, oldest first, of all its generations."""

    events: list[StreamEventOut]


def options_schema(*kinds: type[StreamOptions], only: Collection[str] | None = None) -> dict[str, Any]:
    """Return OpenAPI's schema of options: those of any of these kinds, or ``only`` some of them."""
    properties: dict[str, Any] = {}
    for kind in kinds:
        for name, schema in TypeAdapter(kind).json_schema()["properties"].items():
            if only is None or name in only:
                # Null and absent are the same for every option.
                nullable = schema if "anyOf" in schema else {**schema, "type": [schema["type"], "null"]}
                properties[name] = {key: value for key, value in nullable.items() if key != "default"}
    return {"type": "object", "properties": properties, "additionalProperties": False}


_CHANGEABLE = [field.name for field in declared_fields(StreamOptions) if field.spec.is_changeable]


class StreamChange(BaseModel):
    """Bounds and pace of a stream; null is the deployment's setting again."""

    model_config = ConfigDict(extra="forbid", strict=True)

    options: Annotated[dict[str, Any], WithJsonSchema(options_schema(StreamOptions, only=_CHANGEABLE))] = Field(
        description="batch_seconds and batch_bytes; the others are those of a launch.",
        examples=[{"batch_seconds": 2}],
    )


class StreamCheck(BaseModel):
    """An update that a stream may get: another release, other options, other names of its sources."""

    model_config = ConfigDict(extra="forbid", strict=True)

    release: Annotated[str | None, Field(min_length=1, max_length=64)] = Field(
        default=None, description="The wanted release; null is the installed one.", examples=["0.2.0"]
    )
    options: Annotated[dict[str, Any], WithJsonSchema(options_schema(*OPTIONS.values()))] = Field(
        default_factory=dict, description="Options that would change; null is the deployment's setting again."
    )
    mapping: dict[str, str | None] = Field(
        default_factory=dict,
        description="From the name of a source that runs to its new one; null where it is to end.",
        examples=[{"orders": "sales"}],
    )


class CheckReasonOut(BaseModel):
    """A reason against the update, and what to do about it."""

    code: str
    about: str = Field(description="The part of the stream, such as sources.orders.")
    message: str
    remedy: Remedy
    advice: str


class StreamCheckOut(BaseModel):
    """Whether a stream can go on as another release, and whether it could come back."""

    passes: bool
    reasons: list[CheckReasonOut]
    changes: list[str] = Field(description="What would be otherwise, and is fine.")
    has_way_back: bool = Field(description="Whether the old release could go on after the new one has written.")
    no_way_back: list[str] = Field(description="Why it could not.")


def launch_schemas(launch: Mapping[str, Any]) -> dict[str, Any]:
    """Return OpenAPI's schemas of a launch, one for each kind with its own options, which ``kind`` distinguishes.

    ``launch`` is the schema of all kinds, whose options are any object: the service reads them, so that one answer
    names everything that is wrong with a request.
    """
    found: dict[str, Any] = {}
    mapping = {}
    for kind, options in OPTIONS.items():
        name = f"{kind.capitalize()}StreamLaunch"
        mapping[kind.value] = f"#/components/schemas/{name}"
        found[options.__name__] = {
            **options_schema(options),
            "title": options.__name__,
            "description": options.__doc__,
        }
        given = {key: value for key, value in launch["properties"]["options"].items() if key == "description"}
        properties = {
            **launch["properties"],
            "kind": {
                "type": "string",
                "const": kind.value,
                "description": launch["properties"]["kind"]["description"],
            },
            "options": {"$ref": f"#/components/schemas/{options.__name__}", **given},
        }
        found[name] = {**launch, "title": name, "properties": properties}
        found[name].pop("examples", None)
    found["StreamLaunch"] = {
        **{key: launch[key] for key in ("title", "description", "examples") if key in launch},
        "oneOf": [{"$ref": place} for place in mapping.values()],
        "discriminator": {"propertyName": "kind", "mapping": mapping},
    }
    return found


class StreamPoint(BaseModel):
    """A stream in one step of its history; null where nobody measured."""

    start: datetime
    state: str | None
    rate_messages_per_second: float | None = Field(description="The mean of the step's minutes.")
    lag_seconds: float | None = Field(description="The worst of the step's minutes, as backlog and batch.")
    backlog_messages: float | None
    batch_seconds: float | None


class StreamHistory(BaseModel):
    """A stream's points, oldest first; the last one is of the step that is under way."""

    name: str
    points: list[StreamPoint]


class StreamHistories(BaseModel):
    """Histories of streams, by name."""

    over: Literal["hour", "day"]
    step_seconds: int
    streams: list[StreamHistory]
