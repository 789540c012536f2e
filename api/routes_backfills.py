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
from backfill.plan.create import BackfillCreate
from backfill.steer.kind import BACKFILL

router: Final = APIRouter(tags=["backfills"])
_FAILED: Final = "The warehouse or Pub/Sub returned an error."
_FULL: Final = "The disk is full."


BACKFILLS: Final = JobResource(
    BACKFILL,
    service=service_of(lambda services: services.backfills),
    listing=backfill_listing,
    cancel="Cancel a backfill. After the answer, Refeed can still publish up to `in_flight_at_most` messages.",
    shape=BackfillOut,
)


add_action_route(
    router,
    BACKFILLS,
    "pause",
    "Pause a backfill until `:resume`. After the answer, Refeed can still publish up to "
    "`in_flight_at_most` messages.",
    s409="The backfill has ended or is being cancelled.",
    s422=INVALID,
)
add_action_route(
    router,
    BACKFILLS,
    "resume",
    "Resume a paused backfill. After a canary, the backfill now publishes all other messages.",
    s409="The backfill has ended, is being cancelled, or needs an approval.",
    s422=INVALID,
)


@router.post(
    "/backfills/{backfill_id}:retry",
    operation_id="retryBackfill",
    response_model=BackfillOut,
    responses=versioned(
        s404=NO_SUCH_BACKFILL,
        s409="The backfill has not ended, or all its messages are published. The status is also 409 if another "
        "backfill publishes some of the same messages, or if Refeed can't find out which messages are "
        "missing.",
        s412=CHANGED,
        s422=INVALID,
        s502="The warehouse returned an error.",
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
    """Continue an ended backfill from its last checkpoint, with the same selected messages.

    Without a body, the call sends all messages that are not published yet.
    """
    wanted = BackfillRetry() if body is None else body
    found = service.retry(backfill_id, principal=caller, versions=versions, **wanted.model_dump())
    return shown(found, response)


add_action_route(
    router,
    BACKFILLS,
    "approve",
    "Approve a backfill with many rows. The creator of a backfill can't approve it.",
    s409="The backfill does not need an approval.",
    s422=INVALID,
)
add_action_route(
    router,
    BACKFILLS,
    "revert",
    "Delete a backfill's rows from the staging table of its target topic. If a merge has already read the "
    "rows, the call fails.",
    s409="The backfill has not ended, its staging table is unknown, or a merge has already read its rows.",
    s422=INVALID,
    s502="The warehouse returned an error.",
)


@router.post(
    "/backfills:plan",
    operation_id="planBackfill",
    response_model=PlanOut,
    responses=problems(s422=INVALID, s502=_FAILED, s507=_FULL),
)
def plan_backfill(
    call: Request,
    body: BackfillCreate,
    service: Service,
    caller: Caller,
    slow: SlowCalls,
    *,
    exact: Annotated[
        bool,
        Query(
            description="Whether to count the rows exactly. On BigQuery, this runs the query, and BigQuery "
            "bills up to `max_bytes_billed`. On a lake, every plan is exact."
        ),
    ] = False,
    originals: Annotated[
        bool,
        Query(
            description="Whether to show the archived message of each sample too. For this, the API runs one "
            "more query, which reads at most 10 GB. The caller also needs the scope `messages.read`."
        ),
    ] = False,
) -> Any:
    """Plan a backfill. Nothing is published. The API keeps the plan for some minutes."""
    with slow:
        plan = service.plan(body, principal=caller, exact=exact, originals=originals)
    if originals:
        call.state.read = _render_read(plan)
    return plan


@router.get(
    "/plans/{plan_id}",
    operation_id="getPlan",
    response_model=StoredPlanOut,
    responses=problems(s409="The plan has expired or does not exist.", s422=INVALID),
)
def get_plan(
    plan_id: Annotated[str, Path(max_length=64, description="The plan's id, which begins with `pl_`.")],
    service: Service,
    caller: Caller,
) -> Any:
    """Show an earlier plan and the planned request, until the plan expires. No query runs."""
    return service.read_plan(plan_id, principal=caller)


@router.post(
    "/backfills",
    operation_id="createBackfill",
    status_code=status.HTTP_202_ACCEPTED,
    response_model=BackfillOut,
    responses={
        200: {"model": PlanOut, "description": "With `validate_only`: the plan. Nothing is created."},
        202: {"headers": CREATED_HEADERS},
        **problems(
            s409="The plan has expired or is for another request, or the first call with this Idempotency-Key "
            "is still in progress. The status is also 409 if another backfill publishes some of the same "
            "messages, or if the backup would archive the replayed messages again.",
            s422=INVALID,
            s502=_FAILED,
            s507=_FULL,
        ),
    },
)
def create_backfill(
    body: BackfillCreate,
    response: Response,
    service: Service,
    caller: Caller,
    slow: SlowCalls,
    *,
    validate_only: Annotated[
        bool, Query(description="Whether to return only the plan and create nothing.")
    ] = False,
    idempotency_key: IdempotencyKey = None,
) -> Any:
    """Create a backfill. A backfill publishes the messages that its query selects."""
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
        s409="The backfill has ended, so its rate limit can't change.",
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
    """Change the rate limit, the description or the labels of a backfill.

    A running backfill uses a new rate limit within one second.
    """
    return shown(service.change(backfill_id, body, principal=caller, versions=versions), response)
