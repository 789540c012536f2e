"""Jobs of every kind as one resource: listed, shown, changed, watched, and steered by one route a verb."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import StreamingResponse

from api.answers import (
    CHANGED,
    INVALID,
    NO_SUCH_STREAM,
    UNREADABLE,
    Caller,
    ExpectedVersions,
    Jobs,
    Service,
    Standing,
    Stopping,
    Streams,
    problems,
    versioned,
)
from api.listing import LIST_INVALID, JobListParameters, PageSize, PageToken, page_of
from api.schemas_backfills import BackfillChange, BackfillFiguresOut, BackfillRetry, MissingPage
from api.schemas_changes import ChangeReject
from api.schemas_jobs import JobOut, JobPage, shown
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
from backfill.steer.kind import BACKFILL
from jobs.listing import DEFAULT_PAGE_SIZE
from jobs.log import DEFAULT_TAIL_LINES
from jobs.page_tokens import parse_row_token, render_row_token
from model.errors import RequestInvalidError

router: Final = APIRouter(tags=["jobs"])
_UNKNOWN: Final = "There is no such job."
_NO_SUCH_BACKFILL: Final = "There is no such job, or the job is not a backfill."
_WAREHOUSE_FAILED: Final = "The warehouse returned an error."
# What each action does, when it conflicts with the job's state, and the meanings of its other statuses.
_ACTIONS: Final[Mapping[str, tuple[str, str, Mapping[str, str]]]] = {
    "pause": (
        "Pause a backfill until `:resume`. Refeed can still publish up to `in_flight_at_most` messages.",
        "The backfill has ended or is being cancelled.",
        {},
    ),
    "resume": (
        "Resume a paused backfill. After a canary, the backfill now publishes all other messages.",
        "The backfill has ended, is being cancelled, or needs an approval.",
        {},
    ),
    "cancel": (
        (
            "Cancel a job. Its finished work stays. After the answer, a backfill can still publish up to "
            "`in_flight_at_most` messages. A merge merges its current source completely or not at all. An update "
            "is rolled back. If it can't be rolled back, the new release stays. A change is rejected."
        ),
        "The job has ended, or the update is being rolled back.",
        {},
    ),
    "approve": (
        (
            "Approve a backfill with many rows, or make a change that another person requested. The creator of "
            "the job can't approve it. If the resource has changed since the request, the status is 412, and the "
            "change is FAILED."
        ),
        (
            "The backfill does not need an approval. Or the change was approved or rejected, has expired, or "
            "can't be made now. A change that can't be made now stays pending."
        ),
        {},
    ),
    "revert": (
        (
            "Revert what a job did. For a backfill, Refeed deletes its rows from the staging table of its target "
            "topic. If a merge has already read the rows, the call fails. For an update, the old release runs "
            "the stream again. If the update has ended, a new update does this."
        ),
        (
            "The backfill has not ended, its staging table is unknown, or a merge has already read its rows. Or "
            "the update is being rolled back, can't be rolled back, or the stream no longer runs with its release "
            "and options."
        ),
        {"s502": _WAREHOUSE_FAILED},
    ),
}
_NO_ACTION: Final = "The status is also 409 if jobs of this kind do not have the action."

JobId = Annotated[
    str,
    Path(
        description="The job's id. It begins with `bf_` for a backfill, `mg_` for a merge, `cp_` for a "
        "compaction, `up_` or `ro_` (from a manifest) for an update, `rs_` for a rollback, or `ch_` for a change.",
        examples=["bf_01K0ABCDEFGHJKMNPQRSTVWXYZ"],
    ),
]


@router.get("/jobs", response_model=JobPage, responses=problems(s404=NO_SUCH_STREAM, s422=LIST_INVALID))
def list_jobs(
    jobs: Jobs, streams: Streams, caller: Caller, parameters: Annotated[JobListParameters, Query()]
) -> Any:
    """List the jobs of every kind that the caller may see. By default the newest is first."""
    if parameters.stream is not None:
        streams.get(parameters.stream, principal=caller)
    wanted = parameters.request(parameters.kind, parameters.stream)
    found, unreadable, token = jobs.list_jobs(wanted, principal=caller)
    return {"jobs": parameters.select(found, unreadable), "unreadable": unreadable, "next_page_token": token}


@router.get(
    "/jobs/{job_id}:watch",
    response_class=StreamingResponse,
    responses={**WATCH_ANSWER, **problems(s404=_UNKNOWN, s409=UNREADABLE, s422=INVALID)},
)
async def watch_job(
    job_id: JobId,
    jobs: Jobs,
    caller: Standing,
    stopping: Stopping,
    *,
    after: After = 0,
    last_event_id: LastEventId = None,
) -> StreamingResponse:
    """Follow the history and progress of a job live until the job ends."""
    service = jobs.find(job_id)
    return await answer_changes(service, job_id, caller, stopping, after=after, last_event_id=last_event_id)


@router.get(
    "/jobs/{job_id}/logs",
    response_class=StreamingResponse,
    responses={**LOG_ANSWER, **problems(s404=_UNKNOWN, s409="The job has no driver.", s422=INVALID)},
)
async def read_job_logs(
    job_id: JobId,
    jobs: Jobs,
    caller: Standing,
    stopping: Stopping,
    *,
    tail: Tail = DEFAULT_TAIL_LINES,
    follow: Follow = False,
) -> StreamingResponse:
    """Show the last lines of the driver's log. With `follow`, continue with new lines.

    Updates, rollbacks and changes have no driver. `GET /streams/{name}/logs` shows what they do.
    """
    return await answer_log(jobs.find(job_id), job_id, caller, stopping, tail=tail, follow=follow)


@router.get(
    "/jobs/{job_id}/figures",
    response_model=BackfillFiguresOut,
    responses=problems(s404=_NO_SUCH_BACKFILL, s422=INVALID),
)
def get_job_figures(job_id: JobId, service: Service, caller: Caller) -> Any:
    """Show how a backfill went over time, and the progress of each slice of its selection."""
    return {
        "intervals": service.list_rates(job_id, principal=caller),
        "slices": service.list_slices(job_id, principal=caller),
    }


@router.get(
    "/jobs/{job_id}/missing",
    response_model=MissingPage,
    responses=problems(
        s404=_NO_SUCH_BACKFILL,
        s409="The backfill's target has no known staging table.",
        s422=INVALID,
        s502=_WAREHOUSE_FAILED,
    ),
)
def list_job_missing(
    job_id: JobId,
    service: Service,
    caller: Caller,
    *,
    page_size: PageSize = DEFAULT_PAGE_SIZE,
    page_token: PageToken = None,
) -> Any:
    """List selected messages of a backfill that are not in the staging table of the target topic."""
    after = parse_row_token(page_token)
    # Before the rows: what lands in between is not taken to be missing.
    advice = service.explain_missing(job_id, principal=caller)
    found = service.list_missing(job_id, principal=caller, limit=page_size + 1, after=after)
    page, token = page_of(found, page_size, lambda last: render_row_token(last.row))
    return {"messages": page, "next_page_token": token, "advice": advice if page else None}


def _acted(conflict: str, **meanings: str) -> dict[int | str, dict[str, Any]]:
    """Return OpenAPI's responses of an action; ``conflict`` says when the job's state does not allow it."""
    return versioned(s404=_UNKNOWN, s409=f"{conflict} {_NO_ACTION}", s412=CHANGED, s422=INVALID, **meanings)


def _add_action(verb: str, about: str, conflict: str, meanings: Mapping[str, str]) -> None:
    @router.post(
        f"/jobs/{{job_id}}:{verb}",
        name=f"{verb}_job",
        response_model=JobOut,
        responses=_acted(conflict, **meanings),
        description=about,
    )
    def act_on_job(
        job_id: JobId, response: Response, jobs: Jobs, caller: Caller, versions: ExpectedVersions
    ) -> Any:
        act = jobs.find_verb(job_id, verb)
        return shown(act(job_id, principal=caller, versions=versions), response)


for _verb, _action in _ACTIONS.items():
    _add_action(_verb, *_action)


@router.post(
    "/jobs/{job_id}:reject",
    response_model=JobOut,
    responses=_acted("The change was approved or rejected, or has expired."),
)
def reject_job(
    job_id: JobId,
    response: Response,
    jobs: Jobs,
    caller: Caller,
    versions: ExpectedVersions,
    *,
    body: ChangeReject | None = None,
) -> Any:
    """Reject a change. The person who requested a change can withdraw it with this call."""
    reject = jobs.find_verb(job_id, "reject")
    reason = None if body is None else body.reason
    return shown(reject(job_id, principal=caller, versions=versions, reason=reason), response)


@router.post(
    "/jobs/{job_id}:retry",
    response_model=JobOut,
    responses=versioned(
        s404=_UNKNOWN,
        s409="The job has not ended, or has done everything. For a backfill, the status is also 409 if another "
        "backfill publishes some of the same messages, or if Refeed can't find out which messages are missing.",
        s412=CHANGED,
        s422=INVALID,
        s502=_WAREHOUSE_FAILED,
    ),
)
def retry_job(
    job_id: JobId,
    response: Response,
    jobs: Jobs,
    caller: Caller,
    versions: ExpectedVersions,
    *,
    body: BackfillRetry | None = None,
) -> Any:
    """Continue an ended job. Finished work is not repeated. A backfill keeps its selected messages.

    The body chooses messages of a backfill. Without a body, a retry sends all messages that are not published yet.
    """
    retry = jobs.find_verb(job_id, "retry")
    chosen = {} if body is None else body.model_dump(exclude_defaults=True)
    if chosen and jobs.find(job_id).name != BACKFILL.name:
        message = "Only a backfill has messages that a retry can choose."
        raise RequestInvalidError.of("choice_invalid", message, f"/{next(iter(chosen))}")
    return shown(retry(job_id, principal=caller, versions=versions, **chosen), response)


# After those with a verb or a part after the id: its path would take the verb for a part of the id.
@router.get(
    "/jobs/{job_id}",
    response_model=JobOut,
    responses=versioned(s404=_UNKNOWN, s409=UNREADABLE, s422=INVALID),
)
def get_job(job_id: JobId, response: Response, jobs: Jobs, caller: Caller) -> Any:
    """Show a job, with figures that are at most one second old."""
    return shown(jobs.find(job_id).get(job_id, principal=caller), response)


@router.patch(
    "/jobs/{job_id}",
    response_model=JobOut,
    responses=_acted("The backfill has ended, so its rate limit can't change."),
)
def change_job(
    job_id: JobId,
    body: BackfillChange,
    response: Response,
    *,
    jobs: Jobs,
    caller: Caller,
    versions: ExpectedVersions,
) -> Any:
    """Change the rate limit, the description or the labels of a backfill.

    A running backfill uses a new rate limit within one second.
    """
    change = jobs.find_verb(job_id, "change")
    return shown(change(job_id, body, principal=caller, versions=versions), response)
