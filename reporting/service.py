"""What can be done with merges: one service for the API."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from jobs.inbox_items import InboxItem
from jobs.launcher import Launcher
from jobs.service import JobService
from jobs.store import Idempotency, Job, JobStore
from jobs.supervisor import JobSupervisor
from model.errors import RequestInvalidError
from model.principal import PLAN, READ, RUN, Principal
from model.settings import Settings
from reporting.inbox_items import list_inbox
from reporting.kind import MERGE
from reporting.nights import list_merged_sources
from reporting.request import MergeRequest
from reporting.sources import DataSource, choose_sources
from reporting.specification import render_specification
from reporting.view import Merge
from warehouse.port import Warehouse

# Two merges of one source would only undo each other's work, and one job merges as many sources as are wanted.
_MAX_RUNNING: Final = 1

# The sources of the registry as it is now.
ReadSources = Callable[[], Sequence[DataSource]]


class MergeService(JobService[Merge]):
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
    ) -> None:
        supervisor = JobSupervisor(
            MERGE,
            store,
            launcher,
            MERGE.open_folders(settings.home, settings.jobs_folder),
            max_running=_MAX_RUNNING,
            keep=timedelta(days=settings.keep_job_days),
        )
        super().__init__(MERGE, store, supervisor)
        self._warehouse = warehouse
        self._sources = sources

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
        return self._insert(
            {**request.to_json(), "sources": [source.name for source in sources]},
            lambda job_id: render_specification(job_id, request, sources, self._warehouse),
            principal=principal,
            idempotency=None if idempotency_key is None else Idempotency(idempotency_key, request.fingerprint()),
        )

    def list_sources(
        self, since: datetime, *, principal: Principal, source: str | None = None
    ) -> list[dict[str, Any]]:
        """Return how each source fared in each merge that ended since a time, with its audits, newest first."""
        principal.require(READ)
        return list_merged_sources(self._store, since, source)

    def _show(self, job: Job) -> Merge:
        return Merge.from_job(job)

    def _require(self, principal: Principal, job: Job | None) -> None:
        # A dry run changes nothing, so that a planner may steer it.
        if (job is None and principal.may(PLAN)) or (job is not None and job.request["dry_run"]):
            principal.require(PLAN)
        else:
            principal.require(RUN)

    def _list_waiting(self) -> list[InboxItem]:
        return list_inbox(self._store)
