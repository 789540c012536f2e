"""The JSON shapes of updates of streams, as OpenAPI shows them."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import AliasPath, BaseModel, ConfigDict, Field

from api.schemas import CodedMessage
from model.stream_update import MAX_SHADOW_HOURS, MAX_VALIDATE_SECONDS, MIN_MESSAGES, VALIDATE_SECONDS, UpdateState


class UpdateShadow(BaseModel):
    """A run of a pipeline's new release in the shadow of the old one, before anything is touched."""

    model_config = ConfigDict(extra="forbid")

    hours: Annotated[
        float, Field(ge=0, le=MAX_SHADOW_HOURS, description="How much of the archive is compared first.")
    ] = 1.0
    may_differ: list[str] = Field(
        default_factory=list,
        description="Columns that are meant to change: `column` or `dataset.table.column`.",
        examples=[["staging.orders.total"]],
        max_length=1000,
    )


class UpdateCreate(BaseModel):
    """An update of a stream."""

    model_config = ConfigDict(extra="forbid", strict=True)

    release: str | None = Field(
        default=None, description="The wanted release; null is the installed one.", max_length=64
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Options to change; null is the deployment's setting again.",
        examples=[{"slots": 8}],
    )
    mapping: dict[str, str | None] = Field(
        default_factory=dict,
        description="From the name of a source that runs to its new one, or to null where it is to end.",
        examples=[{"orders": "sales"}],
    )
    validate_seconds: Annotated[
        float,
        Field(
            ge=0, le=MAX_VALIDATE_SECONDS, description="How long the new release is watched before it is STABLE."
        ),
    ] = VALIDATE_SECONDS
    min_messages: Annotated[
        int, Field(ge=0, description="With fewer messages in that time the update is INCONCLUSIVE.")
    ] = MIN_MESSAGES
    reason: str | None = Field(default=None, description="Why, for the history.", max_length=1000)
    shadow: UpdateShadow | None = Field(
        default=None, description="Of a pipeline: its rows have to agree in the shadow first; null is without."
    )


class UpdateFaultOut(CodedMessage):
    """Why an update was refused, failed, went back, or waits for a person."""

    logs: dict[str, str] = Field(description='The last lines of each release\'s log, by "old" and "new".')


class UpdateReplayOut(BaseModel):
    """The messages that a release may have staged wrongly before it was taken back; a backfill replays them."""

    since: datetime | None = Field(description="The first publish time; null where nobody knows it.")
    until: datetime = Field(description="The publish time that ends the interval, exclusive.")
    topics: list[str] = Field(description="The topics of the stream's sources.")


class UpdateOut(BaseModel):
    """An update of a stream; null is not known yet."""

    id: str
    stream: str
    state: UpdateState = Field(description="The step that it is at, or how it ended.")
    release: str | None = Field(
        validation_alias=AliasPath("request", "release"),
        description="The wanted release; null is the installed one.",
    )
    options: dict[str, Any] = Field(
        validation_alias=AliasPath("request", "options"), description="The changed options."
    )
    mapping: dict[str, str | None] = Field(validation_alias=AliasPath("request", "mapping"))
    validate_seconds: float = Field(validation_alias=AliasPath("request", "validate_seconds"))
    min_messages: int = Field(validation_alias=AliasPath("request", "min_messages"))
    reason: str | None = Field(validation_alias=AliasPath("request", "reason"))
    shadow: UpdateShadow | None = Field(validation_alias=AliasPath("request", "shadow"))
    from_release: str | None = Field(description="The release before; null is the installed one.")
    has_way_back: bool | None = Field(
        description="Whether the old release can go on after the new one has written."
    )
    checked: dict[str, Any] | None = Field(
        description="The check: reasons, changes, and why there is no way back."
    )
    snapshot_id: str | None = Field(description="The snapshot of the state before the hand-over.")
    instance_id: str | None = Field(description="The process that takes the stream over.")
    attempts: int = Field(description="How many standbys were started for the present step.")
    handed_over_at: datetime | None
    paused_seconds: float | None = Field(description="From the old release's last commit to the new one's first.")
    figures: dict[str, Any] | None = Field(
        description="The figures that the watch compares, before and after, and the report of the shadow."
    )
    error: UpdateFaultOut | None
    replay: UpdateReplayOut | None
    created_by: str
    created_at: datetime
    changed_at: datetime
    finished_at: datetime | None


class UpdatesOut(BaseModel):
    """Every update of a stream, newest first."""

    updates: list[UpdateOut]
