"""The JSON shapes of rollouts, as OpenAPI shows them."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from model.rollout_record import RolloutState


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

    model_config = ConfigDict(populate_by_name=True)

    id: str
    manifest: str
    stream: str
    strategy: Literal["restart", "update", "rolling"]
    state: RolloutState = Field(description="The step that it is at, or how it ended.")
    from_: RolloutSideOut = Field(alias="from")
    to: RolloutSideOut
    on_failure: Literal["rollback", "halt"]
    validate_: dict[str, Any] = Field(alias="validate", description="As the manifest has it, with its defaults.")
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
