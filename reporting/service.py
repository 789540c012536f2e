"""What can be done with merges: one service for the API, and the clock that makes one every night."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog

from jobs.chores import CLEAN_SECONDS, Chore, ChoreThread
from jobs.cleaning import clean_folders
from jobs.inbox import InboxItem
from jobs.launcher import Launcher
from jobs.listing import ListRequest, read_page
from jobs.log import DEFAULT_TAIL_BYTES, LogPiece, read_log_end, read_log_from
from jobs.store import Event, Idempotency, Job, JobStore
from jobs.versions import Versions, check_version, expected_version
from model.errors import JobNotFoundError, JobStateError, RequestInvalidError
from model.job import JobState, new_job_id
from model.principal import PLAN, READ, RUN, Principal
from model.settings import Settings
from reporting.inbox import list_inbox
from reporting.nightly import Nightly
from reporting.request import MergeRequest
from reporting.resource import Merge
from reporting.sources import DataSource, choose_sources, mergeable
from reporting.specification import render_specification
from reporting.supervisor import KIND, MergeSupervisor, merge_folders
from warehouse.port import Warehouse

_NIGHTLY_SECONDS: Final = 1.0
# Who creates the nightly merge: an idempotency key is its caller's own, so every replica has to be the same one.
SCHEDULE: Final = Principal("schedule", frozenset({RUN}))
_LOG: Final = structlog.get_logger()

# The sources of the registry as it is now.
ReadSources = Callable[[], Sequence[DataSource]]


@dataclass(frozen=True, slots=True)
class MergePage:
    """Some merges, and the token of those that come after them."""

    merges: list[Merge]
    next_page_token: str | None


@dataclass(frozen=True, slots=True)
class MergeChanges:
    """A merge as it is now, and the lines of its history that are new."""

    shown: Merge
    events: list[Event]


class MergeService:
    """Creates merges, cancels and retries them and tells how they are; :meth:`start` begins to run them.

    Every call answers from the store within milliseconds; a create reads the registry too.

    Raises:
        ForbiddenError: any call whose ``principal`` lacks the scope.
        JobNotFoundError: any call that names a merge that is not there.
        JobChangedError: any call with ``versions``, none of which the merge is at any more.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        warehouse: Warehouse,
        store: JobStore,
        launcher: Launcher,
        sources: ReadSources,
        nightly: Nightly | None = None,
    ) -> None:
        self._settings = settings
        self._warehouse = warehouse
        self._store = store
        self._sources = sources
        clock = Nightly(self.create_nightly, settings.merge_at) if nightly is None else nightly
        chores = ChoreThread([Chore(clock.tick, _NIGHTLY_SECONDS), Chore(self._clean, CLEAN_SECONDS)])
        self._supervisor = MergeSupervisor(store, launcher, chores, merge_folders(settings))

    def start(self) -> None:
        """Launch and follow merges in the background, also those that an earlier service left."""
        self._supervisor.start()

    def stop(self, *, interrupt: bool = False) -> None:
        """Stop following. Running merges go on and are found again by the next service.

        With ``interrupt`` none runs on: they are PENDING, and the next service goes on with what is not merged.
        """
        self._supervisor.stop()
        if interrupt:
            self._supervisor.put_back("The service was stopped; the next one goes on.")

    def join(self) -> None:
        """Wait for a launch under way, after :meth:`stop`; closing the launcher before cuts that short."""
        self._supervisor.join()

    def create(self, request: MergeRequest, *, principal: Principal, idempotency_key: str | None = None) -> Merge:
        """Keep the merge as PENDING; it runs when no other one does.

        The same idempotency key with the same request gives back the merge that the first call made.

        Raises:
            RequestInvalidError: there is no such source, or none that can be merged.
            RegistryError: the registry can't be read.
            IdempotencyKeyReusedError: the key came before with another request.
        """
        principal.require(PLAN if request.is_dry_run else RUN)
        names = None if request.source is None else [request.source]
        sources = choose_sources(names, self._sources())
        if not sources:
            message = "No source of the registry has a key, so there is nothing to merge."
            fault = {"code": "nothing_to_merge", "message": message, "pointer": "/source"}
            raise RequestInvalidError(message, errors=[fault])
        job_id = new_job_id("mg")
        folder = self._supervisor.folder(job_id)
        # The folder is complete before the job exists: whoever finds the job can launch it.
        folder.write_specification(render_specification(job_id, request, sources, self._warehouse))
        job: Job | None = None
        try:
            job = self._store.insert(
                job_id,
                KIND,
                {**request.to_json(), "sources": [source.name for source in sources]},
                actor=principal.name,
                idempotency=None
                if idempotency_key is None
                else Idempotency(idempotency_key, request.fingerprint()),
            )
        finally:
            if job is None or job.id != job_id:
                self._supervisor.folders.remove(job_id)
        if job.id == job_id:
            _LOG.info("created", job_id=job.id, sources=len(sources), by=principal.name)
        self._supervisor.wake()
        return Merge.from_job(job)

    def create_nightly(self, key: str) -> None:
        """Create the merge of a night unless another replica has, or nothing in the registry is merged.

        Raises:
            RegistryError: the registry can't be read.
            StoreUnavailableError: the store does not answer.
        """
        if mergeable(self._sources()):
            self.create(MergeRequest(), principal=SCHEDULE, idempotency_key=key)

    def get(self, merge_id: str, *, principal: Principal) -> Merge:
        """Return the merge, with what is known of each of its sources."""
        return Merge.from_job(self._read(merge_id, principal))

    def list_merges(self, request: ListRequest | None = None, *, principal: Principal) -> MergePage:
        """Return a page of merges.

        Raises:
            RequestInvalidError: order or token is wrong, or the token is of another list.
        """
        principal.require(READ)
        page = read_page(self._store, KIND, request or ListRequest())
        return MergePage([Merge.from_job(job) for job in page.jobs], page.next_page_token)

    def list_active(self, *, principal: Principal) -> list[Merge]:
        """Return every merge that is not at its end, oldest first."""
        principal.require(READ)
        return [Merge.from_job(job) for job in self._store.list_active(KIND)]

    def list_inbox(self, *, principal: Principal) -> list[InboxItem]:
        """Return the merges that failed and that nobody has made up for."""
        principal.require(READ)
        return list_inbox(self._store)

    def list_events(self, merge_id: str, *, principal: Principal, after: int = 0) -> list[Event]:
        """Return the merge's history behind line number ``after``, oldest first."""
        return self._store.list_events(self._read(merge_id, principal).id, after=after)

    def watch(self, merge_id: str, *, principal: Principal, after: int = 0) -> MergeChanges:
        """Return the merge and what happened to it behind line number ``after``; for whoever asks again."""
        # The state first, so that one that has ended comes with the last line of its history.
        job = self._read(merge_id, principal)
        return MergeChanges(Merge.from_job(job), self._store.list_events(job.id, after=after))

    def read_log(self, merge_id: str, *, principal: Principal, tail_bytes: int = DEFAULT_TAIL_BYTES) -> LogPiece:
        """Return the end of the driver's log, whole lines only; empty while there is none."""
        job = self._read(merge_id, principal)
        return read_log_end(job, self._supervisor.folder(job.id).driver_log, tail_bytes=tail_bytes)

    def read_log_from(self, merge_id: str, offset: int, *, principal: Principal) -> LogPiece:
        """Return what the driver's log has from byte ``offset`` on, 64 KiB at most; for whoever follows it."""
        job = self._read(merge_id, principal)
        return read_log_from(job, self._supervisor.folder(job.id).driver_log, offset)

    def cancel(self, merge_id: str, *, principal: Principal, versions: Versions = None) -> Merge:
        """Stop the merge: what is merged stays merged, the source in hand is merged whole or not at all.

        Cancelling twice is one cancel.

        Raises:
            JobStateError: it is at its end.
        """
        job = self._steerable(merge_id, principal, versions)
        if job.state is not JobState.CANCELLING:
            has_begun = job.state is not JobState.PENDING and job.driver is not None
            target = JobState.CANCELLING if has_begun else JobState.CANCELLED
            job = self._store.move(
                job.id,
                target,
                actor=principal.name,
                why="cancelled",
                expected_version=expected_version(job, versions),
            )
        # Whoever follows it tells its driver within half a second.
        self._supervisor.wake()
        return Merge.from_job(job)

    def retry(self, merge_id: str, *, principal: Principal, versions: Versions = None) -> Merge:
        """Let a merge that FAILED or was CANCELLED go on with the sources that are not merged.

        Raises:
            JobStateError: it has not ended, or merged everything.
        """
        job = self._steerable(merge_id, principal, versions)
        if not job.state.is_final:
            raise JobStateError(f"{job.id} is {job.state}, not at its end.", state=job.state.value)
        if job.state is JobState.SUCCEEDED:
            raise JobStateError(f"{job.id} has merged everything; make a new one.", state=job.state.value)
        job = self._store.move(
            job.id,
            JobState.PENDING,
            actor=principal.name,
            why="retried",
            expected_version=expected_version(job, versions),
        )
        self._supervisor.wake()
        return Merge.from_job(job)

    def _clean(self) -> None:
        keep = timedelta(days=self._settings.keep_job_days)
        clean_folders(self._store, self._supervisor.folders, keep=keep, now=datetime.now(UTC))

    def _steerable(self, merge_id: str, principal: Principal, versions: Versions) -> Job:
        # Before the look: who may do neither learns nothing of what there is.
        if not principal.may(PLAN):
            principal.require(RUN)
        job = self._get(merge_id)
        principal.require(PLAN if job.request["dry_run"] else RUN)
        check_version(job, versions)
        return job

    def _read(self, merge_id: str, principal: Principal) -> Job:
        principal.require(READ)
        return self._get(merge_id)

    def _get(self, merge_id: str) -> Job:
        job = self._store.get(merge_id)
        if job.kind != KIND:
            raise JobNotFoundError(f"There is no merge {merge_id}.", id=merge_id)
        return job
