"""Shows and steers the jobs of one kind: the base of every kind's service."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import structlog

from jobs.folder import JobFolder
from jobs.inbox_items import InboxItem
from jobs.kinds import JobKind
from jobs.log import DEFAULT_TAIL_LINES, LogPiece, read_log_end, read_log_from
from jobs.loop import BackgroundLoop
from jobs.reader import JobReader, View
from jobs.store import Idempotency, Job, JobStore
from jobs.supervisor import JobSupervisor
from jobs.versions import Versions, check_version, expected_version
from model.errors import JobStateError, RefeedError, StoreUnavailableError
from model.job import JobState, new_job_id
from model.principal import READ, Principal

_LOG: Final = structlog.get_logger()


class JobService(JobReader[View]):
    """Creates, lists, shows, watches, cancels and retries the jobs of one kind.

    Every call answers from the store within milliseconds. A subclass defines how jobs are shown, who may steer
    them and which jobs wait for a person. A call that changes a job takes the ``versions`` at which the caller
    allows the change, None for any.

    Raises:
        ForbiddenError: the ``principal`` of the call lacks the scope, or may not steer the job.
        JobNotFoundError: the job of the call does not exist, or is of another kind.
        JobChangedError: the job is at none of the ``versions`` of the call.
    """

    def __init__(self, kind: JobKind, store: JobStore, supervisor: JobSupervisor) -> None:
        super().__init__(kind.name, store)
        self._kind = kind
        self._supervisor = supervisor

    @abstractmethod
    def _show(self, job: Job) -> View:
        """Return the view of a job."""

    @abstractmethod
    def _require(self, principal: Principal, job: Job | None) -> None:
        """Raise unless the principal may steer the job; without a job, unless it may steer any job.

        Raises:
            ForbiddenError: the principal may not.
        """

    @abstractmethod
    def _list_waiting(self) -> list[InboxItem]:
        """Return the jobs that wait for a person."""

    def _steer(self, job: Job) -> None:
        """Write a job's new state to its control now; otherwise the supervisor does so half a second later."""

    @property
    def kind(self) -> JobKind:
        """The kind of the service's jobs."""
        return self._kind

    @property
    def loop(self) -> BackgroundLoop:
        """The loop that launches and follows the jobs."""
        return self._supervisor.loop

    def start(self) -> None:
        """Launch and follow jobs in the background, also the jobs of an earlier service."""
        self._supervisor.start()

    def stop(self, *, interrupt: bool = False) -> None:
        """Stop following. Running jobs continue, and the next service finds them.

        With ``interrupt`` running jobs are stopped: by its kind, a job is FAILED and a retry continues it, or it
        is PENDING for the next service.
        """
        self._supervisor.stop()
        if interrupt:
            goes_on = "the next one goes on" if self._kind.goes_on_by_itself else "a retry goes on from there"
            self._supervisor.interrupt(f"The service was stopped; {goes_on}.")

    def join(self) -> None:
        """Wait for a launch under way, after :meth:`stop`; closing the launcher first shortens the wait."""
        self._supervisor.join()

    def show(self, job: Job, *, principal: Principal) -> View:  # noqa: ARG002 - the same view for all
        """Return the view of a job."""
        return self._show(job)

    def list_active(self, *, principal: Principal) -> tuple[list[View], list[str]]:
        """Return every active job, oldest first, and the ids of unreadable jobs."""
        principal.require(READ)
        return self.read_all(self._store.list_active(self._kind.name), principal=principal)

    def list_inbox(self, *, principal: Principal) -> list[InboxItem]:
        """Return the jobs that wait for a person."""
        principal.require(READ)
        return self._list_waiting()

    def read_log(self, job_id: str, *, principal: Principal, tail_lines: int = DEFAULT_TAIL_LINES) -> LogPiece:
        """Return the end of the driver's log, whole lines only; empty while there is none.

        The log of a Dataproc batch is at Google: then the content is one line with its URL.
        """
        job = self._read(job_id, principal)
        return read_log_end(job, self._folder_of(job.id).driver_log, tail_lines=tail_lines)

    def read_log_from(self, job_id: str, offset: int, *, principal: Principal) -> LogPiece:
        """Return the driver's log from byte ``offset`` on, at most 64 KiB; for callers that follow it."""
        job = self._read(job_id, principal)
        return read_log_from(job, self._folder_of(job.id).driver_log, offset)

    def cancel(self, job_id: str, *, principal: Principal, versions: Versions = None) -> View:
        """Cancel the job; its results so far stay. Cancelling it again changes nothing.

        Raises:
            JobStateError: the job has ended.
        """
        job = self._steerable(job_id, principal, versions)
        if job.state is JobState.CANCELLING:
            return self._show(job)
        check_lives(job)
        has_begun = job.state is not JobState.PENDING and job.driver is not None
        state = JobState.CANCELLING if has_begun else JobState.CANCELLED
        return self._move(job, state, principal, versions, why="cancelled")

    def retry(self, job_id: str, *, principal: Principal, versions: Versions = None) -> View:
        """Continue a FAILED or CANCELLED job with the rest of its work.

        Raises:
            JobStateError: the job has not ended, or has SUCCEEDED.
        """
        job = self._steerable(job_id, principal, versions)
        check_ended(job)
        if job.state is JobState.SUCCEEDED:
            raise JobStateError(
                f"{job.id} has {self._kind.done} everything. Create a new {self._kind.name} instead.",
                state=job.state.value,
            )
        return self._move(job, JobState.PENDING, principal, versions, why="retried")

    def _create_once(
        self, idempotency: Idempotency | None, principal: Principal, create: Callable[[], View]
    ) -> View:
        """Return the result of ``create``, or the job that the first call with the same key created.

        For creates that take a while: a second call with the key is refused until the first one ends.

        Raises:
            IdempotencyKeyReusedError: the key was used with another request.
            IdempotencyInProgressError: the first call with the key is under way.
        """
        if idempotency is None:
            return create()
        made = self._store.begin_create(self._kind.name, idempotency, actor=principal.name)
        if made is not None:
            return self._show(made)
        try:
            return create()
        except BaseException:
            with suppress(RefeedError):
                self._store.abandon_create(idempotency, actor=principal.name)
            raise

    def _insert(
        self,
        request: dict[str, Any],
        render: Callable[[str], Mapping[str, Any]],
        *,
        principal: Principal,
        idempotency: Idempotency | None = None,
        **chosen: Any,
    ) -> View:
        """Store a new job, with the specification that ``render`` returns for its id; it runs when its turn comes.

        ``chosen`` goes to :meth:`jobs.store.JobStore.insert`. If an earlier call with the same key created a job,
        that job is returned.

        Raises:
            IdempotencyKeyReusedError: the key was used with another request.
        """
        job_id = new_job_id(self._kind.prefix)
        # Complete the folder before the job exists: a supervisor may launch the job at once.
        self._folder_of(job_id).write_specification(render(job_id))
        try:
            job = self._store.insert(
                job_id, self._kind.name, request, actor=principal.name, idempotency=idempotency, **chosen
            )
        except StoreUnavailableError:
            # The job may be stored all the same, and then needs its folder. Cleaning removes orphans after a day.
            raise
        except BaseException:
            self._supervisor.folders.remove(job_id)
            raise
        if job.id != job_id:
            self._supervisor.folders.remove(job_id)
        else:
            _LOG.info("created", job_id=job.id, kind=self._kind.name, by=principal.name)
        self._supervisor.wake()
        return self._show(job)

    def _move(self, job: Job, state: JobState, principal: Principal, versions: Versions, **chosen: Any) -> View:
        """Move a job to ``state`` and return its view; ``chosen`` goes to :meth:`jobs.store.JobStore.move`."""
        expected = expected_version(job, versions)
        return self._tell(
            self._store.move(job.id, state, actor=principal.name, expected_version=expected, **chosen)
        )

    def _tell(self, job: Job) -> View:
        """Notify a job's driver and supervisor of its new state, and return its view."""
        self._steer(job)
        self._supervisor.wake()
        return self._show(job)

    def _steerable(self, job_id: str, principal: Principal, versions: Versions) -> Job:
        # Checked before the read: a caller who may steer no job must not learn which jobs exist.
        self._require(principal, None)
        job = self._get(job_id)
        self._require(principal, job)
        check_version(job, versions)
        return job

    def _folder_of(self, job_id: str) -> JobFolder:
        return self._supervisor.folder(job_id)


def check_lives(job: Job) -> None:
    """Raise if the job has ended.

    Raises:
        JobStateError: it has.
    """
    if job.state.is_final:
        raise JobStateError(f"{job.id} has already ended with the state {job.state}.", state=job.state.value)


def check_ended(job: Job) -> None:
    """Raise unless the job has ended.

    Raises:
        JobStateError: it has not.
    """
    if not job.state.is_final:
        raise JobStateError(f"{job.id} has not ended yet. Its state is {job.state}.", state=job.state.value)
