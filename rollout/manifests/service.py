"""Lets callers plan, apply and remove manifests."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import time
from functools import partial
from typing import Final

import structlog

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
from model.manifest_record import ManifestRecord
from model.moment import render_moment
from model.plain_yaml import YamlDocument
from model.principal import READ, ROLLOUTS_APPLY, RUN, SCHEDULES_APPLY, STREAMS_READ, Principal
from model.rollout_record import NewRollout
from model.stream_update import StreamUpdate, UpdateState
from rollout.manifests import rollout, schedule, template
from rollout.manifests.job_gate import JobGate
from rollout.manifests.lookup import find_manifest, get_manifest
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
    check_versions,
    plan_change,
    refuse_all,
)
from rollout.manifests.rollout import RolloutManifest
from rollout.manifests.schedule import CompactionJob, RolloutJob, ScheduleManifest, read_schedule
from rollout.manifests.scheduled_jobs import require_job, require_scope
from rollout.manifests.template import TemplateManifest
from rollout.rollouts import RolloutService
from rollout.shadow_work import show_update
from sql.worker import GateUnavailableError

# The owner of manifests that callers apply.
API: Final = "api"
# kind -> the scope that applies and removes it
_SCOPES: Final = {
    schedule.KIND: SCHEDULES_APPLY,
    template.KIND: SCHEDULES_APPLY,
    rollout.KIND: ROLLOUTS_APPLY,
}
# Errors that are not about the manifest: a later call may succeed.
_UNANSWERED: Final = (StoreError, WarehouseError, GateUnavailableError)
_TIMING: Final = ("cron", "time_zone", "start", "end")
_LOG: Final = structlog.get_logger()


class ManifestService:
    """Stores manifests; the schedulers carry out schedules, and the agents carry out the updates of rollouts.

    A name belongs to the source that applied it first; only this source changes or removes it. A schedule starts
    its jobs with the scopes and topics of the last caller that applied it. Applying the manifest of a rollout
    begins the rollout, once for the same content. ``check_compaction`` raises if the warehouse has nothing to
    compact.

    Raises:
        ForbiddenError: any call whose ``principal`` lacks the scope.
        ManifestNotFoundError: any call that names a manifest that does not exist.
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

        ``prune`` also removes manifests that callers of the API applied and that are not in the text. All checks
        come before the transaction with all changes; if a manifest changes in between, nothing is applied.

        Raises:
            ManifestInvalidError: the text can't be read, or, without ``validate_only``, a document has faults.
            ManifestChangedError: ``plan_hash`` is of another plan, or the manifest is at none of ``versions``.
            RequestInvalidError: a prune without ``plan_hash``, or ``versions`` with several manifests.
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
        doubles = find_doubles({name: change.manifest for name, change in changes.items()}, self._store)
        plans = [
            replace(change.plan, warnings=(*change.plan.warnings, *doubles.get(name, ())))
            for name, change in changes.items()
        ]
        plan = ManifestsPlan(tuple(plans), tuple(refused))
        if refused and not validate_only:
            raise refuse_all(refused, changes)
        if plan_hash not in {None, plan.hash}:
            raise ManifestChangedError("The manifests have changed since you made the plan. Plan again.")
        if refused:
            return plan

        def carry_out() -> dict[str, ManifestRecord]:
            # Sorted, so that every caller locks the rows in the same order.
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
        """Create or change the manifest, and return it.

        The same content again changes nothing. A change of cron, zone, start or end makes no past slot due.
        ``holder`` is the replica that watches ``source``, if the source is an upload.

        Raises:
            ManifestInvalidError: the manifest has faults; the details have all of them.
            ManifestOwnedError: the name belongs to another source.
            LeaseLostError: ``holder`` does not watch the source any more.
            UpdateInProgressError: a rollout of the manifest has not ended.
            RefeedError: a rollout can't begin, as :meth:`RolloutService.prepare`, or another update runs.
        """
        principal.require_any(*_SCOPES.values())
        change = self._check(parse_manifest(content, name), principal)
        record = self._carry_out(change, principal, source, holder)
        _LOG.info("manifest_applied", manifest=name, version=record.version, by=principal.name)
        return record

    def remove(self, name: str, *, principal: Principal, versions: Versions = None) -> ManifestRecord:
        """Remove a manifest; running jobs of a schedule continue, and runs that have not begun are dropped.

        Removing a rollout changes no stream. An uploaded manifest can be removed after its file is deleted, or if
        no replica watches its folder or bucket.

        Raises:
            ManifestOwnedError: the name belongs to another source.
            ManifestChangedError: the manifest is at none of ``versions``.
            UpdateInProgressError: a rollout of the manifest has not ended.
        """
        principal.require_any(*_SCOPES.values())
        record = get_manifest(self._store, name)
        principal.require(_SCOPES[record.kind])
        check_versions(name, record, versions)
        removed = self._carry_out(ManifestChange(plan_change(name, None, record)), principal)
        _LOG.info("manifest_removed", manifest=name, by=principal.name)
        return removed

    def get(self, name: str, *, principal: Principal) -> ManifestRecord:
        """Return the manifest as it was applied."""
        principal.require_any(READ, STREAMS_READ, *_SCOPES.values())
        record = get_manifest(self._store, name)
        principal.require_any(*_sight_of(record))
        return record

    def find_changes(self, record: ManifestRecord) -> tuple[HistoryEvent | None, HistoryEvent | None]:
        """Return the events of the last apply and of the last change; None is unknown."""
        return self._store.find_manifest_changes(record.name)

    def list_manifests(self, *, principal: Principal) -> list[ManifestRecord]:
        """Return all manifests that ``principal`` may see, sorted by name."""
        principal.require_any(READ, STREAMS_READ, *_SCOPES.values())
        return [each for each in self._store.list_manifests() if any(map(principal.may, _sight_of(each)))]

    def keep_nightly_merge(self, at: time | None) -> None:
        """Create, change or (with None) remove the schedule of REFEED_MERGE_AT.

        A schedule with the same name that a person applied stays unchanged.
        """
        try:
            if at is None:
                self._store.remove_manifest(NIGHTLY_MERGE, source=SETTINGS)
            else:
                manifest = nightly_merge(at)
                self._put(manifest, Principal(SETTINGS, frozenset({RUN})), SETTINGS, None)
                for each in find_doubles({NIGHTLY_MERGE: manifest}, self._store)[NIGHTLY_MERGE]:
                    _LOG.warning("merge_scheduled_twice", schedule=NIGHTLY_MERGE, problem=each["message"])
        except ManifestNotFoundError:
            return
        except ManifestOwnedError as exc:
            _LOG.info("the schedule of REFEED_MERGE_AT was not created", problem=exc.message)

    def find_update(self, record: ManifestRecord, *, principal: Principal) -> StreamUpdate | None:
        """Return the newest update that applying the manifest began, or None."""
        found = self._store.list_updates(manifest=record.name) if record.kind == rollout.KIND else ()
        return show_update(found[0], principal) if found else None

    def _check(
        self, manifest: Manifest, principal: Principal, *, versions: Versions = None, validate_only: bool = False
    ) -> ManifestChange:
        """Return what applying the manifest would change, after every check that needs no transaction.

        With ``validate_only``, the caller may lack the scopes that applying it needs.
        """
        record = find_manifest(self._store, manifest.name)
        if not validate_only:
            for kind in {manifest.kind, *(() if record is None else (record.kind,))}:
                principal.require(_SCOPES[kind])
            if isinstance(manifest.spec, ScheduleManifest):
                require_job(manifest.spec.job, principal)
        check_versions(manifest.name, record, versions)
        plan = plan_change(manifest.name, manifest, record)
        if plan.action == "none":
            assert record is not None, "it has the same content"
            # What was applied stays good: nothing is asked about it again.
            return ManifestChange(replace(plan, note=self._note(record, principal)), manifest)
        if isinstance(manifest.spec, TemplateManifest) and not validate_only:
            self._require_launch(manifest.spec, principal)
        findings = () if self._queries is None else tuple(self._queries.check(manifest))
        rollout = self._prepare(manifest, None if validate_only else principal)
        return ManifestChange(replace(plan, warnings=findings), manifest, rollout)

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

    def _prepare(self, manifest: Manifest, principal: Principal | None) -> NewRollout | None:
        """Return the rollout that begins with the manifest, None where none does; one of a schedule is checked."""
        match manifest.spec:
            case RolloutManifest() as wanted:
                return self._rollouts.prepare(wanted, manifest.name, principal)
            case ScheduleManifest(job=RolloutJob() as job):
                self._rollouts.prepare(job.request, manifest.name, principal, pointer="/job/request")
            case ScheduleManifest(job=CompactionJob()):
                self._check_compaction()
        return None

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


def _sight_of(record: ManifestRecord) -> tuple[str, ...]:
    """Return the scopes of which one is enough to see a manifest: who launches streams sees their templates."""
    of_streams = (STREAMS_READ,) if record.kind == template.KIND else ()
    return (READ, *of_streams, *_SCOPES.values())
