"""The JSON shapes of streams, as OpenAPI shows them."""

import inspect
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, WithJsonSchema

from inventory.streams import StreamOut
from model.declaration import declared_fields
from model.stream_options import OPTIONS, StreamOptions
from model.stream_record import DRAIN_TIMEOUT_SECONDS, MAX_DRAIN_TIMEOUT_SECONDS


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
            "description": inspect.getdoc(options),
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
