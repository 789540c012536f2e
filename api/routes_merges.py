"""Merges as a resource: created, listed, shown, watched, cancelled and retried."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Response, status
from fastapi.responses import StreamingResponse

from api.answers import (
    CHANGED,
    CREATED_HEADERS,
    Caller,
    ExpectedVersions,
    IdempotencyKey,
    Merges,
    Standing,
    Stopping,
    created,
    parse_id,
    problems,
    shown,
    versioned,
)
from api.listing import LIST_INVALID, MergeListing
from api.schemas_merges import EXAMPLE_ID, MergeEvents, MergeOut, MergePage
from api.streams import render_event
from api.watching import (
    LOG_ANSWER,
    WATCH_ANSWER,
    After,
    Follow,
    LastEventId,
    Tail,
    answer_changes,
    answer_log,
)
from jobs.log import DEFAULT_TAIL_BYTES
from reporting.request import MergeCreate

router: Final = APIRouter(tags=["merges"])
_NO_SUCH_MERGE: Final = "There is no such merge."
_INVALID: Final = "The request is not valid; `errors` has every violation."


def checked_merge_id(
    merge_id: Annotated[str, Path(description='"mg_" and a ULID.', examples=[EXAMPLE_ID])],
) -> str:
    """Return the id in a request's path; a FastAPI dependency.

    Raises:
        JobNotFoundError: it is no id, so there is no such merge.
    """
    return parse_id(merge_id)


MergeId = Annotated[str, Depends(checked_merge_id)]


@router.post(
    "/merges",
    operation_id="createMerge",
    status_code=status.HTTP_202_ACCEPTED,
    response_model=MergeOut,
    responses={
        202: {"headers": CREATED_HEADERS},
        **problems(
            s409="The first call with this Idempotency-Key is under way.",
            s422=_INVALID,
            s502="The registry can't be read, or has faults.",
        ),
    },
)
def create_merge(
    body: MergeCreate,
    response: Response,
    service: Merges,
    caller: Caller,
    *,
    idempotency_key: IdempotencyKey = None,
) -> Any:
    """Merge what staging has since the last merge into reporting; it runs when no other merge does."""
    found = service.create(body.parse(), principal=caller, idempotency_key=idempotency_key)
    return created(found, f"/merges/{found.id}", response)


@router.get(
    "/merges",
    operation_id="listMerges",
    response_model=MergePage,
    responses=problems(s422=LIST_INVALID),
)
def list_merges(service: Merges, caller: Caller, listing: MergeListing) -> Any:
    """List merges, the newest first unless an order is asked for; a merge has neither topic nor labels."""
    page = service.list_jobs(listing, principal=caller)
    return {"merges": [merge.to_json() for merge in page.jobs], "next_page_token": page.next_page_token}


@router.get(
    "/merges/{merge_id}:watch",
    operation_id="watchMerge",
    response_class=StreamingResponse,
    responses={**WATCH_ANSWER, **problems(s404=_NO_SUCH_MERGE, s422=_INVALID)},
)
async def watch_merge(
    merge_id: MergeId,
    service: Merges,
    caller: Standing,
    stopping: Stopping,
    *,
    after: After = 0,
    last_event_id: LastEventId = None,
) -> StreamingResponse:
    """Follow a merge live, from a line of its history on, until it ends."""
    return await answer_changes(service, merge_id, caller, stopping, after=after, last_event_id=last_event_id)


@router.post(
    "/merges/{merge_id}:cancel",
    operation_id="cancelMerge",
    response_model=MergeOut,
    responses=versioned(s404=_NO_SUCH_MERGE, s409="It is at its end.", s412=CHANGED, s422=_INVALID),
)
def cancel_merge(
    merge_id: MergeId, response: Response, service: Merges, caller: Caller, versions: ExpectedVersions
) -> Any:
    """Stop a merge: what is merged stays merged, the source in hand is merged whole or not at all."""
    return shown(service.cancel(merge_id, principal=caller, versions=versions), response)


@router.post(
    "/merges/{merge_id}:retry",
    operation_id="retryMerge",
    response_model=MergeOut,
    responses=versioned(
        s404=_NO_SUCH_MERGE,
        s409="It has not ended, or it has merged everything.",
        s412=CHANGED,
        s422=_INVALID,
    ),
)
def retry_merge(
    merge_id: MergeId, response: Response, service: Merges, caller: Caller, versions: ExpectedVersions
) -> Any:
    """Continue a failed or cancelled merge with the sources that are not merged."""
    return shown(service.retry(merge_id, principal=caller, versions=versions), response)


@router.get(
    "/merges/{merge_id}/events",
    operation_id="listMergeEvents",
    response_model=MergeEvents,
    responses=problems(s404=_NO_SUCH_MERGE, s422=_INVALID),
)
def list_merge_events(merge_id: MergeId, service: Merges, caller: Caller, *, after: After = 0) -> Any:
    """Tell what happened to a merge, who did it and why, oldest first."""
    events = service.list_events(merge_id, principal=caller, after=after)
    return {"events": [render_event(event) for event in events]}


@router.get(
    "/merges/{merge_id}/logs",
    operation_id="readMergeLogs",
    response_class=StreamingResponse,
    responses={**LOG_ANSWER, **problems(s404=_NO_SUCH_MERGE, s422=_INVALID)},
)
async def read_merge_logs(
    merge_id: MergeId,
    service: Merges,
    caller: Standing,
    stopping: Stopping,
    *,
    tail: Tail = DEFAULT_TAIL_BYTES,
    follow: Follow = False,
) -> StreamingResponse:
    """Show the end of the driver's log, and what it writes from now on."""
    return await answer_log(service, merge_id, caller, stopping, tail=tail, follow=follow)


@router.get(
    "/merges/{merge_id}",
    operation_id="getMerge",
    response_model=MergeOut,
    responses=versioned(s404=_NO_SUCH_MERGE, s422=_INVALID),
)
def get_merge(merge_id: MergeId, response: Response, service: Merges, caller: Caller) -> Any:
    """Tell how a merge is, source by source, with the audits behind it."""
    return shown(service.get(merge_id, principal=caller), response)
