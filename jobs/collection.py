"""Jobs of every kind as one collection: found by their ids, listed in one order."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jobs.listing import ListRequest, read_page
from jobs.service import JobService, JobView
from jobs.store import JobStore
from model.errors import JobNotFoundError, JobStateError
from model.job import is_job_id
from model.principal import READ, Principal

VERBS: Final = ("change", "pause", "resume", "cancel", "retry", "revert", "approve")


@dataclass(frozen=True, slots=True)
class JobViews:
    """Some jobs, and the token of those that come after them."""

    jobs: list[JobView]
    next_page_token: str | None


class JobCollection:
    """The jobs of several kinds; the service of a job's kind shows it and steers it."""

    def __init__(self, store: JobStore, services: Sequence[JobService[Any]]) -> None:
        self._store = store
        self._services = {service.kind.name: service for service in services}

    def __iter__(self) -> Iterator[JobService[Any]]:
        return iter(self._services.values())

    def find(self, job_id: str) -> JobService[Any]:
        """Return the service of the kind that an id is of.

        Raises:
            JobNotFoundError: it is no id of a job of these kinds.
        """
        for service in self:
            if is_job_id(job_id) and job_id.startswith(f"{service.kind.prefix}_"):
                return service
        raise JobNotFoundError(f"There is no job {job_id[:80]!r}.", id=job_id[:80])

    def find_verb(self, job_id: str, verb: str) -> Callable[..., JobView]:
        """Return what does a verb to a job: the method of its service that has the verb's name.

        Raises:
            JobNotFoundError: as :meth:`find`.
            JobStateError: jobs of its kind have no such verb.
        """
        service = self.find(job_id)
        if not hasattr(service, verb):
            known = ", ".join(each for each in VERBS if hasattr(service, each))
            raise JobStateError(
                f"A {service.kind.name} does not have the action {verb}. Its actions are: {known}."
            )
        method: Callable[..., JobView] = getattr(service, verb)
        return method

    def list_jobs(self, request: ListRequest, *, principal: Principal) -> JobViews:
        """Return a page of jobs, the newest first without an order; the filter names their kinds.

        Raises:
            RequestInvalidError: order or token is wrong, or the token is of another list.
        """
        principal.require(READ)
        jobs, token = read_page(self._store, request)
        return JobViews([self._services[job.kind].show(job) for job in jobs], token)
