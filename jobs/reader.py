"""Jobs of one kind, as callers see them and follow them."""

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
    """A job as people see it."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def etag(self) -> str:
        """The version of the resource, for If-Match."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return it in the API's shape."""
        ...


View = TypeVar("View", bound=JobView)


@dataclass(frozen=True, slots=True)
class JobChanges(Generic[View]):
    """A job as it is now, and the lines of its history that are new; ``is_last`` says that nothing follows."""

    shown: View
    events: list[HistoryEvent]
    is_last: bool


def unreadable(job_id: str) -> JobUnreadableError:
    """Return the error of a job that this release can't show."""
    said = f"The request of {job_id} can't be read. Another release of Refeed may have written it."
    return JobUnreadableError(said, id=job_id)


class JobReader(ABC, Generic[View]):
    """Shows and watches the jobs of one kind, whose name is ``name``; a caller needs one of ``scopes`` for that.

    Raises:
        ForbiddenError: any call whose ``principal`` has none of the scopes.
        JobNotFoundError: any call that names a job that is not there, or is of another kind.
    """

    scopes: ClassVar[tuple[str, ...]] = (READ,)

    def __init__(self, name: str, store: JobStore) -> None:
        self.name = name
        self._store = store

    @abstractmethod
    def show(self, job: Job, *, principal: Principal) -> View:
        """Return a job of the kind as the principal sees it."""

    def get(self, job_id: str, *, principal: Principal) -> View:
        """Return the job with its latest figures."""
        return self.read(self._read(job_id, principal), principal=principal)

    def read(self, job: Job, *, principal: Principal) -> View:
        """Return what :meth:`show` does.

        Raises:
            JobUnreadableError: another release wrote the job, and this one can't read it.
        """
        try:
            return self.show(job, principal=principal)
        except (KeyError, TypeError, ValueError) as exc:
            raise unreadable(job.id) from exc

    def read_all(self, jobs: Iterable[Job], *, principal: Principal) -> tuple[list[View], list[str]]:
        """Return the jobs that can be read, and the ids of the others."""
        shown, unreadable = [], []
        for job in jobs:
            try:
                shown.append(self.read(job, principal=principal))
            except JobUnreadableError:
                unreadable.append(job.id)
        return shown, unreadable

    def watch(self, job_id: str, *, principal: Principal, after: int = 0) -> JobChanges[View]:
        """Return the job and the lines of its history after number ``after``; for callers that ask again.

        The state is read first, so one that has ended comes with the last line of its history.
        """
        job = self._read(job_id, principal)
        shown = self.read(job, principal=principal)
        return JobChanges(shown, self._store.list_events(job.id, after=after), job.state.is_final)

    def read_log(self, job_id: str, *, principal: Principal, tail_lines: int = DEFAULT_TAIL_LINES) -> LogPiece:  # noqa: ARG002 - of kinds with a log
        """Return the end of the job's log, whole lines only; empty while there is none.

        Raises:
            JobStateError: jobs of the kind have no log.
        """
        self._read(job_id, principal)
        raise JobStateError(f"A job of the kind {self.name} has no log of its own.", id=job_id)

    def read_log_from(self, job_id: str, offset: int, *, principal: Principal) -> LogPiece:  # noqa: ARG002 - as above
        """Return the job's log from byte ``offset`` on, 64 KiB at most; for callers that follow it."""
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
