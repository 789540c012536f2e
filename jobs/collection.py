"""Jobs of all kinds as one collection: found by id, listed in one order."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from jobs.listing import ListRequest, read_page
from jobs.reader import JobReader, JobView
from jobs.store import JobStore
from model.errors import JobNotFoundError, JobStateError
from model.job import is_job_id
from model.principal import Principal

VERBS: Final = ("change", "pause", "resume", "cancel", "retry", "revert", "approve", "reject")


class JobCollection:
    """The jobs of several kinds; ``by_prefix`` maps the prefix of a job's id to the reader of its kind.

    A kind supports one of :data:`VERBS` where its reader has a method of that name.
    """

    def __init__(self, store: JobStore, by_prefix: Mapping[str, JobReader[Any]]) -> None:
        self._store = store
        self._by_prefix = by_prefix
        self._by_name = {each.name: each for each in by_prefix.values()}

    def find(self, job_id: str) -> JobReader[Any]:
        """Return the reader of the job's kind.

        Raises:
            JobNotFoundError: no job of these kinds can have this id.
        """
        found = self._by_prefix.get(job_id.partition("_")[0]) if is_job_id(job_id) else None
        if found is None:
            raise JobNotFoundError(f"There is no job {job_id[:80]!r}.", id=job_id[:80])
        return found

    def find_verb(self, job_id: str, verb: str) -> Callable[..., JobView]:
        """Return the method that applies ``verb`` to a job.

        Raises:
            JobNotFoundError: as :meth:`find`.
            JobStateError: the job's kind does not support the verb.
        """
        found = self.find(job_id)
        if not hasattr(found, verb):
            known = ", ".join(each for each in VERBS if hasattr(found, each)) or "none"
            said = f"A job of the kind {found.name} has no action {verb}. It has: {known}."
            raise JobStateError(said, id=job_id)
        method: Callable[..., JobView] = getattr(found, verb)
        return method

    def show(self, job_id: str, *, principal: Principal) -> JobView:
        """Return a job that the caller has just created, even if the caller may not read jobs."""
        shown: JobView = self.find(job_id).show(self._store.get(job_id), principal=principal)
        return shown

    def list_jobs(
        self, request: ListRequest, *, principal: Principal
    ) -> tuple[list[JobView], list[str], str | None]:
        """Return a page of jobs, the ids of unreadable jobs, and the token of the next page.

        The default order is newest first. A filter without kinds selects all kinds that the principal may read.

        Raises:
            ForbiddenError: the principal may not read a kind that the filter names, or may not read any kind.
            RequestInvalidError: the order or the token is invalid, or the token belongs to another list.
        """
        kinds = request.where.kinds
        if not kinds:
            principal.require_any(*sorted({scope for each in self._by_name.values() for scope in each.scopes}))
            kinds = tuple(name for name, each in self._by_name.items() if any(map(principal.may, each.scopes)))
        for kind in kinds:
            principal.require_any(*self._by_name[kind].scopes)
        # Ids sort by creation time only within one prefix.
        has_one = sum(each.name in kinds for each in self._by_prefix.values()) == 1
        order_by = request.order_by or ("" if has_one else "created_at desc")
        where = replace(request.where, kinds=kinds)
        jobs, token = read_page(self._store, replace(request, order_by=order_by, where=where))
        shown: list[JobView] = []
        unreadable: list[str] = []
        for job in jobs:
            read, others = self._by_name[job.kind].read_all([job], principal=principal)
            shown += read
            unreadable += others
        return shown, unreadable, token
