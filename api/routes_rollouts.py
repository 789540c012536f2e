"""Rollouts of streams as a resource: shown, reversed and cancelled; applying a manifest makes one."""

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Path, Response, status
from pydantic import BaseModel, BeforeValidator, Field

from api.answers import PLACE_HEADERS, Caller, point_to, problems, service_of
from api.schemas import CodedMessage
from model.rollout_record import RolloutState
from rollout.manifests.rollout import read_rollout
from rollout.rollouts import RolloutService

router: Final = APIRouter(tags=["rollouts"])
_UNKNOWN: Final = "There is no such rollout."
_INVALID: Final = "The id is not valid."

RolloutId = Annotated[str, Path(description="The rollout's id.", max_length=64)]


def _declared(name: str) -> BeforeValidator:
    """Take a field out of a rollout's document, with its default."""
    return BeforeValidator(lambda document: read_rollout(document).model_dump(mode="json", by_alias=True)[name])


class RolloutSideOut(BaseModel):
    """A release that runs a stream, and the stream's options."""

    release: str | None = Field(description="The version of Refeed. Null means the installed version.")
    options: dict[str, Any] = Field(description="The stream's options.")


class RolloutStepOut(BaseModel):
    """A step that a rollout has begun."""

    state: RolloutState = Field(description="The step.")
    at: datetime = Field(description="When the step began.")
    why: str | None = Field(description="Why the step began. Null without a reason.")


class RolloutFaultOut(CodedMessage):
    """The reason why a rollout failed, was refused, was halted or was rolled back."""


class RolloutOut(BaseModel):
    """A rollout of a stream. A null field is not known yet."""

    id: str = Field(description="The rollout's id.")
    manifest: str = Field(description="The manifest's name.")
    stream: str = Field(description="The stream's name.")
    strategy: Literal["restart", "update", "rolling"] = Field(description="How the release is rolled out.")
    state: RolloutState = Field(description="The current step, or the result.")
    from_: RolloutSideOut = Field(
        validation_alias="from_side", serialization_alias="from", description="The old release with its options."
    )
    to: RolloutSideOut = Field(validation_alias="to_side", description="The new release with its options.")
    on_failure: Annotated[Literal["rollback", "halt"], _declared("on_failure")] = Field(
        validation_alias="document", description="What happens if the validation fails."
    )
    validate_: Annotated[dict[str, Any], _declared("validate")] = Field(
        validation_alias="document",
        serialization_alias="validate",
        description="The field `validate` of the manifest, with its defaults.",
    )
    is_trusted: bool = Field(
        description="Whether the new release was STABLE before. Refeed does not validate such a release again."
    )
    reverses: str | None = Field(description="The id of the rollout that this rollout reverses.")
    update_id: str = Field(
        validation_alias="id", description="The stream's update that carries out the rollout. It has the same id."
    )
    steps: list[RolloutStepOut] = Field(description="The steps that the rollout has begun.")
    compared: dict[str, Any] | None = Field(
        description="The figures before and after the change. The rollout's result depends on these figures."
    )
    error: RolloutFaultOut | None
    unwanted_by: str | None = Field(description="Who cancelled the rollout. Null if nobody did.")
    digest: str = Field(
        description="The hash of the manifest's content. Comments and the order of fields do not change the hash."
    )
    created_by: str
    created_at: datetime
    changed_at: datetime
    finished_at: datetime | None


class RolloutsOut(BaseModel):
    """Rollouts, newest first."""

    rollouts: list[RolloutOut]


OpenRollouts = Annotated[RolloutService, Depends(service_of(lambda services: services.rollouts))]


@router.get("/rollouts", operation_id="listRollouts", response_model=RolloutsOut)
def list_rollouts(rollouts: OpenRollouts, caller: Caller) -> Any:
    """List the newest 1,000 rollouts, newest first."""
    return {"rollouts": rollouts.list_rollouts(principal=caller)}


@router.get(
    "/rollouts/{rollout_id}",
    operation_id="getRollout",
    response_model=RolloutOut,
    responses=problems(s404=_UNKNOWN, s422=_INVALID),
)
def get_rollout(rollout_id: RolloutId, rollouts: OpenRollouts, caller: Caller) -> Any:
    """Show a rollout with its steps, and the figures on which its result is based."""
    return rollouts.get(rollout_id, principal=caller)


@router.post(
    "/rollouts/{rollout_id}:reverse",
    operation_id="reverseRollout",
    status_code=status.HTTP_202_ACCEPTED,
    response_model=RolloutOut,
    responses={
        202: {"headers": PLACE_HEADERS},
        **problems(
            s404=_UNKNOWN,
            s409="The rollout has not ended, the stream no longer runs with the rollout's release, or another "
            "change of the stream is in progress.",
            s422=_INVALID,
        ),
    },
)
def reverse_rollout(rollout_id: RolloutId, response: Response, rollouts: OpenRollouts, caller: Caller) -> Any:
    """Begin the reverse rollout, with `from` and `to` exchanged.

    The stream returns to the earlier release. If this release was STABLE before, Refeed does not validate it
    again.
    """
    made = rollouts.reverse(rollout_id, principal=caller)
    point_to(f"/rollouts/{made.id}", response)
    return made


@router.post(
    "/rollouts/{rollout_id}:cancel",
    operation_id="cancelRollout",
    response_model=RolloutOut,
    responses=problems(s404=_UNKNOWN, s409="The rollout has ended or is being rolled back.", s422=_INVALID),
)
def cancel_rollout(rollout_id: RolloutId, rollouts: OpenRollouts, caller: Caller) -> Any:
    """Cancel a rollout. If the rollout has already changed the stream, Refeed rolls the change back."""
    return rollouts.cancel(rollout_id, principal=caller)
