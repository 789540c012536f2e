"""Backfills as a resource: planned, created, listed, shown, changed, and steered by one route a verb."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request, Response, status
from fastapi.responses import JSONResponse

from api.answers import (
    CHANGED,
    CREATED_HEADERS,
    INVALID,
    NO_SUCH_BACKFILL,
    BackfillId,
    Caller,
    ExpectedVersions,
    IdempotencyKey,
    Service,
    SlowCalls,
    point_to,
    problems,
    service_of,
    shown,
    versioned,
)
from api.job_routes import JobResource, add_action_route, add_job_routes
from api.listing import backfill_listing
from api.schemas_backfills import (
    BackfillChange,
    BackfillOut,
    BackfillRetry,
    PlanOut,
    StoredPlanOut,
)
from backfill.plan.request import BackfillRequest
from backfill.steer.kind import BACKFILL

router: Final = APIRouter(tags=["backfills"])
_FAILED: Final = "The warehouse or Pub/Sub failed or refused."
_FULL: Final = "The disk is full."


BACKFILLS: Final = JobResource(
    BACKFILL,
    service=service_of(lambda services: services.backfills),
    listing=backfill_listing,
    cancel="Stop a backfill: no new request starts; `in_flight_at_most` says what still goes out.",
    shape=BackfillOut,
)


add_action_route(
    router,
    BACKFILLS,
    "pause",
    "Let nothing new go out until :resume; `in_flight_at_most` says what still may.",
    s409="It is at its end, or on its way there.",
    s422=INVALID,
)
add_action_route(
    router,
    BACKFILLS,
    "resume",
    "Let a paused backfill go on; one that paused after its canary goes on to its end.",
    s409="It is at its end, on its way there, or waits for an approval.",
    s422=INVALID,
)


@router.post(
    "/backfills/{backfill_id}:retry",
    operation_id="retryBackfill",
    response_model=BackfillOut,
    responses=versioned(
        s404=NO_SUCH_BACKFILL,
        s409="It has not ended, nothing of it is left to send, another backfill overlaps, or nobody knows what is "
        "missing.",
        s412=CHANGED,
        s422=INVALID,
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


add_action_route(
    router,
    BACKFILLS,
    "approve",
    "Let a backfill go on that has many rows; its creator can't.",
    s409="It does not wait for an approval.",
    s422=INVALID,
)
add_action_route(
    router,
    BACKFILLS,
    "revert",
    "Delete what a backfill brought into its target's staging table, as long as no merge has taken it.",
    s409="It has not ended, no staging table of its target is known, or its rows are merged.",
    s422=INVALID,
    s502="The warehouse failed.",
)


@router.post(
    "/backfills:plan",
    operation_id="planBackfill",
    response_model=PlanOut,
    responses=problems(s422=INVALID, s502=_FAILED, s507=_FULL),
)
def plan_backfill(
    call: Request,
    body: BackfillRequest,
    service: Service,
    caller: Caller,
    slow: SlowCalls,
    *,
    exact: Annotated[
        bool,
        Query(
            description="On BigQuery, run the query, billed up to max_bytes_billed, to know the rows exactly; a "
            "create that quotes the plan reads what it selected. Plans over a lake are exact in any case."
        ),
    ] = False,
    originals: Annotated[
        bool,
        Query(
            description="Show the archived message beside each sample, by one more query of 10 GB at most; needs "
            "messages.read too."
        ),
    ] = False,
) -> Any:
    """Run the query to say what a backfill would do; nothing is published, and the plan is kept for a while."""
    with slow:
        plan = service.plan(body, principal=caller, exact=exact, originals=originals)
    if originals:
        call.state.read = _render_read(plan)
    return plan


@router.get(
    "/plans/{plan_id}",
    operation_id="getPlan",
    response_model=StoredPlanOut,
    responses=problems(s409="The plan has expired, or there is none.", s422=INVALID),
)
def get_plan(
    plan_id: Annotated[str, Path(max_length=64, description="A plan's id, pl_...")],
    service: Service,
    caller: Caller,
) -> Any:
    """Show a plan that was made, with its request, until it expires; nothing is run."""
    return service.read_plan(plan_id, principal=caller)


@router.post(
    "/backfills",
    operation_id="createBackfill",
    status_code=status.HTTP_202_ACCEPTED,
    response_model=BackfillOut,
    responses={
        200: {"model": PlanOut, "description": "With `validate_only`: the plan; nothing is created."},
        202: {"headers": CREATED_HEADERS},
        **problems(
            s409="The plan has expired or is of something else; another backfill overlaps; the replay would be "
            "archived again; or the first call with this Idempotency-Key is under way.",
            s422=INVALID,
            s502=_FAILED,
            s507=_FULL,
        ),
    },
)
def create_backfill(
    body: BackfillRequest,
    response: Response,
    service: Service,
    caller: Caller,
    slow: SlowCalls,
    *,
    validate_only: Annotated[bool, Query(description="Answer the plan and create nothing.")] = False,
    idempotency_key: IdempotencyKey = None,
) -> Any:
    """Validate the request and launch a backfill of what its query selects."""
    if validate_only:
        with slow:
            plan = PlanOut.model_validate(service.plan(body, principal=caller))
        return JSONResponse(plan.model_dump(mode="json", by_alias=True))
    found = service.create(body, principal=caller, idempotency_key=idempotency_key)
    point_to(f"/backfills/{found.id}", response)
    return shown(found, response)


def _render_read(plan: Mapping[str, Any]) -> str:
    """Return what the audit log has of the archived messages in a plan; the window is that of its query."""
    compared = [each["comparison"]["archived"] for each in plan["samples"] if each.get("comparison")]
    topics = sorted({each["topic"] for each in compared if each is not None})
    read = sum(each is not None for each in compared)
    return f"{read} of {', '.join(topics) or 'no topic'} from {plan['window']['from']} to {plan['window']['to']}"


add_job_routes(router, BACKFILLS)


@router.patch(
    "/backfills/{backfill_id}",
    operation_id="changeBackfill",
    response_model=BackfillOut,
    responses=versioned(
        s404=NO_SUCH_BACKFILL,
        s409="It is at its end, so it has no rate to change.",
        s412=CHANGED,
        s422=INVALID,
    ),
)
def change_backfill(
    backfill_id: BackfillId,
    body: BackfillChange,
    response: Response,
    *,
    service: Service,
    caller: Caller,
    versions: ExpectedVersions,
) -> Any:
    """Change the rate limit, also while it runs, the description or the labels."""
    return shown(service.change(backfill_id, body, principal=caller, versions=versions), response)
