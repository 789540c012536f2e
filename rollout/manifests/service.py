"""Manifests as callers plan, apply and remove them by their names, and the schedules that they make."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from itertools import islice
from typing import Any, Final, Literal

import structlog

from jobs.store import JobStore
from model.errors import ManifestChangedError, ManifestNotFoundError, ManifestOwnedError
from model.manifest_record import ManifestRecord, ScheduleRun
from model.naming import did_you_mean
from model.principal import READ, RUN, SCHEDULES_APPLY, Principal
from rollout.manifests.manifest import Manifest, ScheduleManifest, digest_of, parse_manifest, read_spec
from rollout.manifests.scheduled_jobs import require_scope
from rollout.manifests.scheduler import KIND

# Who owns what callers apply, and the schedule that the settings make.
API: Final = "api"
SETTINGS: Final = "REFEED_MERGE_AT"
NIGHTLY_MERGE: Final = "nightly-merge"
_SHOWN_SLOTS: Final = 5
_SHOWN_RUNS: Final = 10
_TIMING: Final = ("cron", "time_zone", "start", "end")
_DAY: Final = timedelta(days=1)
_LOG: Final = structlog.get_logger()

Action = Literal["create", "update", "none", "remove"]


@dataclass(frozen=True, slots=True)
class ValueChange:
    """A value that changes, by its JSON pointer; None where there is none."""

    pointer: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class ManifestPlan:
    """What applying or removing a manifest would change; ``hash`` stands for exactly this."""

    name: str
    kind: str
    action: Action
    differences: tuple[ValueChange, ...]
    version: int
    hash: str


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule with its next slots, and its last runs, newest first."""

    record: ManifestRecord
    spec: ScheduleManifest
    next_slots: tuple[datetime, ...]
    runs: tuple[ScheduleRun, ...]


class ManifestService:
    """Keeps manifests; the scheduler of every replica does what they say.

    A name belongs to the source that applied it first, and only that one changes or removes it. A schedule starts
    its jobs with the scopes and topics of who applied it last.

    Raises:
        ForbiddenError: any call whose ``principal`` lacks the scope.
        ManifestNotFoundError: any call that names a manifest that is not there.
    """

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def plan(self, name: str, content: bytes | None, *, principal: Principal) -> ManifestPlan:
        """Return what applying ``content`` under this name would change; None is for its removal.

        Raises:
            ManifestInvalidError: it has faults; all of them are in the details.
        """
        principal.require_any(READ, SCHEDULES_APPLY)
        manifest = None if content is None else parse_manifest(content, name)
        return self._plan(name, manifest, self._find(name))

    def apply(
        self,
        name: str,
        content: bytes,
        *,
        principal: Principal,
        plan_hash: str | None = None,
        source: str = API,
    ) -> tuple[ManifestRecord, ManifestPlan]:
        """Create or change what the manifest describes, and return it with what has changed.

        The same content again changes nothing. Another cron, zone, start or end makes no slot due that is past.

        Raises:
            ManifestInvalidError: it has faults; all of them are in the details.
            ManifestOwnedError: the name belongs to another source.
            ManifestChangedError: ``plan_hash`` stands for something else.
        """
        principal.require(SCHEDULES_APPLY)
        manifest = parse_manifest(content, name)
        request = manifest.spec.job.model_dump(mode="json")["request"]
        require_scope(manifest.spec.job.kind, request, principal)
        plan = self._plan(name, manifest, self._find(name))
        _check_hash(plan, plan_hash)
        return self._put(manifest, principal, source, plan.version), plan

    def remove(
        self, name: str, *, principal: Principal, plan_hash: str | None = None, source: str = API
    ) -> ManifestRecord:
        """Remove a manifest; of a schedule, what runs ends by itself, and what has not begun never does.

        Raises:
            ManifestOwnedError: the name belongs to another source.
            ManifestChangedError: ``plan_hash`` stands for something else.
        """
        principal.require(SCHEDULES_APPLY)
        plan = self._plan(name, None, self._get(name))
        _check_hash(plan, plan_hash)
        removed = self._store.remove_manifest(name, source=source, expected_version=plan.version)
        _LOG.info("manifest_removed", manifest=name, by=principal.name)
        return removed

    def get(self, name: str, *, principal: Principal) -> ManifestRecord:
        """Return the manifest as it was applied."""
        principal.require_any(READ, SCHEDULES_APPLY)
        return self._get(name)

    def list_manifests(self, *, principal: Principal) -> list[ManifestRecord]:
        """Return all manifests, by name."""
        principal.require_any(READ, SCHEDULES_APPLY)
        return self._store.list_manifests()

    def list_schedules(self, *, principal: Principal) -> list[Schedule]:
        """Return all schedules, by name."""
        principal.require_any(READ, SCHEDULES_APPLY)
        return [self._show(record) for record in self._store.list_manifests(kind=KIND)]

    def get_schedule(self, name: str, *, principal: Principal) -> Schedule:
        """Return the schedule."""
        principal.require_any(READ, SCHEDULES_APPLY)
        return self._show(self._get(name))

    def pause(self, name: str, *, principal: Principal) -> Schedule:
        """Let no slot of the schedule be due until :meth:`resume`; what runs goes on."""
        principal.require(SCHEDULES_APPLY)
        self._get(name)
        return self._show(self._store.pause_schedule(name, f"{principal.name} paused it."))

    def resume(self, name: str, *, principal: Principal) -> Schedule:
        """Let slots be due from now on; those of the pause are not made up for."""
        principal.require(SCHEDULES_APPLY)
        self._get(name)
        return self._show(self._store.pause_schedule(name, None))

    def keep_nightly_merge(self, at: time | None) -> None:
        """Have the schedule that REFEED_MERGE_AT is short for, or none with None.

        A person's schedule of the same name stays as it is.
        """
        try:
            if at is None:
                self._store.remove_manifest(NIGHTLY_MERGE, source=SETTINGS)
            else:
                self._put(_nightly_merge(at), Principal(SETTINGS, frozenset({RUN})), SETTINGS, None)
        except ManifestNotFoundError:
            return
        except ManifestOwnedError as exc:
            _LOG.info("REFEED_MERGE_AT makes no schedule", problem=exc.message)

    def _put(self, manifest: Manifest, principal: Principal, source: str, version: int | None) -> ManifestRecord:
        def keeps_slots(before: ManifestRecord) -> bool:
            spec = read_spec(before.document)
            return all(getattr(spec, name) == getattr(manifest.spec, name) for name in _TIMING)

        record = self._store.put_manifest(
            manifest.name,
            manifest.kind,
            manifest.document,
            manifest.digest,
            source=source,
            principal=principal,
            # The last night's merge is made up for when the service starts for the first time.
            settle=lambda now: now - _DAY if source == SETTINGS else now,
            keeps_slots=keeps_slots,
            expected_version=version,
        )
        _LOG.info("manifest_applied", manifest=record.name, version=record.version, by=principal.name)
        return record

    def _plan(self, name: str, manifest: Manifest | None, record: ManifestRecord | None) -> ManifestPlan:
        if manifest is None and record is None:
            raise self._unknown(name)
        before = {} if record is None else record.document
        after = {} if manifest is None else manifest.document
        digests = (None if record is None else record.digest, None if manifest is None else manifest.digest)
        action: Action = (
            "remove"
            if manifest is None
            else "create"
            if record is None
            else "none"
            if digests[0] == digests[1]
            else "update"
        )
        kind = manifest.kind if manifest is not None else record.kind if record is not None else ""
        version = 0 if record is None else record.version
        return ManifestPlan(
            name,
            kind,
            action,
            tuple(_differences(before, after, "")),
            version,
            digest_of([name, action, version, *digests]),
        )

    def _show(self, record: ManifestRecord) -> Schedule:
        spec = read_spec(record.document)
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

    def _unknown(self, name: str) -> ManifestNotFoundError:
        meant = did_you_mean(name, [record.name for record in self._store.list_manifests()])
        return ManifestNotFoundError(f"There is no manifest {name[:80]}.{meant}", name=name[:80])


def _nightly_merge(at: time) -> Manifest:
    """Return what a person would write for REFEED_MERGE_AT: of nights that were missed the last is made up for."""
    document = {
        "kind": KIND,
        "name": NIGHTLY_MERGE,
        "description": f"{SETTINGS}={at:%H:%M}",
        "cron": f"{at.minute} {at.hour} * * *",
        "job": {"kind": "merge", "request": {}},
        "catch_up": {"window_seconds": _DAY.total_seconds(), "max": 1},
        "overlap": "queue",
    }
    return Manifest(document, read_spec(document))


def _differences(before: Any, after: Any, pointer: str) -> Iterator[ValueChange]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in [*before, *(name for name in after if name not in before)]:
            at = f"{pointer}/" + name.replace("~", "~0").replace("/", "~1")
            yield from _differences(before.get(name), after.get(name), at)
    elif before != after:
        yield ValueChange(pointer, before, after)


def _check_hash(plan: ManifestPlan, given: str | None) -> None:
    if given is not None and given != plan.hash:
        raise ManifestChangedError(f"{plan.name}: the plan stands for something else: plan again.", name=plan.name)
