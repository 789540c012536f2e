"""The service of compactions, for the API and for schedules."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field

from backup.compaction.kind import COMPACTION
from jobs.inbox_items import InboxItem, list_ended, list_failures
from jobs.launcher import Launcher
from jobs.service import JobService
from jobs.store import Idempotency, Job, JobStore
from jobs.supervisor import JobSupervisor
from jobs.view import DrivenJob, shape_of
from model.errors import RequestInvalidError
from model.job import JobState
from model.principal import RUN, Principal
from model.settings import Settings
from warehouse.port import Warehouse

_EXAMPLE: Final[dict[str, Any]] = {
    "id": "cp_01K0ABCDEFGHJKMNPQRSTVWXYZ",
    "kind": "compaction",
    "tables": ["archive", "staging.orders"],
    "files_removed": {"archive": 812, "staging.orders": 40},
}
# Two compactions of one table would only conflict.
_MAX_RUNNING: Final = 1


@dataclass(frozen=True, kw_only=True)
class Compaction(DrivenJob):
    """One compaction job."""

    __pydantic_config__: ClassVar[dict[str, Any]] = shape_of(_EXAMPLE)

    kind: Annotated[Literal["compaction"], Field(description="The kind of the job.")]
    tables: Annotated[
        list[str], Field(description="The tables to compact: `archive`, or a table as dataset.table.")
    ]
    files_removed: Annotated[
        dict[str, int],
        Field(
            description="For each table, the number of files before the compaction minus the number of files "
            "after the compaction."
        ),
    ]

    @classmethod
    def from_job(cls, job: Job) -> Self:
        """Return the compaction of a job of the kind ``compaction``."""
        files_removed = (job.findings or {}).get("tables", {})
        return cls.read(job, tables=job.request["tables"], files_removed=files_removed)


class CompactionService(JobService[Compaction]):
    """Creates, cancels and retries compactions; :meth:`start` begins to run them, one by one.

    Raises:
        ForbiddenError: any call whose ``principal`` lacks the scope.
        JobNotFoundError: any call that names a compaction that does not exist.
        JobChangedError: any call with ``versions`` if the compaction is at none of them.
    """

    def __init__(self, settings: Settings, *, warehouse: Warehouse, store: JobStore, launcher: Launcher) -> None:
        supervisor = JobSupervisor(
            COMPACTION,
            store,
            launcher,
            COMPACTION.open_folders(settings.home, settings.jobs_folder),
            max_running=_MAX_RUNNING,
            keep=timedelta(days=settings.keep_job_days),
        )
        super().__init__(COMPACTION, store, supervisor)
        self._warehouse = warehouse

    def check(self) -> None:
        """Check that the warehouse has tables that need compaction.

        Raises:
            RequestInvalidError: the warehouse compacts its tables by itself.
        """
        if self._warehouse.open_upkeep(None) is None:
            message = f"The warehouse {self._warehouse.name} compacts its tables by itself."
            raise RequestInvalidError.of("nothing_to_compact", message, "/kind")

    def create(
        self, tables: Sequence[str], *, principal: Principal, idempotency_key: str | None = None
    ) -> Compaction:
        """Create a PENDING compaction of these tables; a repeated key returns the first one.

        Raises:
            RequestInvalidError: the warehouse compacts its tables by itself.
            IdempotencyKeyReusedError: the key came before with other tables.
        """
        principal.require(RUN)
        self.check()
        request = {"tables": list(tables)}
        return self._insert(
            request,
            lambda job_id: {"id": job_id, **request, "warehouse": self._warehouse.to_json()},
            principal=principal,
            idempotency=Idempotency.of(idempotency_key, request),
        )

    def _show(self, job: Job) -> Compaction:
        return Compaction.from_job(job)

    def _require(self, principal: Principal, job: Job | None) -> None:  # noqa: ARG002 - all are alike
        principal.require(RUN)

    def _list_waiting(self) -> list[InboxItem]:
        """Return the failed compactions whose tables no later compaction has compacted."""
        states = (JobState.FAILED, JobState.SUCCEEDED)
        ended = list_ended(self._store, COMPACTION.name, states, now=datetime.now(UTC))
        return list_failures(ended, _makes_up_for)


def _makes_up_for(later: Job, failed: Job) -> bool:
    return set(failed.request["tables"]) <= set(later.request["tables"])
