"""Starts and follows the jobs of schedules, of all kinds, one for each slot."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from backfill.steer.service import BackfillService
from backup.compaction.service import CompactionService
from jobs.store import JobStore
from model.errors import JobNotFoundError, StreamSnapshotNotFoundError
from model.job import JobState
from model.manifest_record import RunState, ScheduleRun
from model.moment import render_moment
from model.principal import PLAN, ROLLOUTS_APPLY, RUN, STREAMS_OPERATE, Principal
from model.stream_options import StreamKind
from model.stream_snapshot import SnapshotState
from reporting.service import MergeService
from rollout.launching import TemplateService
from rollout.manifests.cron import parse_zone
from rollout.manifests.rollout import RolloutWanted
from rollout.manifests.schedule import Job
from rollout.manifests.slots import Slot, fill_request
from rollout.rollouts import RolloutService
from rollout.snapshots import SnapshotService

_SNAPSHOT: Final = "snapshot"
_ROLLOUT: Final = "rollout"
_ENDS: Final[Mapping[JobState, RunState]] = {
    JobState.SUCCEEDED: RunState.SUCCEEDED,
    JobState.FAILED: RunState.FAILED,
    JobState.CANCELLED: RunState.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class StartedJob:
    """The job of a run: its kind and its id, or the name of a stream."""

    kind: str
    id: str


def require_scope(kind: str, request: Mapping[str, Any], principal: Principal) -> None:
    """Check that the principal may start the job of a schedule or a template by itself.

    Raises:
        ForbiddenError: the principal may not.
    """
    if kind == "template":
        principal.require_any(PLAN, STREAMS_OPERATE, RUN)
    elif kind == _SNAPSHOT or kind in set(StreamKind):
        principal.require(STREAMS_OPERATE)
    elif kind == _ROLLOUT:
        principal.require(ROLLOUTS_APPLY)
    else:
        principal.require(RUN)
        if kind == "backfill":
            principal.require_topic(str(request.get("topic") or request.get("source_topic")))


def require_job(job: Job, principal: Principal) -> None:
    """Check that the principal may start this job of a schedule by itself; raises as :func:`require_scope`."""
    require_scope(job.kind, job.model_dump(mode="json")["request"], principal)


class ScheduledJobs:
    """Starts the jobs of runs by the service of their kind.

    The idempotency key is derived from the slot: a run that is started again after a crash gets the same job.
    """

    def __init__(
        self,
        store: JobStore,
        *,
        backfills: BackfillService,
        merges: MergeService,
        snapshots: SnapshotService,
        templates: TemplateService,
        rollouts: RolloutService,
        compactions: CompactionService,
    ) -> None:
        self._store = store
        self._backfills = backfills
        self._merges = merges
        self._snapshots = snapshots
        self._templates = templates
        self._rollouts = rollouts
        self._compactions = compactions

    def start(self, run: ScheduleRun, principal: Principal) -> StartedJob:
        """Create the run's job, or find it if it exists.

        Raises:
            RefeedError: as the service of its kind.
        """
        job = run.request["job"]
        kind, request = str(job["kind"]), job["request"]
        slot = Slot(run.slot_start, run.slot_end, parse_zone(run.request["time_zone"]))
        key = f"{run.schedule}-{render_moment(run.slot)}"
        if kind == "template":
            name = request["template"]
            declared = self._templates.read(name).parameters
            filled = fill_request(kind, request, slot, {each: found.type for each, found in declared.items()})
            parameters = filled["parameters"]
            made = self._templates.launch(name, parameters, principal=principal, idempotency_key=key, slot=slot)
            return StartedJob(made.kind, made.id)
        if kind in {"backfill", "merge"}:
            return StartedJob(
                kind, self._templates.create(kind, fill_request(kind, request, slot), principal, key)
            )
        if kind == "compaction":
            compaction = self._compactions.create(request["tables"], principal=principal, idempotency_key=key)
            return StartedJob(kind, compaction.id)
        if kind == _ROLLOUT:
            wanted = RolloutWanted.model_validate_json(json.dumps(request))
            begun = self._rollouts.begin(wanted, run.schedule, key, principal=principal)
            return StartedJob(kind, begun.id)
        snapshot = self._snapshots.create(
            request["stream"], with_source=request["with_source"], principal=principal, idempotency_key=key
        )
        return StartedJob(_SNAPSHOT, snapshot.id)

    def look(self, run: ScheduleRun) -> tuple[RunState, str | None]:
        """Return the state of the run's job, with the reason of a failure.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        assert run.job_id is not None, "it has a job"
        if run.job_kind == _SNAPSHOT:
            return self._look_at_snapshot(run.job_id)
        if run.job_kind in set(StreamKind):
            # A stream never ends by itself: the run has succeeded with the launch.
            return RunState.SUCCEEDED, None
        try:
            job = self._store.get(run.job_id)
        except JobNotFoundError:
            return RunState.CANCELLED, "Its job no longer exists."
        return _ENDS.get(job.state, RunState.RUNNING), None if job.error is None else job.error.message

    def _look_at_snapshot(self, snapshot_id: str) -> tuple[RunState, str | None]:
        try:
            found = self._store.get_snapshot(snapshot_id)
        except StreamSnapshotNotFoundError:
            return RunState.SUCCEEDED, "The snapshot was deleted."
        if found.state is SnapshotState.FAILED:
            return RunState.FAILED, None if found.error is None else found.error.message
        return RunState.RUNNING if found.state is SnapshotState.PENDING else RunState.SUCCEEDED, None
