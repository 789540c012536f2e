"""What can be done with merges: one service for the API."""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from jobs.inbox_items import InboxItem, list_ended, list_failures
from jobs.launcher import Launcher
from jobs.service import JobService
from jobs.store import Idempotency, Job, JobFilter, JobStore
from jobs.supervisor import JobSupervisor
from model.errors import RequestInvalidError
from model.job import JobState
from model.principal import PLAN, READ, RUN, Principal
from model.settings import Settings
from reporting.kind import MERGE
from reporting.request import MergeRequest, choose_sources
from reporting.specification import render_specification
from reporting.view import Merge
from warehouse.merges import MergeSource
from warehouse.port import Warehouse

# Two merges of one source would only undo each other's work, and one job merges as many sources as are wanted.
_MAX_RUNNING: Final = 1
# A year of nights; one merge holds all sources.
_MOST_MERGES: Final = 400
_ENDED: Final = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)

# The sources of the registry as it is now, by name; None for one that can't be merged.
ReadSources = Callable[[], Mapping[str, MergeSource | None]]


class MergeService(JobService[Merge]):
    """Creates, cancels, retries and shows merges; :meth:`start` begins to run them.

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
            raise RequestInvalidError.of("nothing_to_merge", message, "/source")
        return self._insert(
            {**request.to_json(), "sources": [source.name for source in sources]},
            lambda job_id: render_specification(job_id, request, sources, self._warehouse),
            principal=principal,
            idempotency=Idempotency.of(idempotency_key, request.to_json()),
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
        """Return merges of the last seven days that failed and whose sources no later merge has merged."""
        found = list_ended(self._store, MERGE.name, (JobState.FAILED, JobState.SUCCEEDED), now=datetime.now(UTC))
        return list_failures([job for job in found if not job.request["dry_run"]], _makes_up_for)


def list_merged_sources(store: JobStore, since: datetime, source: str | None = None) -> list[dict[str, Any]]:
    """Return how each source fared in each merge that ended since a time, in the API's shape, newest first.

    Dry runs are left out, as they change nothing and make no audits; so are sources that a merge did not get to.
    The newest 400 merges are looked at.
    """

    def lines() -> Iterator[dict[str, Any]]:
        ended = JobFilter(kinds=(MERGE.name,), states=_ENDED, ended_since=since)
        for merge in map(Merge.from_job, store.list_jobs(ended, limit=_MOST_MERGES)):
            for found in merge.sources if not merge.dry_run else ():
                if found.state in {"merged", "failed"} and source in {None, found.source}:
                    yield {"merge_id": merge.id, "finished_at": merge.finished_at, **found.model_dump()}

    return list(lines())


def _makes_up_for(later: Job, failed: Job) -> bool:
    """Whether a merge has merged everything that an earlier one, which failed, was about.

    The trap: one that had to read staging again from an earlier time is not made up for by one that had not.
    """
    if not set(failed.request["sources"]) <= set(later.request["sources"]):
        return False
    wanted, read = failed.request["since"], later.request["since"]
    return wanted is None or (read is not None and datetime.fromisoformat(read) <= datetime.fromisoformat(wanted))
