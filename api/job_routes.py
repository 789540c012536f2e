"""Routes that every kind of job has: list, show, watch, history, log, cancel and retry."""

from collections.abc import Callable
from dataclasses import dataclass
from types import GenericAlias
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, create_model

from api.answers import (
    CHANGED,
    Caller,
    ExpectedVersions,
    Standing,
    Stopping,
    checked_id,
    problems,
    shown,
    versioned,
)
from api.listing import LIST_INVALID
from api.schemas_events import EventList
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
from jobs.kinds import JobKind
from jobs.listing import ListRequest
from jobs.log import DEFAULT_TAIL_BYTES
from jobs.service import JobService

INVALID: Final = "A parameter is not valid. `errors` lists every violation."


@dataclass(frozen=True, slots=True)
class JobResource:
    """A kind of job in the API: its shape, and the dependencies of its routes.

    ``service`` returns the service of the kind, ``listing`` what a list is asked for. ``cancel`` is the
    description of what a cancel does.
    """

    kind: JobKind
    service: Callable[..., Any]
    listing: Callable[..., ListRequest]
    cancel: str
    shape: type[Any]

    @property
    def noun(self) -> str:
        """One of its jobs, in operations and texts."""
        return self.kind.name

    @property
    def collection(self) -> str:
        """Its jobs, in paths and in a page."""
        return self.kind.collection

    @property
    def path(self) -> str:
        """The path of one of its jobs."""
        return f"/{self.collection}/{{{self.noun}_id}}"

    @property
    def unknown(self) -> str:
        """What a 404 means."""
        return f"There is no such {self.noun}."

    @property
    def page_shape(self) -> type[BaseModel]:
        """A page of its jobs."""
        fields: Any = {self.collection: GenericAlias(list, self.shape), "next_page_token": str | None}
        return create_model(f"{self.noun.title()}Page", __doc__=f"A page of {self.collection}.", **fields)

    def operation(self, verb: str, what: str = "") -> dict[str, Any]:
        """Return the names of an operation, such as ``listMergeEvents``."""
        end = f"_{what}" if what else ""
        return {
            "operation_id": f"{verb}{self.noun.title()}{what.title()}",
            "name": f"{verb}_{self.noun}{end}",
        }


def add_job_routes(router: APIRouter, resource: JobResource) -> None:
    """Add the routes but for create and retry, which some kinds ask more for."""
    _add_following_routes(router, resource)
    _add_reading_routes(router, resource)
    add_action_route(
        router, resource, "cancel", resource.cancel, s409=f"The {resource.noun} has ended.", s422=INVALID
    )


def add_retry_route(router: APIRouter, resource: JobResource, conflict: str) -> None:
    """Add the retry of a kind that retries all that is not done."""
    about = f"Continue a failed or cancelled {resource.noun}. Finished work is not repeated."
    add_action_route(router, resource, "retry", about, s409=conflict, s422=INVALID)


def add_action_route(router: APIRouter, resource: JobResource, verb: str, about: str, **meanings: str) -> None:
    """Add the route of an action without a body, which is the method of the kind's service with the verb's name.

    ``meanings`` are those of the statuses that not every action has.
    """
    job_id_of = checked_id(resource.kind)

    @router.post(
        f"{resource.path}:{verb}",
        **resource.operation(verb),
        response_model=resource.shape,
        responses=versioned(s404=resource.unknown, s412=CHANGED, **meanings),
        description=about,
    )
    def act_on_job(
        job_id: Annotated[str, Depends(job_id_of)],
        response: Response,
        service: Annotated[JobService[Any], Depends(resource.service)],
        caller: Caller,
        versions: ExpectedVersions,
    ) -> Any:
        return shown(getattr(service, verb)(job_id, principal=caller, versions=versions), response)


def _add_following_routes(router: APIRouter, resource: JobResource) -> None:
    job_id_of = checked_id(resource.kind)

    @router.get(
        f"{resource.path}:watch",
        **resource.operation("watch"),
        response_class=StreamingResponse,
        responses={**WATCH_ANSWER, **problems(s404=resource.unknown, s422=INVALID)},
        description=f"Follow the history and progress of a {resource.noun} live until the {resource.noun} ends.",
    )
    async def watch_job(
        job_id: Annotated[str, Depends(job_id_of)],
        service: Annotated[JobService[Any], Depends(resource.service)],
        caller: Standing,
        stopping: Stopping,
        *,
        after: After = 0,
        last_event_id: LastEventId = None,
    ) -> StreamingResponse:
        return await answer_changes(service, job_id, caller, stopping, after=after, last_event_id=last_event_id)

    @router.get(
        f"{resource.path}/logs",
        **resource.operation("read", "logs"),
        response_class=StreamingResponse,
        responses={**LOG_ANSWER, **problems(s404=resource.unknown, s422=INVALID)},
        description="Show the last lines of the driver's log. With `follow`, continue with new lines.",
    )
    async def read_job_logs(
        job_id: Annotated[str, Depends(job_id_of)],
        service: Annotated[JobService[Any], Depends(resource.service)],
        caller: Standing,
        stopping: Stopping,
        *,
        tail: Tail = DEFAULT_TAIL_BYTES,
        follow: Follow = False,
    ) -> StreamingResponse:
        return await answer_log(service, job_id, caller, stopping, tail=tail, follow=follow)


def _add_reading_routes(router: APIRouter, resource: JobResource) -> None:
    job_id_of = checked_id(resource.kind)

    @router.get(
        f"{resource.path}/events",
        **resource.operation("list", "events"),
        response_model=EventList,
        responses=problems(s404=resource.unknown, s422=INVALID),
        description=f"List the history of a {resource.noun}, oldest first: what happened, who did it and why.",
    )
    def list_job_events(
        job_id: Annotated[str, Depends(job_id_of)],
        service: Annotated[JobService[Any], Depends(resource.service)],
        caller: Caller,
        *,
        after: After = 0,
    ) -> Any:
        return {"events": service.list_events(job_id, principal=caller, after=after)}

    @router.get(
        f"/{resource.collection}",
        operation_id=f"list{resource.collection.title()}",
        name=f"list_{resource.collection}",
        response_model=resource.page_shape,
        responses=problems(s422=LIST_INVALID),
        description=f"List {resource.collection}. By default the newest is first.",
    )
    def list_jobs(
        service: Annotated[JobService[Any], Depends(resource.service)],
        caller: Caller,
        listing: Annotated[ListRequest, Depends(resource.listing)],
    ) -> Any:
        page = service.list_jobs(listing, principal=caller)
        return {
            resource.collection: [job.to_json() for job in page.jobs],
            "next_page_token": page.next_page_token,
        }

    # After those with a verb or a part after the id: its path would take the verb for a part of the id.
    @router.get(
        resource.path,
        **resource.operation("get"),
        response_model=resource.shape,
        responses=versioned(s404=resource.unknown, s422=INVALID),
        description=f"Show a {resource.noun}, with figures that are at most one second old.",
    )
    def get_job(
        job_id: Annotated[str, Depends(job_id_of)],
        response: Response,
        service: Annotated[JobService[Any], Depends(resource.service)],
        caller: Caller,
    ) -> Any:
        return shown(service.get(job_id, principal=caller), response)
