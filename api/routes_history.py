"""What became of a backfill's messages: its slices, rates and missing messages."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query

from api.answers import INVALID, NO_SUCH_BACKFILL, BackfillId, Caller, Service, problems
from api.listing import PageSize, page_of
from api.schemas_backfills import BackfillRates, BackfillSlices, MissingPage
from jobs.listing import DEFAULT_PAGE_SIZE
from jobs.page_tokens import parse_row_token, render_row_token

router: Final = APIRouter(tags=["backfills"])


@router.get(
    "/backfills/{backfill_id}/slices",
    operation_id="listBackfillSlices",
    response_model=BackfillSlices,
    responses=problems(s404=NO_SUCH_BACKFILL, s422=INVALID),
)
def list_backfill_slices(backfill_id: BackfillId, service: Service, caller: Caller) -> Any:
    """List the slices of a backfill's selection, with the progress of each slice."""
    return {"slices": service.list_slices(backfill_id, principal=caller)}


@router.get(
    "/backfills/{backfill_id}/rates",
    operation_id="listBackfillRates",
    response_model=BackfillRates,
    responses=problems(s404=NO_SUCH_BACKFILL, s422=INVALID),
)
def list_backfill_rates(backfill_id: BackfillId, service: Service, caller: Caller) -> Any:
    """List a backfill's intervals, each with the number of published messages, the rate and the rate limit."""
    return {"intervals": service.list_rates(backfill_id, principal=caller)}


@router.get(
    "/backfills/{backfill_id}/missing",
    operation_id="listBackfillMissing",
    response_model=MissingPage,
    responses=problems(
        s404=NO_SUCH_BACKFILL,
        s409="The backfill's target has no known staging table.",
        s422=INVALID,
        s502="The warehouse returned an error.",
    ),
)
def list_backfill_missing(
    backfill_id: BackfillId,
    service: Service,
    caller: Caller,
    *,
    page_size: PageSize = DEFAULT_PAGE_SIZE,
    page_token: Annotated[
        str | None, Query(max_length=2000, description="The `next_page_token` of the previous page.")
    ] = None,
) -> Any:
    """List selected messages that are not in the staging table of the target topic."""
    after = parse_row_token(page_token)
    found = service.list_missing(backfill_id, principal=caller, limit=page_size + 1, after=after)
    page, token = page_of(found, page_size, lambda last: render_row_token(last.row))
    return {"messages": page, "next_page_token": token}
