"""The routes: HTTP to calls of the one service, and back."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.responses import PlainTextResponse

from api.errors import PROBLEM_TYPE
from api.pages import read_problem_page
from api.schemas import (
    BackfillCreate,
    BackfillEvents,
    BackfillOut,
    BackfillPage,
    Health,
    PlanOut,
)
from backfill.request import BackfillRequest
from backfill.resource import Backfill, render_moment
from backfill.service import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, BackfillService
from model.errors import JobChangedError, JobNotFoundError
from model.job import is_job_id

router: Final = APIRouter()
_RETRY_AFTER_SECONDS: Final = "1"

BackfillId = Annotated[str, Path(description='"bf_" and a ULID.', examples=["bf_01K0ABCDEFGHJKMNPQRSTVWXYZ"])]
IfMatch = Annotated[str | None, Header(description="An etag; the call is refused when the job changed since.")]


def _problems(**meanings: str) -> dict[int | str, dict[str, Any]]:
    """Return OpenAPI's responses for problems, by status ("s404") and what each means."""
    always = {"s500": "Something unexpected happened."}
    return {
        int(status[1:]): {
            "description": text,
            "content": {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status, text in {**meanings, **always}.items()
    }


_INVALID: Final = "The request or its query is not valid; `errors` has every violation."
_UNAVAILABLE: Final = "Pub/Sub does not answer; try again after Retry-After."


@router.get("/healthz", operation_id="getHealth", tags=["service"], responses=_problems())
def get_health() -> Health:
    """Say that the process lives."""
    return Health(status="ok")


@router.get(
    "/readyz",
    operation_id="getReadiness",
    tags=["service"],
    responses={
        503: {"model": Health, "description": "Something is not ready; `problems` says what."},
        **_problems(),
    },
)
def get_readiness(request: Request, response: Response) -> Health:
    """Say whether a backfill could start now, and if not, why."""
    problems = {**_service(request).check_readiness(), **request.app.state.starting}
    if problems:
        response.status_code = 503
        return Health(status="not_ready", problems=problems)
    return Health(status="ok")


@router.post(
    "/backfills:plan",
    operation_id="planBackfill",
    tags=["backfills"],
    response_model=PlanOut,
    responses=_problems(s413="The body is too large.", s422=_INVALID, s502="The warehouse failed."),
)
def plan_backfill(body: BackfillCreate, request: Request) -> Any:
    """Run the query to say what a backfill would publish; nothing is published or kept."""
    return _service(request).plan(_request_of(body)).to_json()


@router.post(
    "/backfills",
    operation_id="createBackfill",
    tags=["backfills"],
    status_code=202,
    response_model=BackfillOut,
    responses={
        202: {
            "headers": {
                "Location": {"description": "Where to ask how it is.", "schema": {"type": "string"}},
                "Retry-After": {"description": "Seconds until asking is worth it.", "schema": {"type": "integer"}},
                "ETag": {"description": "Its version.", "schema": {"type": "string"}},
            }
        },
        **_problems(s413="The body is too large.", s422=_INVALID, s502="Pub/Sub refused.", s503=_UNAVAILABLE),
    },
)
def create_backfill(
    body: BackfillCreate,
    request: Request,
    response: Response,
    idempotency_key: Annotated[
        str | None, Header(max_length=255, description="The same key and body give the same backfill.")
    ] = None,
) -> Any:
    """Validate the query and launch a backfill of what it selects."""
    found = _service(request).create(_request_of(body), idempotency_key=idempotency_key)
    response.headers["Location"] = f"/backfills/{found.id}"
    response.headers["Retry-After"] = _RETRY_AFTER_SECONDS
    return _shown(found, response)


@router.get(
    "/backfills",
    operation_id="listBackfills",
    tags=["backfills"],
    response_model=BackfillPage,
    responses=_problems(s422=_INVALID),
)
def list_backfills(
    request: Request,
    page_size: Annotated[int, Query(ge=1, le=MAX_PAGE_SIZE)] = DEFAULT_PAGE_SIZE,
    page_token: Annotated[str | None, Query(max_length=200)] = None,
) -> Any:
    """List backfills, newest first."""
    page = _service(request).list_backfills(page_size=page_size, page_token=page_token)
    return {"backfills": [b.to_json() for b in page.backfills], "next_page_token": page.next_page_token}


@router.get(
    "/backfills/{backfill_id}",
    operation_id="getBackfill",
    tags=["backfills"],
    response_model=BackfillOut,
    responses=_problems(s404="There is no such backfill.", s422=_INVALID),
)
def get_backfill(backfill_id: BackfillId, request: Request, response: Response) -> Any:
    """Tell how a backfill is; its figures are at most a second old."""
    return _shown(_service(request).get(_checked(backfill_id)), response)


@router.get(
    "/backfills/{backfill_id}/events",
    operation_id="listBackfillEvents",
    tags=["backfills"],
    response_model=BackfillEvents,
    responses=_problems(s404="There is no such backfill.", s422=_INVALID),
)
def list_backfill_events(backfill_id: BackfillId, request: Request) -> Any:
    """Tell what happened to a backfill, who did it and why, oldest first."""
    events = _service(request).list_events(_checked(backfill_id))
    return {
        "events": [
            {"number": e.number, "at": render_moment(e.at), "actor": e.actor, "what": e.what, "why": e.why}
            for e in events
        ]
    }


@router.post(
    "/backfills/{backfill_id}:cancel",
    operation_id="cancelBackfill",
    tags=["backfills"],
    response_model=BackfillOut,
    responses=_problems(
        s404="There is no such backfill.",
        s409="It is at its end.",
        s412="It has changed since If-Match was read.",
        s422=_INVALID,
    ),
)
def cancel_backfill(
    backfill_id: BackfillId, request: Request, response: Response, if_match: IfMatch = None
) -> Any:
    """Stop a backfill: no new request starts; those under way, four of 1,000 messages a task, still go out."""
    service = _service(request)
    return _shown(service.cancel(_checked(backfill_id), expected_version=_version(if_match)), response)


@router.post(
    "/backfills/{backfill_id}:retry",
    operation_id="retryBackfill",
    tags=["backfills"],
    response_model=BackfillOut,
    responses=_problems(
        s404="There is no such backfill.",
        s409="It is neither failed nor cancelled.",
        s412="It has changed since If-Match was read.",
        s422=_INVALID,
    ),
)
def retry_backfill(backfill_id: BackfillId, request: Request, response: Response, if_match: IfMatch = None) -> Any:
    """Let a failed or cancelled backfill go on where it stopped, on the same selection."""
    service = _service(request)
    return _shown(service.retry(_checked(backfill_id), expected_version=_version(if_match)), response)


@router.get("/problems/{code}", include_in_schema=False)
def get_problem_page(code: str) -> PlainTextResponse:
    """Explain an error's code: what it means and what to do; ``type`` of every problem points here."""
    return PlainTextResponse(read_problem_page(code), media_type="text/markdown; charset=utf-8")


def _service(request: Request) -> BackfillService:
    service: BackfillService = request.app.state.service
    return service


def _request_of(body: BackfillCreate) -> BackfillRequest:
    return BackfillRequest(**body.model_dump())


def _shown(found: Backfill, response: Response) -> dict[str, Any]:
    response.headers["ETag"] = found.etag
    return found.to_json()


def _checked(backfill_id: str) -> str:
    if not is_job_id(backfill_id):
        raise JobNotFoundError(f"There is no job {backfill_id[:80]!r}.", id=backfill_id[:80])
    return backfill_id


def _version(if_match: str | None) -> int | None:
    """Return the version that an If-Match names; None when it is absent or ``*``."""
    if if_match is None or if_match.strip() == "*":
        return None
    digits = if_match.strip().strip('"')
    if not digits.isdecimal():
        raise JobChangedError(f"{if_match[:40]!r} is not the etag of any version.")
    return int(digits)
