"""Rollouts of streams as a resource: shown, reversed and cancelled; applying a manifest makes one."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Response, status

from api.answers import CREATED_HEADERS, Caller, point_to, problems, service_of
from api.schemas_rollouts import RolloutOut, RolloutsOut
from rollout.rollouts import RolloutService

router: Final = APIRouter(tags=["rollouts"])
_UNKNOWN: Final = "There is no such rollout."
_INVALID: Final = "The id is not valid."

RolloutId = Annotated[str, Path(description="A rollout's id.", max_length=64)]


OpenRollouts = Annotated[RolloutService, Depends(service_of(lambda services: services.rollouts))]


@router.get("/rollouts", operation_id="listRollouts", response_model=RolloutsOut)
def list_rollouts(rollouts: OpenRollouts, caller: Caller) -> Any:
    """List rollouts, newest first, 1,000 at most."""
    return {"rollouts": rollouts.list_rollouts(principal=caller)}


@router.get(
    "/rollouts/{rollout_id}",
    operation_id="getRollout",
    response_model=RolloutOut,
    responses=problems(s404=_UNKNOWN, s422=_INVALID),
)
def get_rollout(rollout_id: RolloutId, rollouts: OpenRollouts, caller: Caller) -> Any:
    """Show a rollout: its steps, and the figures that it was judged by."""
    return rollouts.get(rollout_id, principal=caller)


@router.post(
    "/rollouts/{rollout_id}:reverse",
    operation_id="reverseRollout",
    status_code=status.HTTP_202_ACCEPTED,
    response_model=RolloutOut,
    responses={
        202: {"headers": CREATED_HEADERS},
        **problems(
            s404=_UNKNOWN,
            s409="It has not ended, what it rolled out does not run, or the stream is being changed.",
            s422=_INVALID,
        ),
    },
)
def reverse_rollout(rollout_id: RolloutId, response: Response, rollouts: OpenRollouts, caller: Caller) -> Any:
    """Begin the same rollout with from and to exchanged; to a release that was STABLE it validates nothing."""
    made = rollouts.reverse(rollout_id, principal=caller)
    point_to(f"/rollouts/{made.id}", response)
    return made


@router.post(
    "/rollouts/{rollout_id}:cancel",
    operation_id="cancelRollout",
    response_model=RolloutOut,
    responses=problems(s404=_UNKNOWN, s409="It has ended, or goes back already.", s422=_INVALID),
)
def cancel_rollout(rollout_id: RolloutId, rollouts: OpenRollouts, caller: Caller) -> Any:
    """Have a rollout taken back; one that has changed nothing yet ends."""
    return rollouts.cancel(rollout_id, principal=caller)
