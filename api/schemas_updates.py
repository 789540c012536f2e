"""The JSON shapes of updates of streams, as OpenAPI shows them."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from api.schemas import StreamJobOut, read_at
from api.schemas_streams import options_schema
from model.stream_options import OPTIONS
from model.stream_update import (
    MAX_SHADOW_HOURS,
    MAX_VALIDATE_SECONDS,
    MIN_MESSAGES,
    VALIDATE_SECONDS,
    UpdateFault,
    UpdateState,
    UpdateStrategy,
    WhenInconclusive,
)
from model.watch_bounds import WatchBounds
from rollout.check import Remedy


class UpdateShadow(BaseModel):
    """A shadow comparison: Refeed compares the rows that the new release makes with the old release's rows."""

    model_config = ConfigDict(extra="forbid")

    hours: Annotated[
        float,
        Field(
            ge=0,
            le=MAX_SHADOW_HOURS,
            description="The comparison includes all messages that were archived in the last `hours` hours.",
        ),
    ] = 1.0
    may_differ: list[str] = Field(
        default_factory=list,
        description="Columns whose values may differ: `column` or `dataset.table.column`.",
        examples=[["staging.orders.total"]],
        max_length=1000,
    )


class UpdateCreate(BaseModel):
    """An update of a stream: another release, other options, or other names of sources."""

    model_config = ConfigDict(extra="forbid", strict=True)

    release: Annotated[str | None, Field(min_length=1, max_length=64)] = Field(
        default=None, description="The wanted release. Null means the installed version.", examples=["0.2.0"]
    )
    options: Annotated[dict[str, Any], WithJsonSchema(options_schema(*OPTIONS.values()))] = Field(
        default_factory=dict,
        description="The options to change. For a null option, the stream uses the deployment's default again.",
        examples=[{"slots": 8}],
    )
    mapping: dict[str, str | None] = Field(
        default_factory=dict,
        description="The renamed sources. Each key is a source's old name, and its value is the new name. A "
        "null value means that the stream no longer reads the source.",
        examples=[{"orders": "sales"}],
    )
    validate_seconds: Annotated[
        float,
        Field(
            ge=0,
            le=MAX_VALIDATE_SECONDS,
            description="How long Refeed watches the new release before the update can become STABLE, in seconds.",
        ),
    ] = VALIDATE_SECONDS
    min_messages: Annotated[
        int,
        Field(
            ge=0,
            description="If fewer than this number of messages arrive while Refeed watches the new release, "
            "the watch has no result (it is inconclusive).",
        ),
    ] = MIN_MESSAGES
    when_inconclusive: Literal["keep", "fail"] = Field(
        default="keep",
        description="What happens if too few messages arrive or a figure is unknown. `keep`: the new release "
        "stays, and `error` has the reason. `fail`: Refeed rolls the update back.",
    )
    strategy: Literal["hand_over", "restart"] = Field(
        default="hand_over",
        description="`hand_over`: a standby of the new release takes the stream over between two commits. "
        "`restart`: the old release drains, and then the new release starts, without a check before.",
    )
    reason: str | None = Field(default=None, description="The reason. The history shows it.", max_length=1000)
    shadow: UpdateShadow | None = Field(
        default=None,
        description="The shadow comparison of a pipeline's two releases. Null means no comparison.",
    )


class CheckReasonOut(BaseModel):
    """A reason against the update, and what to do about it."""

    code: str
    about: str = Field(description="The part of the stream that the reason is about, such as sources.orders.")
    message: str
    remedy: Remedy = Field(description="What a person can do.")
    advice: str = Field(description="What to do, in a sentence.")


class StreamCheckOut(BaseModel):
    """Whether a stream can be updated, and whether the update could be rolled back."""

    passes: bool = Field(description="Whether the stream can be updated.")
    reasons: list[CheckReasonOut] = Field(description="The reasons against the update.")
    changes: list[str] = Field(description="Changes that are allowed.")
    has_way_back: bool = Field(
        description="Whether the old release could still run the stream after the new release has written data."
    )
    no_way_back: list[str] = Field(description="The reasons why a rollback would be impossible.")


class UpdateReplayOut(BaseModel):
    """Messages that the new release may have staged wrongly. A backfill can replay these messages."""

    since: datetime | None = Field(description="The publish time of the first message. Null means unknown.")
    until: datetime = Field(description="The end of the interval of publish times, exclusive.")
    topics: list[str] = Field(description="The topics of the stream's sources.")


class UpdateManifestOut(BaseModel):
    """The manifest that asked for an update."""

    name: str = Field(description="The manifest's name.")
    version: int | None = Field(description="The version of the manifest. Null for a schedule.")
    digest: str = Field(
        description="The hash of the manifest's content. Comments and the order of fields do not change the hash."
    )


class UpdateOut(StreamJobOut):
    """An update of a stream. A null field is not known yet."""

    id: str = Field(
        description="The update's id, which begins with `up_`, or with `ro_` if a manifest requested the update."
    )
    kind: Literal["update"] = Field(default="update", description="The kind of the job.")
    stream: str = Field(description="The stream's name.")
    state: UpdateState = Field(description="The current step, or the result.")
    release: str | None = read_at("request.release", "The wanted release. Null means the installed version.")
    options: dict[str, Any] = read_at("request.options", "The changed options.")
    mapping: dict[str, str | None] = read_at(
        "request.mapping", "The renamed sources. Each key is a source's old name, and its value is the new name."
    )
    validate_seconds: float = read_at(
        "request.validate_seconds", "How long Refeed watches the new release, in seconds."
    )
    min_messages: int = read_at(
        "request.min_messages",
        "If fewer than this number of messages arrive while Refeed watches the new release, the "
        "watch has no result (it is inconclusive).",
    )
    when_inconclusive: WhenInconclusive = read_at(
        "request.when_inconclusive",
        "What happens if the watch is inconclusive. `keep`: the new release stays. `fail`: Refeed "
        "rolls the update back.",
    )
    strategy: UpdateStrategy = read_at(
        "request.strategy",
        "`hand_over`: a standby takes the stream over. `restart`: the stream stops and starts again.",
    )
    reason: str | None = read_at("request.reason", "The reason. The history shows it.")
    shadow: UpdateShadow | None = read_at(
        "request.shadow", "The shadow comparison before the update. Null means no comparison."
    )
    from_release: str | None = Field(description="The old release. Null means the installed version.")
    from_options: dict[str, Any] = Field(description="The stream's options before the update.")
    on_failure: Literal["rollback", "halt"] = read_at(
        "request.on_failure",
        "What happens if the new release fails. `rollback`: the old release runs again. `halt`: the "
        "new release stays until a person decides.",
    )
    thresholds: WatchBounds = read_at("request.bounds", "The limits for the new release's figures.")
    is_trusted: bool = read_at(
        "request.is_trusted",
        "Whether the wanted release was STABLE before. Refeed does not validate such a release again.",
    )
    manifest: UpdateManifestOut | None = Field(
        description="The rollout or schedule that requested the update. Null if a person did."
    )
    reverses: str | None = Field(description="The id of the update that this update reverts.")
    unwanted_by: str | None = Field(description="Who reverted the update. Null if nobody did.")
    has_way_back: bool | None = Field(
        description="Whether the old release can still run the stream after the new release has written data."
    )
    checked: dict[str, Any] | None = Field(
        description="The result of the check: reasons, changes, and why a rollback would be impossible."
    )
    snapshot_id: str | None = Field(
        description="The snapshot of the stream's state, made before the new release took over."
    )
    instance_id: str | None = Field(description="The process that takes over the stream.")
    attempts: int = Field(description="Number of standby processes that Refeed has started for the current step.")
    handed_over_at: datetime | None = Field(description="When the new release took over the stream.")
    paused_seconds: float | None = Field(
        description="Seconds from the old release's last commit to the new release's first commit."
    )
    figures: dict[str, Any] | None = Field(
        description="The figures before and after the hand-over, and the report of the shadow comparison."
    )
    error: UpdateFault | None
    replay: UpdateReplayOut | None = Field(
        description="The messages to replay after the update was rolled back. Null if there are none."
    )
    created_by: str
    created_at: datetime
    changed_at: datetime
    finished_at: datetime | None
