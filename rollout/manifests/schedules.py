"""Lets callers list, pause, resume and run schedules."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

import structlog

from jobs.inbox_items import FAILURE_DAYS, InboxItem
from jobs.store import JobStore
from jobs.versions import Versions
from model.job import JobState
from model.manifest_record import ManifestRecord, ScheduleRun, Settlement
from model.principal import READ, SCHEDULES_APPLY, Principal
from rollout.manifests.lookup import get_manifest
from rollout.manifests.plan import check_versions
from rollout.manifests.schedule import KIND, ScheduleManifest, read_schedule
from rollout.manifests.scheduled_jobs import require_job
from rollout.manifests.scheduler import settle_now

_SHOWN_SLOTS: Final = 5
_SHOWN_RUNS: Final = 10
_LOG: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule with its next slots, and its last runs, newest first."""

    record: ManifestRecord
    spec: ScheduleManifest
    next_slots: tuple[datetime, ...]
    runs: tuple[ScheduleRun, ...]


class ScheduleService:
    """Writes requests about schedules into the job store; the schedulers carry them out.

    Raises:
        ForbiddenError: any call whose ``principal`` lacks the scope.
        ManifestNotFoundError: any call that names a schedule that does not exist.
        ManifestChangedError: any call with ``versions``, if the schedule is at none of them.
    """

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def list_schedules(self, *, principal: Principal) -> list[Schedule]:
        """Return all schedules, sorted by name."""
        principal.require_any(READ, SCHEDULES_APPLY)
        return [self._show(record) for record in self._store.list_manifests(kind=KIND)]

    def get(self, name: str, *, principal: Principal) -> Schedule:
        """Return the schedule."""
        principal.require_any(READ, SCHEDULES_APPLY)
        return self._show(get_manifest(self._store, name, KIND))

    def list_inbox(self, *, principal: Principal) -> list[InboxItem]:
        """Return schedules whose last run, in the last seven days, could not start its job.

        A failed job has its own inbox item.
        """
        principal.require_any(READ, SCHEDULES_APPLY)
        runs = self._store.list_unstarted(self._store.now() - timedelta(days=FAILURE_DAYS))
        living = {record.name for record in self._store.list_manifests(kind=KIND)} if runs else set()
        return [_unstarted_item(run) for run in runs if run.schedule in living]

    def pause(self, name: str, *, principal: Principal, versions: Versions = None) -> Schedule:
        """Skip the slots of the schedule until :meth:`resume`; running jobs continue."""
        principal.require(SCHEDULES_APPLY)
        record = get_manifest(self._store, name, KIND)
        return self._pause(record, f"{principal.name} paused it.", principal, versions)

    def resume(self, name: str, *, principal: Principal, versions: Versions = None) -> Schedule:
        """Make slots due from now on; slots of the pause stay skipped.

        Raises:
            ForbiddenError: ``principal`` may not start the job by itself.
        """
        principal.require(SCHEDULES_APPLY)
        record = get_manifest(self._store, name, KIND)
        spec = read_schedule(record.document)
        require_job(spec.job, principal)
        passed = spec.timing().name_slots(record.settled_until, self._store.now())
        note = f"{passed[0].upper()}{passed[1:]} passed in the pause." if passed else ""
        return self._pause(record, None, principal, versions, note=note)

    def run(
        self, name: str, *, principal: Principal, idempotency_key: str | None = None, versions: Versions = None
    ) -> ScheduleRun:
        """Run the schedule's job now, as ``principal`` and for the newest slot that has ended.

        A paused schedule runs too. If a run has not ended, the overlap decides as about a slot. A repeated key
        returns the first run.

        Raises:
            ForbiddenError: ``principal`` may not start the job by itself.
        """
        principal.require(SCHEDULES_APPLY)
        get_manifest(self._store, name, KIND)

        def choose(record: ManifestRecord, now: datetime, living: Sequence[ScheduleRun]) -> Settlement:
            check_versions(name, record, versions)
            spec = read_schedule(record.document)
            require_job(spec.job, principal)
            return settle_now(spec, now, living, principal)

        made = self._store.add_run(name, choose, actor=principal.name, idempotency_key=idempotency_key)
        _LOG.info("schedule_run_asked", schedule=name, slot=made.slot.isoformat(), by=principal.name)
        return made

    def _pause(
        self, record: ManifestRecord, why: str | None, principal: Principal, versions: Versions, *, note: str = ""
    ) -> Schedule:
        check_versions(record.name, record, versions)
        expected = None if versions is None else record.version
        changed = self._store.pause_schedule(
            record.name, why, actor=principal.name, note=note, expected_version=expected
        )
        return self._show(changed)

    def _show(self, record: ManifestRecord) -> Schedule:
        spec = read_schedule(record.document)
        since = max(record.settled_until, self._store.now())
        slots = () if record.paused is not None else tuple(islice(spec.timing().after(since), _SHOWN_SLOTS))
        return Schedule(record, spec, slots, tuple(self._store.list_runs(record.name, limit=_SHOWN_RUNS)))


def _unstarted_item(run: ScheduleRun) -> InboxItem:
    message = f"The run of {run.slot:%Y-%m-%dT%H:%MZ} could not start its job: {run.why or 'nobody knows why'}"
    return InboxItem(
        "failure",
        "schedule",
        run.schedule,
        JobState.FAILED,
        None,
        f"schedule:{run.schedule}",
        run.finished_at,
        message,
    )
