"""Jobs of every kind as one collection: found by their ids, listed in one order."""

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
    """The jobs of several kinds; ``by_prefix`` has what shows those of a kind, by what their ids begin with.

    What steers them is a method with the name of one of :data:`VERBS`, where the kind has that verb.
    """

    def __init__(self, store: JobStore, by_prefix: Mapping[str, JobReader[Any]]) -> None:
        self._store = store
        self._by_prefix = by_prefix
        self._by_name = {each.name: each for each in by_prefix.values()}

    def find(self, job_id: str) -> JobReader[Any]:
        """Return what shows the jobs of the kind that an id is of.

        Raises:
            JobNotFoundError: it is no id of a job of these kinds.
        """
        found = self._by_prefix.get(job_id.partition("_")[0]) if is_job_id(job_id) else None
        if found is None:
            raise JobNotFoundError(f"There is no job {job_id[:80]!r}.", id=job_id[:80])
        return found

    def find_verb(self, job_id: str, verb: str) -> Callable[..., JobView]:
        """Return the method that does a verb to a job.

        Raises:
            JobNotFoundError: as :meth:`find`.
            JobStateError: jobs of its kind have no such verb.
        """
        found = self.find(job_id)
        if not hasattr(found, verb):
            known = ", ".join(each for each in VERBS if hasattr(found, each)) or "none"
            said = f"A job of the kind {found.name} has no action {verb}. It has: {known}."
            raise JobStateError(said, id=job_id)
        method: Callable[..., JobView] = getattr(found, verb)
        return method

    def show(self, job_id: str, *, principal: Principal) -> JobView:
        """Return a job that the caller has just made, whether they may see others or not."""
        shown: JobView = self.find(job_id).show(self._store.get(job_id), principal=principal)
        return shown

    def list_jobs(
        self, request: ListRequest, *, principal: Principal
    ) -> tuple[list[JobView], list[str], str | None]:
        """Return a page of jobs, the ids of those that can't be read, and the token of the next page.

        Without an order the newest come first.
        Without kinds in the filter, the list has the jobs of all kinds that the principal may see.

        Raises:
            ForbiddenError: the principal may not see jobs of one of the kinds, or of none.
            RequestInvalidError: order or token is wrong, or the token is of another list.
        """
        kinds = request.where.kinds
        if not kinds:
            principal.require_any(*sorted({scope for each in self._by_name.values() for scope in each.scopes}))
            kinds = tuple(name for name, each in self._by_name.items() if any(map(principal.may, each.scopes)))
        for kind in kinds:
            principal.require_any(*self._by_name[kind].scopes)
        # The order of ids is that of time for one prefix alone.
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
