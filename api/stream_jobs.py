"""Updates and rollbacks of streams as jobs; all jobs as one collection."""

from collections.abc import Callable
from typing import ClassVar

from api.schemas import StreamJobOut
from api.schemas_snapshots import RollbackOut
from api.schemas_updates import UpdateOut
from api.state import Services
from jobs.collection import JobCollection
from jobs.reader import JobReader
from jobs.store import Job, JobStore
from jobs.store.step_jobs import RESTORE, UPDATE
from jobs.store.stream_snapshots import restore_of
from jobs.store.stream_updates import update_of
from jobs.versions import Versions
from model.principal import ROLLOUTS_APPLY, STREAMS_OPERATE, STREAMS_READ, Principal
from model.stream_update import StreamUpdate
from rollout.shadow_work import show_update
from rollout.updates import UpdateService


class StreamJobs(JobReader[StreamJobOut]):
    """The jobs of one kind that agents carry out for streams; ``shape`` is read from ``view``."""

    scopes: ClassVar[tuple[str, ...]] = (STREAMS_READ,)

    def __init__(
        self, name: str, store: JobStore, shape: type[StreamJobOut], view: Callable[[Job, Principal], object]
    ) -> None:
        super().__init__(name, store)
        self._shape = shape
        self._view = view

    def show(self, job: Job, *, principal: Principal) -> StreamJobOut:
        """Return a job of the kind as the principal sees it."""
        shape = self._shape.model_validate(self._view(job, principal), from_attributes=True)
        return shape.model_copy(update={"etag": f'"{job.version}"'})


class UpdateJobs(StreamJobs):
    """The updates of streams, which can be taken back; who may apply rollouts sees what becomes of them."""

    scopes = (STREAMS_READ, ROLLOUTS_APPLY)

    def __init__(self, store: JobStore, updates: UpdateService) -> None:
        super().__init__(UPDATE, store, UpdateOut, lambda job, principal: show_update(update_of(job), principal))
        self._updates = updates

    def revert(self, job_id: str, *, principal: Principal, versions: Versions = None) -> StreamJobOut:
        """Take back what an update does or did; of an ended one, return the update that goes back.

        Raises:
            StreamStateError: it goes back already, has no way back, or something else runs since.
            JobChangedError: the update is at none of ``versions``.
        """
        return self._steer(self._updates.revert, job_id, principal, versions)

    def cancel(self, job_id: str, *, principal: Principal, versions: Versions = None) -> StreamJobOut:
        """Stop an update that has not ended; a new release without a way back stays.

        Raises:
            StreamStateError: it has ended, or goes back already.
            JobChangedError: the update is at none of ``versions``.
        """
        return self._steer(self._updates.cancel, job_id, principal, versions)

    def _steer(
        self, act: Callable[..., StreamUpdate], job_id: str, principal: Principal, versions: Versions
    ) -> StreamJobOut:
        principal.require_any(STREAMS_OPERATE, ROLLOUTS_APPLY)
        # Without one of this kind, there is no such job.
        self._get(job_id)
        made = act(job_id, principal=principal, versions=versions)
        return self.show(self._get(made.id), principal=principal)


def collect_jobs(services: Services) -> JobCollection:
    """Return the jobs of every kind."""
    updates = UpdateJobs(services.store, services.updates)
    restores = StreamJobs(RESTORE, services.store, RollbackOut, lambda job, _: restore_of(job))
    by_prefix = {service.kind.prefix: service for service in services.jobs}
    # Those of an earlier release were called approvals.
    changes = dict.fromkeys(("ch", "ap"), services.changes)
    # The id of an update that a manifest requested begins with "ro_".
    return JobCollection(services.store, {**by_prefix, "up": updates, "ro": updates, "rs": restores, **changes})
