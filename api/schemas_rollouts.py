"""The JSON shapes of rollouts, as OpenAPI shows them."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from model.rollout_record import RolloutState
from rollout.manifests.rollout import read_rollout


def _declared(name: str) -> BeforeValidator:
    """Take a field out of a rollout's document, with its default."""
    return BeforeValidator(lambda document: read_rollout(document).model_dump(mode="json", by_alias=True)[name])


class RolloutSideOut(BaseModel):
    """A release of a stream with its options."""

    release: str | None = Field(description="Null is the installed one.")
    options: dict[str, Any]


class RolloutStepOut(BaseModel):
    """A step that a rollout has begun."""

    state: RolloutState
    at: datetime
    why: str | None


class RolloutFaultOut(BaseModel):
    """Why a rollout went back, halted, was refused or failed."""

    code: str
    message: str


class RolloutOut(BaseModel):
    """A rollout of a stream; null is not known yet."""

    id: str
    manifest: str
    stream: str
    strategy: Literal["restart", "update", "rolling"]
    state: RolloutState = Field(description="The step that it is at, or how it ended.")
    from_: RolloutSideOut = Field(validation_alias="from_side", serialization_alias="from")
    to: RolloutSideOut = Field(validation_alias="to_side")
    on_failure: Annotated[Literal["rollback", "halt"], _declared("on_failure")] = Field(
        validation_alias="document"
    )
    validate_: Annotated[dict[str, Any], _declared("validate")] = Field(
        validation_alias="document",
        serialization_alias="validate",
        description="As the manifest has it, with its defaults.",
    )
    is_trusted: bool = Field(description="Whether its release was STABLE before: nothing is validated.")
    reverses: str | None = Field(description="The rollout that it takes back.")
    update_id: str | None = Field(description="The stream's update that carries it out.")
    steps: list[RolloutStepOut]
    compared: dict[str, Any] | None = Field(description="The figures that it was judged by: before and after.")
    error: RolloutFaultOut | None
    unwanted_by: str | None = Field(description="Who cancelled it.")
    digest: str = Field(description="Stands for its manifest's content, whatever the comments and order.")
    created_by: str
    created_at: datetime
    changed_at: datetime
    finished_at: datetime | None


class RolloutsOut(BaseModel):
    """Rollouts, newest first."""

    rollouts: list[RolloutOut]
