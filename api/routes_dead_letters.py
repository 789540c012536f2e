"""Dead letters of backfills and of the pipeline: listed, counted by reason, and downloaded."""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path, Query, Request, Response

from api.answers import NO_SUCH_BACKFILL, Caller, Service, SlowCalls, problems
from api.listing import PageSize
from api.payloads import PAYLOAD_ANSWER, answer_payload, note_letters
from api.schemas import Since
from api.schemas_dead_letters import DeadLetterReasonsOut, DeadLettersOut
from backfill.plan.redrive import LetterChoice
from jobs.listing import DEFAULT_PAGE_SIZE
from jobs.page_tokens import parse_row_token, render_row_token
from model.errors import RequestInvalidError
from model.principal import MESSAGES, READ
from warehouse.figures import MAX_SHOWN_BYTES

router: Final = APIRouter(tags=["dead-letters"])
_FAILED: Final = "The warehouse returned an error."
_FULL: Final = "The disk is full."
_QUERY: Final = "A parameter is not valid, or does not work with another one. `errors` lists every violation."

JobOfLetters = Annotated[
    str | None,
    Query(
        max_length=300,
        description="The id of the backfill that could not publish the messages.",
        examples=["bf_01K0ABCDEFGHJKMNPQRSTVWXYZ"],
    ),
]
SourceOfLetters = Annotated[
    str | None,
    Query(max_length=300, description="The source of the pipeline whose schema did not fit the messages."),
]
LettersSince = Annotated[
    Since | None,
    Query(
        alias="from",
        description="Only dead letters that the pipeline wrote at this time (RFC 3339) or later. The default is "
        "30 days ago.",
    ),
]


@router.get(
    "/dead-letters",
    response_model=DeadLettersOut | DeadLetterReasonsOut,
    responses=problems(s404=NO_SUCH_BACKFILL, s422=_QUERY, s502=_FAILED, s507=_FULL),
)
def list_dead_letters(
    call: Request,
    service: Service,
    caller: Caller,
    slow: SlowCalls,
    *,
    job: JobOfLetters = None,
    source: SourceOfLetters = None,
    group_by: Annotated[
        Literal["reason"] | None,
        Query(
            description="`reason` counts the dead letters by reason, and lists none. Without `job` and `source`, "
            "this is always so."
        ),
    ] = None,
    start: LettersSince = None,
    code: Annotated[
        str | None, Query(max_length=100, description="List only dead letters of the source with this code.")
    ] = None,
    path: Annotated[
        str | None,
        Query(
            max_length=300,
            description="List only dead letters of the source with this path. An empty value means dead letters "
            "without a path.",
        ),
    ] = None,
    preview_bytes: Annotated[
        int | None,
        Query(
            ge=1,
            le=MAX_SHOWN_BYTES,
            description="The number of bytes after which each payload is cut. By default, payloads of a backfill "
            "are whole and in base64, and payloads of the pipeline are not shown.",
        ),
    ] = None,
    page_size: PageSize = DEFAULT_PAGE_SIZE,
    page_token: Annotated[
        str | None, Query(max_length=2000, description="The `next_page_token` of the previous page of a backfill.")
    ] = None,
) -> Any:
    """List the dead letters of a backfill or of a source of the pipeline, or count dead letters by reason.

    To send the dead letters of a backfill again, call `:retry` with `only=failed`, and with a `code` if you want
    only one reason. For the pipeline, each reason has a `request` that sends its messages again.
    """
    listed = ("preview_bytes", "page_size", *(("code", "path") if job is None else ("page_token",)))
    is_counted = group_by is not None or (job is None and source is None)
    _take_only(call, ("source", "from") if job is None else ("job",), () if is_counted else listed, ("group_by",))
    if job is not None:
        if is_counted:
            return {"reasons": service.count_dead_letters(job, principal=caller)}
        after = parse_row_token(page_token)
        letters, last = service.list_dead_letters(
            job, principal=caller, limit=page_size, after=after, preview_bytes=preview_bytes
        )
        note_letters(call, letters)
        token = None if last is None else render_row_token(last)
        return {"dead_letters": letters, "is_cut": last is not None, "next_page_token": token}
    with slow:
        if group_by is not None or source is None:
            reasons = service.count_letters(_since(start), principal=caller)
            return {"reasons": [each for each in reasons if source in {None, each.source}]}
        choice = LetterChoice(source, _since(start), code, path)
        found = service.list_letters(choice, principal=caller, limit=page_size + 1, preview_bytes=preview_bytes)
    note_letters(call, found[:page_size])
    return {"dead_letters": found[:page_size], "is_cut": len(found) > page_size, "next_page_token": None}


@router.get(
    "/dead-letters/{dead_letter_id}/data",
    response_class=Response,
    responses={
        **PAYLOAD_ANSWER,
        **problems(
            s404="There is no such backfill, or it or the source has no such dead letter.",
            s422=_QUERY,
            s502=_FAILED,
            s507=_FULL,
        ),
    },
)
def download_dead_letter(
    call: Request,
    dead_letter_id: Annotated[
        str,
        Path(
            max_length=1024,
            description="For a backfill, the `row` of the dead letter. For the pipeline, its `message_id`.",
            examples=["1234"],
        ),
    ],
    service: Service,
    *,
    caller: Caller,
    slow: SlowCalls,
    job: JobOfLetters = None,
    source: SourceOfLetters = None,
    topic: Annotated[
        str | None,
        Query(max_length=300, description="With `source`: the topic to which the message was first published."),
    ] = None,
    start: LettersSince = None,
) -> Response:
    """Download the payload of one dead letter, byte for byte.

    For the pipeline, send the dead letter's `source` and `topic`, and its `at` as `from`.
    """
    _take_only(call, ("source", "topic", "from") if job is None else ("job",))
    if job is not None:
        letter = service.read_dead_letter(job, _parse_row(dead_letter_id), principal=caller)
        return answer_payload(call, letter.data, letter.topic or "an unknown topic", letter.message_id)
    caller.require(READ)
    caller.require(MESSAGES)
    if source is None or topic is None:
        raise RequestInvalidError.of("origin_missing", "Send either `job`, or `source` and `topic`.", "query:job")
    with slow:
        data = service.read_letter_data(source, topic, dead_letter_id, _since(start), principal=caller)
    return answer_payload(call, data, topic, dead_letter_id)


def _take_only(call: Request, *taken: Collection[str]) -> None:
    """Refuse parameters that do not work with the others.

    Raises:
        RequestInvalidError: there are some.
    """
    if wrong := sorted(set(call.query_params).difference(*taken)):
        message = f"{', '.join(wrong)}: these parameters do not work with the other ones."
        raise RequestInvalidError.of("parameters_conflict", message, f"query:{wrong[0]}")


def _parse_row(text: str) -> int:
    if len(text) > len(str(2**53)) or not (text.isascii() and text.isdigit()):
        raise RequestInvalidError.of("row_invalid", f"{text[:80]!r} is no number of a row.", "path:dead_letter_id")
    return int(text)


def _since(start: datetime | None) -> datetime:
    return datetime.now(UTC) - timedelta(days=30) if start is None else start
