"""What became of a backfill's messages: its slices, dead letters and missing messages."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request, Response

from api.answers import INVALID, NO_SUCH_BACKFILL, BackfillId, Caller, Service, problems
from api.listing import PageSize, page_of
from api.payloads import PAYLOAD_ANSWER, answer_payload, note_letters
from api.schemas_backfills import BackfillRates, BackfillSlices, DeadLetterPageOut, DeadLetterReasons, MissingPage
from jobs.listing import DEFAULT_PAGE_SIZE
from jobs.page_tokens import parse_row_token, render_row_token
from warehouse.figures import MAX_SHOWN_BYTES

router: Final = APIRouter(tags=["backfills"])

PageToken = Annotated[
    str | None, Query(max_length=2000, description="The `next_page_token` of the previous page.")
]


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
    "/backfills/{backfill_id}/dead-letters",
    operation_id="listBackfillDeadLetters",
    response_model=DeadLetterPageOut,
    responses=problems(s404=NO_SUCH_BACKFILL, s422=INVALID),
)
def list_backfill_dead_letters(
    call: Request,
    backfill_id: BackfillId,
    service: Service,
    caller: Caller,
    *,
    preview_bytes: Annotated[
        int | None,
        Query(
            ge=1,
            le=MAX_SHOWN_BYTES,
            description="The number of bytes after which each payload is cut. By default, payloads are whole "
            "and in base64.",
        ),
    ] = None,
    page_size: PageSize = DEFAULT_PAGE_SIZE,
    page_token: PageToken = None,
) -> Any:
    """List a backfill's dead letters: messages that could not be published, with the reasons.

    `:retry` with `only=failed` sends these messages again.
    """
    letters, next_after = service.list_dead_letters(
        backfill_id,
        principal=caller,
        limit=page_size,
        after=parse_row_token(page_token),
        preview_bytes=preview_bytes,
    )
    token = None if next_after is None else render_row_token(next_after)
    note_letters(call, letters)
    return {"dead_letters": letters, "next_page_token": token}


@router.get(
    "/backfills/{backfill_id}/dead-letters/{row}/data",
    operation_id="downloadBackfillDeadLetter",
    response_class=Response,
    responses={
        **PAYLOAD_ANSWER,
        **problems(s404="There is no such backfill, or the row is not a dead letter.", s422=INVALID),
    },
)
def download_backfill_dead_letter(
    call: Request,
    backfill_id: BackfillId,
    row: Annotated[int, Path(ge=0, le=2**53, description="The row's number in the selection.")],
    service: Service,
    caller: Caller,
) -> Response:
    """Download the payload of one dead letter of a backfill, byte for byte."""
    letter = service.read_dead_letter(backfill_id, row, principal=caller)
    return answer_payload(call, letter.data, letter.topic or "an unknown topic", letter.message_id)


@router.get(
    "/backfills/{backfill_id}/dead-letters/reasons",
    operation_id="countBackfillDeadLetters",
    response_model=DeadLetterReasons,
    responses=problems(s404=NO_SUCH_BACKFILL, s422=INVALID),
)
def count_backfill_dead_letters(backfill_id: BackfillId, service: Service, caller: Caller) -> Any:
    """Count a backfill's dead letters by reason.

    To send the dead letters with one code again, call `:retry` with this `code`.
    """
    return {"reasons": service.count_dead_letters(backfill_id, principal=caller)}


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
    page_token: PageToken = None,
) -> Any:
    """List selected messages that are not in the staging table of the target topic."""
    after = parse_row_token(page_token)
    found = service.list_missing(backfill_id, principal=caller, limit=page_size + 1, after=after)
    page, token = page_of(found, page_size, lambda last: render_row_token(last.row))
    return {"messages": page, "next_page_token": token}
