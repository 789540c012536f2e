"""Queries before they are a backfill's: checked as they are written, and run by nobody."""

from typing import Any, Final

from fastapi import APIRouter, Request

from api.answers import INVALID, Caller, QuickCalls, Service, problems
from api.schemas_queries import QueryCheck, QueryVerdict

router: Final = APIRouter(tags=["queries"])


@router.post(
    "/queries:check",
    operation_id="checkQuery",
    response_model=QueryVerdict,
    responses=problems(s422=INVALID, s502="The warehouse failed."),
)
def check_query(body: QueryCheck, request: Request, service: Service, caller: Caller, quick: QuickCalls) -> Any:
    """Check a replay's query and run nothing: findings with places, edits that mend them, tables it may read."""
    with quick:
        found = service.check_query(body.query, body.parameters, principal=caller)
    # It changes nothing and is called as somebody types: the audit log keeps it only when it is refused or fails.
    request.state.is_audited = True
    return found
