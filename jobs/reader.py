"""Shows and follows the jobs of one kind."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from jobs.log import DEFAULT_TAIL_LINES, LogPiece
from jobs.store import Job, JobStore
from model.errors import JobNotFoundError, JobStateError, JobUnreadableError
from model.event import HistoryEvent
from model.job import is_job_id
from model.principal import READ, Principal


class JobView(Protocol):
    """A job as the API shows it."""

    @property
    def id(self) -> str:
        """The job's id."""
        ...

    @property
    def etag(self) -> str:
        """The version of the job, for If-Match."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return it in the API's shape."""
        ...


View = TypeVar("View", bound=JobView)


@dataclass(frozen=True, slots=True)
class JobChanges(Generic[View]):
    """A job's current view and the new lines of its history; after ``is_last`` no more follow."""

    shown: View
    events: list[HistoryEvent]
    is_last: bool


def unreadable(job_id: str) -> JobUnreadableError:
    """Return the error for a job that this release can't show."""
    said = f"The request of {job_id} can't be read. Another release of Refeed may have written it."
    return JobUnreadableError(said, id=job_id)


class JobReader(ABC, Generic[View]):
    """Shows and watches the jobs of the kind ``name``; a caller needs one of ``scopes``.

    Raises:
        ForbiddenError: the ``principal`` of the call has none of the scopes.
        JobNotFoundError: the job of the call does not exist, or is of another kind.
    """

    scopes: ClassVar[tuple[str, ...]] = (READ,)

    def __init__(self, name: str, store: JobStore) -> None:
        self.name = name
        self._store = store

    @abstractmethod
    def show(self, job: Job, *, principal: Principal) -> View:
        """Return the principal's view of a job of the kind."""

    def get(self, job_id: str, *, principal: Principal) -> View:
        """Return the job with its latest figures."""
        return self.read(self._read(job_id, principal), principal=principal)

    def read(self, job: Job, *, principal: Principal) -> View:
        """Return the view of :meth:`show`.

        Raises:
            JobUnreadableError: another release wrote the job, and this one can't read it.
        """
        try:
            return self.show(job, principal=principal)
        except (KeyError, TypeError, ValueError) as exc:
            raise unreadable(job.id) from exc

    def read_all(self, jobs: Iterable[Job], *, principal: Principal) -> tuple[list[View], list[str]]:
        """Return the views of readable jobs, and the ids of the others."""
        shown, unreadable = [], []
        for job in jobs:
            try:
                shown.append(self.read(job, principal=principal))
            except JobUnreadableError:
                unreadable.append(job.id)
        return shown, unreadable

    def watch(self, job_id: str, *, principal: Principal, after: int = 0) -> JobChanges[View]:
        """Return the job and the lines of its history after number ``after``; for callers that poll.

        The state is read first, so an ended job comes with the last line of its history.
        """
        job = self._read(job_id, principal)
        shown = self.read(job, principal=principal)
        return JobChanges(shown, self._store.list_events(job.id, after=after), job.state.is_final)

    def read_log(self, job_id: str, *, principal: Principal, tail_lines: int = DEFAULT_TAIL_LINES) -> LogPiece:  # noqa: ARG002 - for kinds with a log
        """Return the end of the job's log, whole lines only; empty while there is none.

        Raises:
            JobStateError: jobs of this kind have no log.
        """
        self._read(job_id, principal)
        raise JobStateError(f"A job of the kind {self.name} has no log of its own.", id=job_id)

    def read_log_from(self, job_id: str, offset: int, *, principal: Principal) -> LogPiece:  # noqa: ARG002 - as above
        """Return the job's log from byte ``offset`` on, at most 64 KiB; for callers that follow it."""
        return self.read_log(job_id, principal=principal)

    def _read(self, job_id: str, principal: Principal) -> Job:
        principal.require_any(*self.scopes)
        return self._get(job_id)

    def _get(self, job_id: str) -> Job:
        if not is_job_id(job_id):
            raise JobNotFoundError(f"There is no {self.name} {job_id[:80]!r}.", id=job_id[:80])
        with suppress(JobNotFoundError):
            if (job := self._store.get(job_id)).kind == self.name:
                return job
        raise JobNotFoundError(f"There is no {self.name} {job_id}.", id=job_id)
