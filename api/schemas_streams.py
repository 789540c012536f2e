"""The JSON shapes of streams, as OpenAPI shows them."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, WithJsonSchema

from api.schemas import CodedMessage
from model.declaration import declared_fields
from model.stream_options import OPTIONS, StreamOptions
from model.stream_record import DRAIN_TIMEOUT_SECONDS, MAX_DRAIN_TIMEOUT_SECONDS

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
    """A fault in one source of a pipeline, or in the registry. The other sources continue."""

    about: str = Field(description="The source or the registry that has the fault.")
    code: str
    message: str


class StreamOwner(BaseModel):
    """The process of a stream, or of its agent."""

    host: str
    pid: int = Field(description="The id of the process.")


class StreamPlace(BaseModel):
    """The folder of a stream's state on the machine that last ran the stream."""

    host: str
    path: str = Field(description="The folder's path.")


class StreamOut(BaseModel):
    """A stream with its latest report and its launch. A field is null if it is unknown."""

    name: str = Field(description="The stream's name.")
    kind: Literal["backup", "pipeline", "kinesis"] | None = Field(description="The stream's kind.")
    state: State = Field(
        description="`NOT_REPORTING`: the stream has not ended, but its last report is more than 15 seconds "
        "old. `DRAINING`: the stream is being drained, or the process of a cancelled stream still runs."
    )
    owner: StreamOwner | None = Field(description="The stream's process.")
    instance_id: str | None = Field(description="The id of the stream's newest start, which begins with `in_`.")
    is_retired: bool | None = Field(
        description="True if the registry no longer has sources of the pipeline's group. Null means unknown."
    )
    started_at: datetime | None
    reported_at: datetime | None = Field(description="When the stream last reported.")
    seconds_since_report: float | None = Field(description="Seconds since the last report.")
    totals: dict[str, float] = Field(
        description="Counts since the stream's process began, such as messages and bytes. "
        "`delayed_by_new_columns` counts messages that came again after their table got new or wider columns."
    )
    rates: dict[str, float] | None = Field(
        description="The increase of each total per second, measured over the last `over_seconds` seconds."
    )
    over_seconds: float | None = Field(description="The number of seconds over which the rates are measured.")
    batch_seconds: float | None = Field(
        description="How long the latest batch with messages took, up to its commit and acknowledgement, in "
        "seconds."
    )
    backlog_messages: int | None = Field(description="Number of pending messages in the stream's subscriptions.")
    lag_seconds: float | None = Field(
        description="Age of the oldest pending message in the stream's subscriptions, measured at "
        "`lag_measured_at`."
    )
    lag_measured_at: datetime | None = Field(
        description="When the lag was measured. On Google Cloud the lag is one to three minutes old."
    )
    alerts: list[StreamAlert] | None = Field(description="The faults in a pipeline's sources.")
    error: StreamError | None
    redelivered: float | None = Field(
        description="Number of messages that Pub/Sub delivered again, and that the stream did not write again."
    )
    not_committed: int | None = Field(
        description="Number of messages that the stream had pulled, but not acknowledged, when it ended. "
        "Pub/Sub delivers these messages again."
    )
    retained_until: datetime | None = Field(
        description="Pub/Sub keeps the stream's pending messages at least until this time. Null if there are no "
        "pending messages, or if the time is unknown."
    )
    release: str | None = Field(
        description="The version of Refeed that runs the stream. Null means the installed version."
    )
    options: dict[str, Any] | None = Field(
        description="The options of the stream. For a missing option, the stream uses the deployment's default."
    )
    wanted: Literal["RUNNING", "DRAINED", "CANCELLED"] | None = Field(description="The wanted state.")
    drain_timeout_seconds: float | None = Field(description="The timeout of the requested drain.")
    generation: int | None = Field(description="The number of times that a stream was launched under this name.")
    agent: StreamOwner | None = Field(
        description="The agent that runs the stream. Null if no agent runs the stream."
    )
    home: StreamPlace | None = Field(description="The folder of the stream's state.")
    snapshot_id: str | None = Field(description="The id of the snapshot from which the stream was launched.")
    created_by: str | None = Field(description="Who first launched a stream under this name.")
    created_at: datetime | None
    launched_by: str | None = Field(description="Who launched the current generation.")
    launched_at: datetime | None = Field(description="When the current generation was launched.")
    etag: str | None


class StreamsOut(BaseModel):
    """Every stream that was launched or has ever reported, sorted by name."""

    streams: list[StreamOut]


class StreamDrain(BaseModel):
    """How long a drain may take."""

    model_config = ConfigDict(extra="forbid", strict=True)

    timeout_seconds: Annotated[
        float,
        Field(
            ge=0,
            le=MAX_DRAIN_TIMEOUT_SECONDS,
            description="The maximum time of the drain, in seconds. After this time, the stream ends even with "
            "uncommitted messages. Pub/Sub delivers these messages again.",
            examples=[30],
        ),
    ] = DRAIN_TIMEOUT_SECONDS


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
    """The batch options of a stream. For a null option, the stream uses the deployment's default again."""

    model_config = ConfigDict(extra="forbid", strict=True)

    options: Annotated[dict[str, Any], WithJsonSchema(options_schema(StreamOptions, only=_CHANGEABLE))] = Field(
        description="The options `batch_seconds` and `batch_bytes`. Only a launch or an update can set other "
        "options.",
        examples=[{"batch_seconds": 2}],
    )


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
    """The figures of a stream in one step. Null means that a figure was not measured."""

    start: datetime = Field(description="Start of the step.")
    state: str | None = Field(description="The stream's state in the step.")
    rate_messages_per_second: float | None = Field(description="The mean rate of the step.")
    lag_seconds: float | None = Field(description="The longest lag in the step.")
    backlog_messages: float | None = Field(description="The largest backlog in the step.")
    batch_seconds: float | None = Field(
        description="The longest time from the beginning to the end of a batch in the step."
    )


class StreamHistory(BaseModel):
    """The history of one stream, oldest step first. The last step has the newest minute that has ended."""

    name: str = Field(description="The stream's name.")
    points: list[StreamPoint] = Field(description="One point for each step.")


class StreamHistories(BaseModel):
    """Histories of streams, sorted by name."""

    over: Literal["hour", "day"] = Field(
        description="The period that the history covers: the last hour or the last day."
    )
    step_seconds: int = Field(description="The length of a step.")
    streams: list[StreamHistory]
