"""Changes that wait until a second person approves them: requested, shown, approved and rejected."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import structlog

from jobs.inbox_items import InboxItem
from jobs.reader import JobReader
from jobs.store import CHANGE, Job, JobStore, change_of
from jobs.versions import Versions, check_version, expected_version
from model.change import EXPIRES_AFTER, ChangeRecord, ChangeRequest
from model.errors import ForbiddenError, JobStateError, StreamChangedError
from model.fault import FaultRecord
from model.job import JobState
from model.principal import READ, SCHEDULES_APPLY, STREAMS_OPERATE, STREAMS_READ, Principal

_LOG: Final = structlog.get_logger()
# Errors of a resource that has changed since the request: the change can never be made any more.
_CHANGED: Final = (StreamChangedError,)
_LATE: Final = FaultRecord("approval_late", "Nobody decided in time.")

# Makes a change as its requester, and returns the result. It runs twice: at the request, where the transaction is
# rolled back, and at the approval. It writes only to the job store, checks the version in the request, and waits
# for nothing else, because the store's transaction is open meanwhile.
Act = Callable[[ChangeRecord], Mapping[str, Any]]


class ChangeService(JobReader[ChangeRecord]):
    """Keeps changes that a second person has to approve, and makes each change once, after the approval.

    ``acts`` maps the kind of a resource and a verb to the function that makes the change. The decision and the
    change are one transaction: of several approvals at the same time one succeeds, and a process that dies before
    the commit has decided nothing.

    Raises:
        ForbiddenError: any call whose ``principal`` lacks the scope.
        JobNotFoundError: any call that names a change that does not exist.
        JobChangedError: any call with ``versions`` if the job is at none of them.
    """

    scopes = (STREAMS_OPERATE, SCHEDULES_APPLY, STREAMS_READ, READ)

    def __init__(self, store: JobStore, acts: Mapping[tuple[str, str], Act]) -> None:
        super().__init__(CHANGE, store)
        self._acts = acts

    def show(self, job: Job, *, principal: Principal) -> ChangeRecord:  # noqa: ARG002 - all see the same of it
        """Return the change of a job; every principal sees all of it."""
        return change_of(job)

    def ask(self, asked: ChangeRequest) -> ChangeRecord:
        """Create a change that waits for a second person; a repeated request returns the change that waits.

        A change that can't be made now is refused with the error of its act.

        Raises:
            RefeedError: as the act raises it.
        """
        asked.requester.require(asked.scope)
        with structlog.contextvars.bound_contextvars(is_rehearsal=True):
            self._store.rehearse(lambda: self._make(self._store.create_change(asked), actor=asked.requester.name))
        made = change_of(self._store.create_change(asked))
        _LOG.info("change_asked", change=made.id, what=asked.what, by=asked.requester.name)
        return made

    def list_inbox(self, *, principal: Principal) -> list[InboxItem]:
        """Return the changes that wait for a second person, newest first."""
        principal.require_any(*self.scopes)
        waiting, _ = self.read_all(reversed(self._store.list_active(CHANGE)), principal=principal)
        return [_item_of(change) for change in waiting]

    def approve(self, job_id: str, *, principal: Principal, versions: Versions = None) -> ChangeRecord:
        """Approve the change and make it, as its requester.

        If the change can't be made at this moment, the error of its act is raised, and the change continues to
        wait.

        Raises:
            ForbiddenError: ``principal`` is the requester, or lacks the scope of the verb.
            JobStateError: the change is decided already, or has expired.
            StreamChangedError: the resource has changed since the request; the job is then FAILED with this error.
            RefeedError: as the act raises it.
        """
        job = self._decidable(job_id, principal, versions)
        if job.created_by == principal.name:
            raise ForbiddenError(f"You requested {job.id} yourself. Another person must approve it.", id=job.id)
        try:
            with self._store.together(), structlog.contextvars.bound_contextvars(change=job.id):
                done = self._make(job, actor=principal.name, version=expected_version(job, versions))
        except _CHANGED as exc:
            self._fail(job, FaultRecord.of(exc))
            raise
        _LOG.info("change_approved", change=done.id, what=done.request.what, by=principal.name)
        return done

    def reject(
        self, job_id: str, *, principal: Principal, versions: Versions = None, reason: str | None = None
    ) -> ChangeRecord:
        """Reject the change; a requester withdraws a change in the same way.

        Raises:
            ForbiddenError: ``principal`` lacks the scope of the verb.
            JobStateError: the change is decided already, or has expired.
        """
        job = self._decidable(job_id, principal, versions)
        decided = self._store.move(
            job.id,
            JobState.CANCELLED,
            actor=principal.name,
            why=reason,
            expected_version=expected_version(job, versions),
            expected_state=JobState.PENDING,
            memory={"decided_by": principal.name, "reason": reason},
        )
        _LOG.info("change_rejected", change=job.id, by=principal.name)
        return change_of(decided)

    def cancel(self, job_id: str, *, principal: Principal, versions: Versions = None) -> ChangeRecord:
        """Reject the change without a reason."""
        return self.reject(job_id, principal=principal, versions=versions)

    def expire(self) -> None:
        """Fail the changes that nobody decided in time; a loop calls this periodically.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        now = self._store.now()
        for job in self._store.list_active(CHANGE):
            if job.created_at + EXPIRES_AFTER <= now:
                self._fail(job, _LATE)

    def _decidable(self, job_id: str, principal: Principal, versions: Versions) -> Job:
        job = self._read(job_id, principal)
        found = self.read(job, principal=principal)
        principal.require(found.request.scope)
        check_version(job, versions)
        if job.state is JobState.PENDING and found.expires_at <= self._store.now():
            self._fail(job, _LATE)
            job = self._get(job_id)
        if job.state.is_final:
            by = "" if found.decided_by is None else f", decided by {found.decided_by}"
            raise JobStateError(f"{job.id} is {job.state}{by}.", id=job.id, state=job.state)
        return job

    def _make(self, job: Job, *, actor: str, version: int | None = None) -> ChangeRecord:
        """Approve and make the change, within the transaction of the caller."""
        begun = self._store.move(
            job.id,
            JobState.RUNNING,
            actor=actor,
            why="approved",
            expected_version=version,
            expected_state=JobState.PENDING,
            memory={"decided_by": actor},
        )
        change = change_of(begun)
        asked = change.request
        act = self._acts.get((asked.resource, asked.verb))
        if act is None:
            # A newer release created the request, and this release does not have the verb.
            raise JobStateError(f"This release can't {asked.verb} a {asked.resource}.", id=job.id)
        result = dict(act(change))
        return change_of(self._store.move(job.id, JobState.SUCCEEDED, actor=actor, memory={"result": result}))

    def _fail(self, job: Job, error: FaultRecord) -> None:
        """Fail a change that nobody decided; a decision that was made meanwhile stays."""
        with suppress(JobStateError):
            self._store.move(
                job.id,
                JobState.FAILED,
                actor="refeed",
                why=str(error),
                error=error,
                expected_state=JobState.PENDING,
            )


def _item_of(change: ChangeRecord) -> InboxItem:
    by = change.request.requester.name
    said = f"{change.request.what} A person other than {by} must approve it."
    return InboxItem("approval", CHANGE, change.id, change.state, None, by, change.created_at, said)
