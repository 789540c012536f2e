"""Backfills as a resource: planned, created, listed and shown. As jobs they are in api.routes_jobs."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request, Response, status
from fastapi.responses import JSONResponse

from api.answers import (
    CREATED_HEADERS,
    INVALID,
    NO_SUCH_BACKFILL,
    UNREADABLE,
    BackfillId,
    Caller,
    IdempotencyKey,
    Jobs,
    Service,
    SlowCalls,
    ValidateOnly,
    point_to,
    problems,
    versioned,
)
from api.listing import LIST_INVALID, KindListParameters
from api.schemas_backfills import PlanOut, StoredPlanOut
from api.schemas_jobs import BackfillPage, shown
from backfill.plan.create import BackfillCreate
from backfill.steer.kind import BACKFILL
from backfill.steer.view import Backfill
from model.errors import RequestInvalidError

router: Final = APIRouter(tags=["backfills"])
_FAILED: Final = "The warehouse or Pub/Sub returned an error."
_FULL: Final = "The disk is full."


@router.get(
    "/plans/{plan_id}",
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
    status_code=status.HTTP_202_ACCEPTED,
    response_model=Backfill,
    responses={
        200: {
            "model": PlanOut,
            "description": "With `validate_only`: the plan, which the API keeps for some minutes.",
        },
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
    call: Request,
    body: BackfillCreate,
    response: Response,
    service: Service,
    caller: Caller,
    *,
    slow: SlowCalls,
    validate_only: ValidateOnly = False,
    exact: Annotated[
        bool,
        Query(
            description="Only with `validate_only`: whether to count the rows exactly. On BigQuery, this runs the "
            "query, and BigQuery bills up to `max_bytes_billed`. On a lake, every plan is exact."
        ),
    ] = False,
    originals: Annotated[
        bool,
        Query(
            description="Only with `validate_only`: whether to show the archived message of each sample too. For "
            "this, the API runs one more query, which reads at most 10 GB. The caller also needs the scope "
            "`messages.read`."
        ),
    ] = False,
    idempotency_key: IdempotencyKey = None,
) -> Any:
    """Create a backfill. A backfill publishes the messages that its query selects."""
    if validate_only:
        with slow:
            plan = service.plan(body, principal=caller, exact=exact, originals=originals)
        call.state.why = f"validate_only: {_render_read(plan)}" if originals else "validate_only"
        return JSONResponse(PlanOut.model_validate(plan).model_dump(mode="json", by_alias=True))
    if exact or originals:
        message = "`exact` and `originals` work only with `validate_only`."
        raise RequestInvalidError.of("parameters_conflict", message, "query:exact" if exact else "query:originals")
    found = service.create(body, principal=caller, idempotency_key=idempotency_key)
    point_to(f"/jobs/{found.id}", response)
    return shown(found, response)


def _render_read(plan: Mapping[str, Any]) -> str:
    """Return what the audit log has of the archived messages in a plan; the window is that of its query."""
    compared = [each["comparison"]["archived"] for each in plan["samples"] if each.get("comparison")]
    topics = sorted({each["topic"] for each in compared if each is not None})
    read = sum(each is not None for each in compared)
    return f"{read} of {', '.join(topics) or 'no topic'} from {plan['window']['from']} to {plan['window']['to']}"


@router.get(
    "/backfills",
    response_model=BackfillPage,
    responses=problems(s422=LIST_INVALID),
)
def list_backfills(jobs: Jobs, caller: Caller, parameters: Annotated[KindListParameters, Query()]) -> Any:
    """List backfills, as `GET /jobs` does. By default the newest is first."""
    found, unreadable, token = jobs.list_jobs(parameters.request([BACKFILL.name]), principal=caller)
    return {"backfills": parameters.select(found, unreadable), "unreadable": unreadable, "next_page_token": token}


@router.get(
    "/backfills/{backfill_id}",
    response_model=Backfill,
    responses=versioned(s404=NO_SUCH_BACKFILL, s409=UNREADABLE, s422=INVALID),
)
def get_backfill(backfill_id: BackfillId, response: Response, service: Service, caller: Caller) -> Any:
    """Show a backfill, as `GET /jobs/{id}` does."""
    return shown(service.get(backfill_id, principal=caller), response)
