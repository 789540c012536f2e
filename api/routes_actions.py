"""What is done with a backfill: one route a verb."""

from typing import Any, Final

from fastapi import APIRouter, Response

from api.answers import (
    CHANGED,
    INVALID,
    NO_SUCH_BACKFILL,
    BackfillId,
    Caller,
    ExpectedVersions,
    Service,
    shown,
    versioned,
)
from api.schemas_backfills import BackfillOut, BackfillRetry

router: Final = APIRouter(tags=["backfills"])


def _responses(conflict: str, **more: str) -> dict[int | str, dict[str, Any]]:
    return versioned(s404=NO_SUCH_BACKFILL, s409=conflict, s412=CHANGED, s422=INVALID, **more)


@router.post(
    "/backfills/{backfill_id}:pause",
    operation_id="pauseBackfill",
    response_model=BackfillOut,
    responses=_responses("It is at its end, or on its way there."),
)
def pause_backfill(
    backfill_id: BackfillId, response: Response, service: Service, caller: Caller, versions: ExpectedVersions
) -> Any:
    """Let nothing new go out until :resume; `in_flight_at_most` says what still may."""
    return shown(service.pause(backfill_id, principal=caller, versions=versions), response)


@router.post(
    "/backfills/{backfill_id}:resume",
    operation_id="resumeBackfill",
    response_model=BackfillOut,
    responses=_responses("It is at its end, on its way there, or waits for an approval."),
)
def resume_backfill(
    backfill_id: BackfillId, response: Response, service: Service, caller: Caller, versions: ExpectedVersions
) -> Any:
    """Let a paused backfill go on; one that paused after its canary goes on to its end."""
    return shown(service.resume(backfill_id, principal=caller, versions=versions), response)


@router.post(
    "/backfills/{backfill_id}:retry",
    operation_id="retryBackfill",
    response_model=BackfillOut,
    responses=_responses(
        "It has not ended, nothing of it is left to send, another backfill overlaps, or nobody knows what is "
        "missing.",
        s502="The warehouse failed.",
    ),
)
def retry_backfill(
    backfill_id: BackfillId,
    response: Response,
    service: Service,
    caller: Caller,
    versions: ExpectedVersions,
    *,
    body: BackfillRetry | None = None,
) -> Any:
    """Let a backfill that has ended go on where it stopped, on the same selection; without a body, with all."""
    wanted = BackfillRetry() if body is None else body
    found = service.retry(backfill_id, principal=caller, versions=versions, **wanted.model_dump())
    return shown(found, response)


@router.post(
    "/backfills/{backfill_id}:approve",
    operation_id="approveBackfill",
    response_model=BackfillOut,
    responses=_responses("It does not wait for an approval."),
)
def approve_backfill(
    backfill_id: BackfillId, response: Response, service: Service, caller: Caller, versions: ExpectedVersions
) -> Any:
    """Let a backfill go on that has many rows; its creator can't."""
    return shown(service.approve(backfill_id, principal=caller, versions=versions), response)


@router.post(
    "/backfills/{backfill_id}:revert",
    operation_id="revertBackfill",
    response_model=BackfillOut,
    responses=_responses(
        "It has not ended, no staging table of its target is known, or its rows are merged.",
        s502="The warehouse failed.",
    ),
)
def revert_backfill(
    backfill_id: BackfillId, response: Response, service: Service, caller: Caller, versions: ExpectedVersions
) -> Any:
    """Delete what a backfill brought into its target's staging table, as long as no merge has taken it."""
    return shown(service.revert(backfill_id, principal=caller, versions=versions), response)
