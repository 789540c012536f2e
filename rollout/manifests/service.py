"""Manifests as callers plan, apply and remove them by their names, and the schedules that they make."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, time, timedelta
from functools import partial
from itertools import islice
from typing import Final

import structlog

from jobs.inbox_items import FAILURE_DAYS, InboxItem
from jobs.store import JobStore
from jobs.versions import Versions
from model.errors import (
    ManifestChangedError,
    ManifestInvalidError,
    ManifestNotFoundError,
    ManifestOwnedError,
    RefeedError,
    StoreError,
    WarehouseError,
)
from model.event import HistoryEvent
from model.job import JobState
from model.manifest_record import ManifestRecord, ScheduleRun, Settlement
from model.moment import render_moment
from model.naming import did_you_mean
from model.plain_yaml import YamlDocument
from model.principal import READ, ROLLOUTS_APPLY, RUN, SCHEDULES_APPLY, STREAMS_READ, Principal
from model.rollout_record import NewRollout
from model.stream_update import StreamUpdate, UpdateState
from rollout.manifests import rollout, schedule, template
from rollout.manifests.job_gate import JobGate
from rollout.manifests.manifest import (
    Manifest,
    parse_manifest,
    place_fault,
    read_manifest,
    refuse,
    split_manifests,
)
from rollout.manifests.nightly_merge import NIGHTLY_MERGE, SETTINGS, find_doubles, nightly_merge
from rollout.manifests.plan import (
    ManifestChange,
    ManifestsPlan,
    RefusedManifest,
    check_choices,
    plan_change,
    refuse_all,
)
from rollout.manifests.rollout import RolloutManifest
from rollout.manifests.schedule import CompactionJob, RolloutJob, ScheduleManifest, read_schedule
from rollout.manifests.scheduled_jobs import require_scope
from rollout.manifests.scheduler import settle_now
from rollout.manifests.template import TemplateManifest
from rollout.rollouts import RolloutService
from rollout.shadow_work import show_update
from sql.worker import GateUnavailableError

# Who owns what callers apply.
API: Final = "api"
_SHOWN_SLOTS: Final = 5
_SHOWN_RUNS: Final = 10
# kind -> the scope that applies and removes it
_SCOPES: Final = {
    schedule.KIND: SCHEDULES_APPLY,
    template.KIND: SCHEDULES_APPLY,
    rollout.KIND: ROLLOUTS_APPLY,
}
# They say nothing about a manifest: the same call may be answered later.
_UNANSWERED: Final = (StoreError, WarehouseError, GateUnavailableError)
_TIMING: Final = ("cron", "time_zone", "start", "end")
_LOG: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule with its next slots, and its last runs, newest first."""

    record: ManifestRecord
    spec: ScheduleManifest
    next_slots: tuple[datetime, ...]
    runs: tuple[ScheduleRun, ...]


class ManifestService:
    """Keeps manifests; the schedulers carry out schedules, and agents the updates that rollouts are.

    A name belongs to the source that applied it first, and only that one changes or removes it. A schedule starts
    its jobs with the scopes and topics of who applied it last. A rollout begins with its manifest, once for its
    content. ``check_compaction`` raises where the warehouse has nothing to compact.

    Raises:
        ForbiddenError: any call whose ``principal`` lacks the scope.
        ManifestNotFoundError: any call that names a manifest that is not there.
    """

    def __init__(
        self,
        store: JobStore,
        *,
        rollouts: RolloutService | None = None,
        queries: JobGate | None = None,
        check_compaction: Callable[[], object] = lambda: None,
    ) -> None:
        self._store = store
        self._rollouts = rollouts or RolloutService(store)
        self._queries = queries
        self._check_compaction = check_compaction

    def apply_all(
        self,
        content: bytes,
        *,
        principal: Principal,
        validate_only: bool = False,
        prune: bool = False,
        plan_hash: str | None = None,
        versions: Versions = None,
    ) -> ManifestsPlan:
        """Apply every manifest of a text, or none; with ``validate_only`` only return the plan.

        With ``prune``, what callers of the API applied and the text does not name is removed as well. All checks
        come before the one transaction that changes everything, so a manifest that changes in between undoes all.

        Raises:
            ManifestInvalidError: the text can't be read; with ``validate_only``, faults of one document do not
                raise, and the plan has them.
            ManifestChangedError: ``plan_hash`` stands for something else, or it is at none of ``versions``.
            RequestInvalidError: a prune without ``plan_hash``, or ``versions`` of several manifests.
            RefeedError: as :meth:`apply`; nothing is applied.
        """
        principal.require_any(*((READ,) if validate_only else ()), *_SCOPES.values())
        documents = split_manifests(content)
        check_choices(
            len(documents), is_planned=validate_only or plan_hash is not None, prune=prune, versions=versions
        )
        changes, refused = self._check_all(documents, principal, versions, validate_only=validate_only)
        if prune:
            named = {*changes, *(each.name for each in refused)}
            changes |= self._removals(named, principal, validate_only=validate_only)
        plan = ManifestsPlan(tuple(change.plan for change in changes.values()), tuple(refused))
        if refused and not validate_only:
            raise refuse_all(refused, changes)
        if plan_hash not in {None, plan.hash}:
            raise ManifestChangedError("The manifests have changed since you made the plan. Plan again.")
        if refused:
            return plan

        def carry_out() -> dict[str, ManifestRecord]:
            # Every caller locks the rows in the same order.
            return {name: self._carry_out(changes[name], principal) for name in sorted(changes)}

        if validate_only:
            self._store.rehearse(carry_out)
            return plan
        with self._store.together():
            records = carry_out()
        for each in plan.plans:
            version = records[each.name].version
            if each.action == "remove":
                _LOG.info("manifest_removed", manifest=each.name, by=principal.name)
            else:
                _LOG.info("manifest_applied", manifest=each.name, version=version, by=principal.name)
        return replace(
            plan,
            plans=tuple(
                replace(
                    each,
                    record=records[each.name],
                    update=self.find_update(records[each.name], principal=principal),
                )
                for each in plan.plans
            ),
        )

    def apply(
        self, name: str, content: bytes, *, principal: Principal, source: str = API, holder: str | None = None
    ) -> ManifestRecord:
        """Create or change what the manifest describes, and return it.

        The same content again changes nothing. Another cron, zone, start or end makes no slot due that is past.
        ``holder`` is the replica that watches ``source``, where that is one of uploads.

        Raises:
            ManifestInvalidError: it has faults; all of them are in the details.
            ManifestOwnedError: the name belongs to another source.
            LeaseLostError: ``holder`` does not watch the source any more.
            UpdateInProgressError: a rollout of it has not ended.
            RefeedError: a rollout can't begin, as :meth:`RolloutService.prepare`, or something else runs.
        """
        principal.require_any(*_SCOPES.values())
        change = self._check(parse_manifest(content, name), principal)
        record = self._carry_out(change, principal, source, holder)
        _LOG.info("manifest_applied", manifest=name, version=record.version, by=principal.name)
        return record

    def remove(self, name: str, *, principal: Principal, versions: Versions = None) -> ManifestRecord:
        """Remove a manifest; of a schedule, what runs ends by itself, and what has not begun never does.

        Of a rollout nothing that runs changes. One that came by upload can be removed once its file has gone, or
        nobody watches its folder or bucket.

        Raises:
            ManifestOwnedError: the name belongs to another source.
            ManifestChangedError: it is at none of ``versions``.
            UpdateInProgressError: a rollout of it has not ended.
        """
        principal.require_any(*_SCOPES.values())
        record = self._get(name)
        principal.require(_SCOPES[record.kind])
        _check_versions(name, record, versions)
        removed = self._carry_out(ManifestChange(plan_change(name, None, record)), principal)
        _LOG.info("manifest_removed", manifest=name, by=principal.name)
        return removed

    def get(self, name: str, *, principal: Principal) -> ManifestRecord:
        """Return the manifest as it was applied."""
        principal.require_any(READ, STREAMS_READ, *_SCOPES.values())
        record = self._get(name)
        principal.require_any(*_sight_of(record))
        return record

    def find_changes(self, record: ManifestRecord) -> tuple[HistoryEvent | None, HistoryEvent | None]:
        """Return when the manifest was applied last, and its last change; None is unknown."""
        return self._store.find_manifest_changes(record.name)

    def list_manifests(self, *, principal: Principal) -> list[ManifestRecord]:
        """Return all manifests that ``principal`` may see, by name."""
        principal.require_any(READ, STREAMS_READ, *_SCOPES.values())
        return [each for each in self._store.list_manifests() if any(map(principal.may, _sight_of(each)))]

    def list_schedules(self, *, principal: Principal) -> list[Schedule]:
        """Return all schedules, by name."""
        principal.require_any(READ, SCHEDULES_APPLY)
        return [self._show(record) for record in self._store.list_manifests(kind=schedule.KIND)]

    def get_schedule(self, name: str, *, principal: Principal) -> Schedule:
        """Return the schedule."""
        principal.require_any(READ, SCHEDULES_APPLY)
        return self._show(self._get_schedule(name))

    def list_inbox(self, *, principal: Principal) -> list[InboxItem]:
        """Return schedules whose last run, in the last seven days, could not start its job.

        A job that failed is in the inbox itself.
        """
        principal.require_any(READ, SCHEDULES_APPLY)
        runs = self._store.list_unstarted(self._store.now() - timedelta(days=FAILURE_DAYS))
        living = {record.name for record in self._store.list_manifests(kind=schedule.KIND)} if runs else set()
        return [_unstarted_item(run) for run in runs if run.schedule in living]

    def pause(self, name: str, *, principal: Principal, versions: Versions = None) -> Schedule:
        """Let no slot of the schedule be due until :meth:`resume`; what runs goes on.

        Raises:
            ManifestChangedError: it is at none of ``versions``; so :meth:`resume` and :meth:`run`.
        """
        return self._pause(name, f"{principal.name} paused it.", principal, versions)

    def resume(self, name: str, *, principal: Principal, versions: Versions = None) -> Schedule:
        """Let slots be due from now on; those of the pause are not made up for.

        Raises:
            ForbiddenError: ``principal`` may not do itself what the job does.
        """
        principal.require(SCHEDULES_APPLY)
        _require_job(read_schedule(self._get_schedule(name).document), principal)
        return self._pause(name, None, principal, versions)

    def _pause(self, name: str, why: str | None, principal: Principal, versions: Versions) -> Schedule:
        principal.require(SCHEDULES_APPLY)
        record = self._get_schedule(name)
        _check_versions(name, record, versions)
        expected = None if versions is None else record.version
        changed = self._store.pause_schedule(
            name, why, actor=principal.name, expected_version=expected, name_passed=_name_passed
        )
        return self._show(changed)

    def run(
        self, name: str, *, principal: Principal, idempotency_key: str | None = None, versions: Versions = None
    ) -> ScheduleRun:
        """Run the schedule's job now, as ``principal`` and for the newest slot that has ended.

        A paused one runs too. Beside a run that has not ended the overlap decides as about a slot. The same key
        gives back the first run.

        Raises:
            ForbiddenError: ``principal`` may not do itself what the job does.
        """
        principal.require(SCHEDULES_APPLY)
        self._get_schedule(name)

        def choose(record: ManifestRecord, now: datetime, living: Sequence[ScheduleRun]) -> Settlement:
            _check_versions(name, record, versions)
            spec = read_schedule(record.document)
            _require_job(spec, principal)
            return settle_now(spec, now, living, principal)

        made = self._store.add_run(name, choose, actor=principal.name, idempotency_key=idempotency_key)
        _LOG.info("schedule_run_asked", schedule=name, slot=made.slot.isoformat(), by=principal.name)
        return made

    def keep_nightly_merge(self, at: time | None) -> None:
        """Have the schedule that REFEED_MERGE_AT is short for, or none with None.

        A person's schedule of the same name stays as it is.
        """
        try:
            if at is None:
                self._store.remove_manifest(NIGHTLY_MERGE, source=SETTINGS)
            else:
                manifest = nightly_merge(at)
                self._put(manifest, Principal(SETTINGS, frozenset({RUN})), SETTINGS, None)
                for each in find_doubles(manifest, self._store):
                    _LOG.warning("merge_scheduled_twice", schedule=NIGHTLY_MERGE, problem=each["message"])
        except ManifestNotFoundError:
            return
        except ManifestOwnedError as exc:
            _LOG.info("the schedule of REFEED_MERGE_AT was not created", problem=exc.message)

    def find_update(self, record: ManifestRecord, *, principal: Principal) -> StreamUpdate | None:
        """Return the newest update that applying the manifest began; None where it began none."""
        found = self._store.list_updates(manifest=record.name) if record.kind == rollout.KIND else ()
        return show_update(found[0], principal) if found else None

    def _check(
        self, manifest: Manifest, principal: Principal, *, versions: Versions = None, validate_only: bool = False
    ) -> ManifestChange:
        """Return what applying the manifest would change, after every check that needs no transaction.

        With ``validate_only``, the caller may lack the scopes that applying it needs.
        """
        record = self._find(manifest.name)
        if not validate_only:
            for kind in {manifest.kind, *(() if record is None else (record.kind,))}:
                principal.require(_SCOPES[kind])
            if isinstance(manifest.spec, ScheduleManifest):
                _require_job(manifest.spec, principal)
        _check_versions(manifest.name, record, versions)
        plan = plan_change(manifest.name, manifest, record)
        # A schedule that merges the same may be newer than this one.
        doubles = find_doubles(manifest, self._store)
        if plan.action == "none":
            # What was applied stays good: nothing is asked about it again.
            note = None if record is None else self._note(record, principal)
            return ManifestChange(replace(plan, note=note, warnings=doubles), manifest)
        if isinstance(manifest.spec, TemplateManifest) and not validate_only:
            self._require_launch(manifest.spec, principal)
        findings = () if self._queries is None else self._queries.check(manifest)
        plan = replace(plan, warnings=(*findings, *doubles))
        return ManifestChange(plan, manifest, self._prepare(manifest))

    def _require_launch(self, spec: TemplateManifest, principal: Principal) -> None:
        """Raise unless ``principal`` may do what the template launches, if a schedule does so with its rights."""
        jobs = [record.document.get("job", {}) for record in self._store.list_manifests(kind=schedule.KIND)]
        if spec.name in [job["request"].get("template") for job in jobs if job.get("kind") == "template"]:
            require_scope(spec.launch.kind, spec.launch.request, principal)

    def _check_all(
        self, documents: Sequence[YamlDocument], principal: Principal, versions: Versions, *, validate_only: bool
    ) -> tuple[dict[str, ManifestChange], list[RefusedManifest]]:
        """Return the changes that could each be made now, and the documents that are refused."""
        changes: dict[str, ManifestChange] = {}
        refused: list[RefusedManifest] = []
        for source in documents:
            try:
                manifest = read_manifest(source)
                name = manifest.name
                if name in changes:
                    raise refuse([place_fault(source, ("name",), f"Several manifests have the name {name}.")])
                change = self._check(manifest, principal, versions=versions, validate_only=validate_only)
                self._store.rehearse(partial(self._carry_out, change, principal))
                changes[name] = change
            except _UNANSWERED:
                raise
            except RefeedError as exc:
                refused.append(RefusedManifest.of(source, exc))
        return changes, refused

    def _removals(
        self, keep: Collection[str | None], principal: Principal, *, validate_only: bool
    ) -> dict[str, ManifestChange]:
        """Return the removals of everything that callers of the API applied and ``keep`` does not name."""
        records = [each for each in self._store.list_manifests() if each.source == API and each.name not in keep]
        if not validate_only:
            for record in records:
                principal.require(_SCOPES[record.kind])
        return {each.name: ManifestChange(plan_change(each.name, None, each)) for each in records}

    def _carry_out(
        self, change: ManifestChange, principal: Principal, source: str = API, holder: str | None = None
    ) -> ManifestRecord:
        name, version = change.plan.name, change.plan.version
        if change.manifest is None:
            return self._store.remove_manifest(name, source=source, actor=principal.name, expected_version=version)
        return self._put(change.manifest, principal, source, version, holder, rollout=change.rollout)

    def _prepare(self, manifest: Manifest) -> NewRollout | None:
        """Return the rollout that begins with the manifest, None where none does; one of a schedule is checked."""
        if isinstance(manifest.spec, ScheduleManifest):
            if isinstance(manifest.spec.job, RolloutJob):
                self._rollouts.check(manifest.spec.job.request, manifest.name, pointer="/job/request")
            elif isinstance(manifest.spec.job, CompactionJob):
                self._check_compaction()
            return None
        if not isinstance(manifest.spec, RolloutManifest):
            return None
        return self._rollouts.prepare(manifest.spec, manifest.name)

    def _put(
        self,
        manifest: Manifest,
        principal: Principal,
        source: str,
        version: int | None,
        holder: str | None = None,
        *,
        rollout: NewRollout | None = None,
    ) -> ManifestRecord:
        def keeps_slots(before: ManifestRecord) -> bool:
            if not before.kind == manifest.kind == schedule.KIND:
                return False
            try:
                spec = read_schedule(before.document)
            except ManifestInvalidError:
                # Of another release: nobody knows which slots it meant.
                return False
            return all(getattr(spec, name) == getattr(manifest.spec, name) for name in _TIMING)

        return self._store.put_manifest(
            manifest.name,
            manifest.kind,
            manifest.document,
            manifest.digest,
            source=source,
            principal=principal,
            keeps_slots=keeps_slots,
            expected_version=version,
            holder=holder,
            rollout=rollout,
        )

    def _note(self, record: ManifestRecord, principal: Principal) -> str | None:
        """Return what became of the rollout whose content is applied again."""
        last = self.find_update(record, principal=principal)
        if last is None:
            return None
        if not last.state.is_ended:
            return f"{last.id} is {last.state}."
        at = "" if last.finished_at is None else f" at {render_moment(last.finished_at)}"
        why = "" if last.error is None else f": {last.error.message}"
        said = f"{last.id} was {last.state}{at}{why}"
        if last.state is UpdateState.STABLE and last.reverses is None:
            return f"{said.rstrip('.')}."
        return f"{said.rstrip('.')}. Refeed tries the file again when its content changes."

    def _show(self, record: ManifestRecord) -> Schedule:
        spec = read_schedule(record.document)
        since = max(record.settled_until, self._store.now())
        slots = () if record.paused is not None else tuple(islice(spec.timing().after(since), _SHOWN_SLOTS))
        return Schedule(record, spec, slots, tuple(self._store.list_runs(record.name, limit=_SHOWN_RUNS)))

    def _find(self, name: str) -> ManifestRecord | None:
        try:
            return self._store.get_manifest(name)
        except ManifestNotFoundError:
            return None

    def _get(self, name: str) -> ManifestRecord:
        found = self._find(name)
        if found is None:
            raise self._unknown(name)
        return found

    def _get_schedule(self, name: str) -> ManifestRecord:
        found = self._find(name)
        if found is None:
            raise self._unknown(name, schedule.KIND)
        if found.kind != schedule.KIND:
            raise ManifestNotFoundError(f"{name} is a {found.kind}, not a schedule.", name=name)
        return found

    def _unknown(self, name: str, kind: str | None = None) -> ManifestNotFoundError:
        meant = did_you_mean(name, [record.name for record in self._store.list_manifests(kind=kind)])
        noun = "manifest" if kind is None else kind.lower()
        return ManifestNotFoundError(f"There is no {noun} {name[:80]}.{meant}", name=name[:80])


def _require_job(spec: ScheduleManifest, principal: Principal) -> None:
    require_scope(spec.job.kind, spec.job.model_dump(mode="json")["request"], principal)


def _sight_of(record: ManifestRecord) -> tuple[str, ...]:
    """Return the scopes of which one is enough to see a manifest: who launches streams sees their templates."""
    of_streams = (STREAMS_READ,) if record.kind == template.KIND else ()
    return (READ, *of_streams, *_SCOPES.values())


def _check_versions(name: str, record: ManifestRecord | None, versions: Versions) -> None:
    if versions is not None and (record is None or record.version not in versions):
        raise ManifestChangedError(f"{name} has changed since you read it.", name=name)


def _name_passed(record: ManifestRecord, now: datetime) -> str | None:
    return read_schedule(record.document).timing().name_slots(record.settled_until, now)


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
