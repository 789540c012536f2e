"""The engine of schedules: creates one run for each due slot, and follows runs to their end."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any, Final

import structlog

from jobs.store import JobStore
from jobs.store.manifests import AHEAD
from model.errors import (
    CredentialsMissingError,
    FolderUnavailableError,
    IdempotencyInProgressError,
    PubSubUnavailableError,
    RefeedError,
    RegistryError,
    RequestInvalidError,
    ServiceBusyError,
    StorageFullError,
    StoreUnavailableError,
    WarehouseUnavailableError,
)
from model.manifest_record import ManifestRecord, NewRun, RunState, ScheduleRun, Settlement
from model.principal import Principal
from model.typed import read_fields
from rollout.manifests.schedule import KIND, ScheduleManifest, read_schedule
from rollout.manifests.scheduled_jobs import ScheduledJobs
from rollout.rollouts import NOTHING_TO_ROLL_OUT

_RETRY_SECONDS: Final = 60.0
# A slot that is found later than this was missed, because no service was running.
_GRACE_SECONDS: Final = 60.0
# Transient errors: the same start may succeed a minute later.
_PASSING: Final = (
    CredentialsMissingError,
    FolderUnavailableError,
    IdempotencyInProgressError,
    PubSubUnavailableError,
    RegistryError,
    ServiceBusyError,
    StorageFullError,
    StoreUnavailableError,
    WarehouseUnavailableError,
)
_NOTHING_TO_DO: Final = frozenset({"nothing_to_merge", NOTHING_TO_ROLL_OUT})
_LOG: Final = structlog.get_logger()


def principal_of(run: ScheduleRun, record: ManifestRecord) -> Principal:
    """Return the principal that creates a run's job: its requester, or the schedule with its applier's rights."""
    if run.asked_by is not None:
        return read_fields(Principal, run.request["asked_by"])
    return Principal(f"schedule:{record.name}", record.scopes, record.topics)


class Scheduler:
    """Looks at all schedules once a second; every replica of the service has a scheduler, without a leader.

    The run of a slot is one row, which only one replica can insert. Its job has an idempotency key of the slot, so
    that a replica that continues after another one's death gets the same job. A start with a transient error is
    tried again every minute until the next slot is due. The next look repeats a failed look, and a fault of one
    schedule does not stop the others.
    """

    def __init__(
        self, store: JobStore, jobs: ScheduledJobs, *, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._steady = steady
        self._tried_at: dict[tuple[str, datetime], float] = {}
        # Cache of the next slot by a schedule's content: parsing a schedule takes longer than the rest of a look.
        self._following: dict[str, tuple[tuple[str, datetime], datetime | None]] = {}

    def tick(self) -> None:
        """Settle the due slots, and move every run one step further.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        records = {record.name: record for record in self._store.list_manifests(kind=KIND)}
        now = self._store.now() if records else None
        for record in records.values():
            if now is not None and record.paused is None:
                with _apart(record.name):
                    self._settle(record, now)
        living = self._store.list_living_runs()
        for run in living:
            with _apart(run.schedule):
                self._advance(run, records.get(run.schedule), living)
        known = {(run.schedule, run.slot) for run in living}
        self._tried_at = {key: at for key, at in self._tried_at.items() if key in known}
        self._following = {name: slot for name, slot in self._following.items() if name in records}

    def _settle(self, record: ManifestRecord, now: datetime) -> None:
        # Checked before the write locks, because mostly nothing is due.
        if record.settled_until > now + AHEAD:
            record = self._store.set_back(record.name)
            _LOG.warning(
                "the clock was ahead", schedule=record.name, slots_go_on_from=record.settled_until.isoformat()
            )
        following = self._slot_after(record)
        if following is None or following > now:
            return

        def choose(current: ManifestRecord, at: datetime, living: Sequence[ScheduleRun]) -> Settlement | None:
            return settle_slots(read_schedule(current.document), current.settled_until, at, living)

        for run in self._store.settle_slots(record.name, choose):
            _LOG.info("slot is due", schedule=run.schedule, slot=run.slot.isoformat(), state=run.state.value)

    def _slot_after(self, record: ManifestRecord) -> datetime | None:
        """Return the first slot that is not settled, or None."""
        key = (record.digest, record.settled_until)
        known = self._following.get(record.name)
        if known is None or known[0] != key:
            slot = next(read_schedule(record.document).timing().after(record.settled_until), None)
            known = self._following[record.name] = (key, slot)
        return known[1]

    def _advance(self, run: ScheduleRun, record: ManifestRecord | None, living: Sequence[ScheduleRun]) -> None:
        if run.state is RunState.RUNNING:
            self._follow(run, record)
            return
        if record is None:
            # The schedule was removed since the look began.
            return
        if run.state is RunState.QUEUED:
            # A run that a person requested can begin before an earlier slot is settled.
            is_before = (
                other.schedule == run.schedule and (other.state is not RunState.QUEUED or other.slot < run.slot)
                for other in living
            )
            if any(is_before):
                return
            if not self._store.change_run(run, RunState.STARTING):
                return
            run = replace(run, state=RunState.STARTING)
        self._start(run, record)

    def _start(self, run: ScheduleRun, record: ManifestRecord) -> None:
        key = (run.schedule, run.slot)
        tried_at = self._tried_at.get(key)
        if tried_at is not None and self._steady() - tried_at < _RETRY_SECONDS:
            return
        self._tried_at[key] = self._steady()
        try:
            job = self._jobs.start(run, principal_of(run, record))
        except RefeedError as exc:
            self._note_failure(run, record, exc)
        else:
            self._store.change_run(run, RunState.RUNNING, job_kind=job.kind, job_id=job.id)
            del self._tried_at[key]
            _LOG.info("a slot's job was started", schedule=run.schedule, slot=run.slot.isoformat(), job_id=job.id)

    def _note_failure(self, run: ScheduleRun, record: ManifestRecord, error: RefeedError) -> None:
        if isinstance(error, RequestInvalidError) and any(
            fault.get("code") in _NOTHING_TO_DO for fault in error.details.get("errors", ())
        ):
            self._store.change_run(run, RunState.SKIPPED, why=error.message)
            return
        following = next(read_schedule(record.document).timing().after(run.slot), None)
        is_passing = isinstance(error, _PASSING) and (following is None or self._store.now() < following)
        state = RunState.STARTING if is_passing else RunState.FAILED
        _LOG.warning(
            "slot's job can't be started", schedule=run.schedule, problem=error.message, state=state.value
        )
        pauses = None if is_passing else _why_pause(run, record, error.message)
        self._store.change_run(run, state, why=error.message, pauses=pauses)

    def _follow(self, run: ScheduleRun, record: ManifestRecord | None) -> None:
        state, why = self._jobs.look(run)
        if not state.is_final:
            return
        pauses = _why_pause(run, record, why) if state is RunState.FAILED and record is not None else None
        if self._store.change_run(run, state, why=why, pauses=pauses):
            _LOG.info("slot is done", schedule=run.schedule, slot=run.slot.isoformat(), state=state.value)


@contextmanager
def _apart(schedule: str) -> Iterator[None]:
    """Log a schedule's fault, such as a document of another release, so that the others continue."""
    try:
        yield
    except StoreUnavailableError:
        raise
    except RefeedError as exc:
        _LOG.warning("schedule waits", schedule=schedule, problem=exc.message)


def _why_pause(run: ScheduleRun, record: ManifestRecord, why: str | None) -> str | None:
    """Return why a failed run pauses its schedule, or None if it does not."""
    if read_schedule(record.document).on_failure != "pause":
        return None
    return f"The run of {run.slot:%Y-%m-%dT%H:%MZ} failed: {why or 'its job says why'}"


def settle_slots(
    spec: ScheduleManifest, settled_until: datetime, now: datetime, living: Sequence[ScheduleRun]
) -> Settlement | None:
    """Return the runs of the due slots that are not settled yet; None while there are no such slots.

    Without a catch-up only the newest slot gets a run, and only if it is at most a minute late. With a catch-up
    the newest slots within its window get runs, one after another, after the ``living`` runs. For a slot that is
    on time, the schedule's overlap decides; of several slots, for the newest.
    """
    window = _GRACE_SECONDS if spec.catch_up is None else max(_GRACE_SECONDS, spec.catch_up.window_seconds)
    most = 1 if spec.catch_up is None else spec.catch_up.max
    timing = spec.timing()
    since = max(settled_until, now - timedelta(seconds=window))
    due = list(takewhile(lambda each: each <= now, timing.after(since)))
    if not due:
        # Settle now: otherwise each look until the next slot would search again for these slots, as a writer.
        missed = timing.name_slots(settled_until, since)
        return None if missed is None else Settlement(since, (), {}, missed)
    chosen = due[-most:]
    is_late = spec.catch_up is not None and chosen[0] < now - timedelta(seconds=_GRACE_SECONDS)
    if living and not is_late:
        states = _beside(spec, len(chosen), living)
    else:
        states = [(RunState.QUEUED, None)] * len(chosen)
        if not living:
            states[0] = (RunState.STARTING, None)
    runs = [
        NewRun(slot, timing.before(slot), state, why) for slot, (state, why) in zip(chosen, states, strict=True)
    ]
    missed = timing.name_slots(settled_until, chosen[0])
    if missed is not None:
        _LOG.warning("slots were missed", schedule=spec.name, slots=missed)
    return Settlement(due[-1], tuple(runs), _request_of(spec), missed)


def settle_now(
    spec: ScheduleManifest, now: datetime, living: Sequence[ScheduleRun], principal: Principal
) -> Settlement:
    """Return a requested run of the newest slot that has ended, and the runs of due slots.

    The schedule's overlap decides about the requested run as about a slot.
    """
    end = spec.timing().before(now)
    [(state, why)] = _beside(spec, 1, living) if living else [(RunState.STARTING, None)]
    asked_by = {"name": principal.name, "scopes": sorted(principal.scopes), "topics": principal.topics}
    request = {**_request_of(spec), "asked_by": asked_by, "slot_end": end}
    return Settlement(now, (NewRun(now, spec.timing().before(end), state, why),), request)


def _request_of(spec: ScheduleManifest) -> dict[str, Any]:
    return {"job": spec.job.model_dump(mode="json", by_alias=True), "time_zone": spec.time_zone}


def _beside(
    spec: ScheduleManifest, count: int, living: Sequence[ScheduleRun]
) -> list[tuple[RunState, str | None]]:
    """Return the first states of new runs beside living ones: all but the newest are skipped."""
    before = living[-1]
    skipped = (RunState.SKIPPED, f"The run of {before.slot:%Y-%m-%dT%H:%MZ} has not ended.")
    queue_is_full = spec.overlap == "queue" and any(run.state is RunState.QUEUED for run in living)
    is_left_out = spec.overlap == "skip" or queue_is_full
    return [*[skipped] * (count - 1), skipped if is_left_out else (RunState.QUEUED, None)]
