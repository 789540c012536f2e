"""The part of an agent that updates streams: from one release to another by a hand-over, and back."""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import structlog

from jobs.store import Idempotency, JobStore
from jobs.stream_threads import StreamThreads
from model import failpoint
from model.errors import RefeedError, StreamStateError
from model.stream_options import StreamKind
from model.stream_record import StreamRecord, Wanted, new_instance_id
from model.stream_snapshot import SnapshotReason, SnapshotState
from model.stream_update import StreamUpdate, UpdateFault, UpdateReplay, UpdateState, WhenInconclusive
from pipeline.plan import PlanFacts
from rollout.checking import UpdateChecker
from rollout.handover import HUNG_SECONDS, KILL_GRACE_SECONDS, HandOver, HandOverState, Pause, is_ready
from rollout.process import HeldStream, StreamProcess
from rollout.shadow_work import SHADOW_FIGURES, ShadowWork
from rollout.standbys import MOVING, Standbys, UpdatedStream
from rollout.starter import StreamStarter
from rollout.updates import UNWANTED
from rollout.watch import WatchFigures, WatchVerdict, judge
from streams.snapshot import PLAN_FILE

_log = structlog.get_logger(__name__)

# How often a standby is started before the update is given up, and how long each has; Spark takes a minute.
_ATTEMPTS: Final = 3
_STANDBY_SECONDS: Final = 180.0
# How long the process that hands over may take to commit what it holds.
_DRAIN_SECONDS: Final = 30.0
_JOIN_SECONDS: Final = 10.0
_ACTOR: Final = "agent"
_INCONCLUSIVE: Final = "update_inconclusive"

ReadLag = Callable[[StreamRecord, Mapping[str, Any]], float | None]


@dataclass(slots=True)
class _Step:
    """The step that an update is at since ``began``, by this agent's clock, and whether its orders are given."""

    update_id: str
    state: UpdateState
    attempts: int
    began: float
    is_ordered: bool = False
    hand_over: HandOver | None = None


class UpdateWork:
    """Carries out the updates of the streams that an agent holds, a step a look.

    Each step is in the record before it begins, and can be begun again: what a killed agent left behind is found
    by its instance id. Up to the hand-over the old process goes on whatever happens. In the hand-over both get
    their orders at the same moment, to drain and to run; the home's lock and the lease beside the tables keep them
    apart. The stream is the new release's once that has the lease, and goes back by the same hand-over.

    ``open_checker`` is called in a thread. ``read_lag`` returns the age of the oldest message that waits for a
    stream; None where nobody knows.
    """

    def __init__(
        self,
        store: JobStore,
        *,
        open_checker: Callable[[], UpdateChecker],
        read_lag: ReadLag,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._open_checker = open_checker
        self._read_lag = read_lag
        self._now = now
        self._updates: dict[str, StreamUpdate] = {}
        self._standbys = Standbys(store, now=now)
        self._steps: dict[str, _Step] = {}
        self._checks = StreamThreads("check")
        self._shadows = ShadowWork()

    def look(self, streams: Iterable[tuple[StreamRecord, HeldStream]], starter: StreamStarter) -> None:
        """Bring each update one step further; a fault of one stream keeps no other from its step.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        found = {record.name: (record, held) for record, held in streams}
        self._updates = {each.stream: each for each in self._store.list_updates(living=True)}
        self._checks.keep(set(found), {each.id for each in self._updates.values()})
        self._standbys.let_go(found.keys())
        self._standbys.end_orphans(starter.settings.home)
        self._shadows.end_others(list(self._updates.values()), starter.shadows)
        for name, (record, held) in found.items():
            update = self._updates.get(name)
            place = UpdatedStream(record, held, starter, starter.folder(name).state)
            try:
                self._standbys.end_leftovers(place, update)
                if update is not None:
                    self._carry_out(update, place)
            except StreamStateError as exc:
                # Somebody decided it meanwhile; the next look sees that.
                _log.info("update_moved", stream=name, why=exc.message)
            except (RefeedError, OSError) as exc:
                _log.warning("update_waits", stream=name, error=str(exc))

    def is_moving(self, stream: str) -> bool:
        """Whether the stream goes from one process to another: the agent starts none by itself meanwhile."""
        return stream in self._updates and self._updates[stream].state in MOVING

    def is_handing(self, stream: str) -> bool:
        """Whether the stream's processes have orders of a hand-over, and take no others."""
        return stream in self._updates and self._updates[stream].state.is_handing

    def is_shown(self, stream: str) -> bool:
        """Whether the stream is UPDATING."""
        return stream in self._updates and self._updates[stream].state.is_shown

    def stop(self) -> None:
        """End the standbys; the next agent goes on from the step that is written down."""
        self._shadows.stop()
        self._checks.join(_JOIN_SECONDS)
        self._standbys.stop()

    # -- the steps

    def _carry_out(self, update: StreamUpdate, place: UpdatedStream) -> None:
        if place.record.wanted is not Wanted.RUNNING and not update.state.is_handing:
            self._end(update, place, UpdateState.FAILED, error=update.abandoned(place.record.wanted))
            return
        match update.state:
            case UpdateState.CHECKING:
                self._check(update, place)
            case UpdateState.SHADOWING:
                self._run_shadow(update, place)
            case UpdateState.SNAPSHOTTING:
                self._take_snapshot(update, place)
            case UpdateState.STARTING | UpdateState.ROLLING_BACK:
                self._start_standby(update, place)
            case UpdateState.HANDING_OVER | UpdateState.HANDING_BACK:
                self._hand_over(update, place)
            case UpdateState.WATCHING:
                self._watch(update, place)

    def _check(self, update: StreamUpdate, place: UpdatedStream) -> None:
        """Check in a thread: the wanted release reads the registry in a process of its own."""
        self._checks.begin(update.stream, update.id, partial(self._run_check, update, place))

    def _run_check(self, update: StreamUpdate, place: UpdatedStream) -> None:
        request = update.request
        try:
            try:
                found = self._open_checker().check(
                    place.record, release=request.release, options=request.options, mapping=request.mapping
                )
            except (RefeedError, OSError) as exc:
                self._end(update, place, UpdateState.REFUSED, error=UpdateFault.of(exc).shown())
                return
            if not found.passes:
                why = " ".join(f"{each.message} {each.remedy.advice}" for each in found.reasons)
                fault = UpdateFault("update_refused", why)
                self._end(update, place, UpdateState.REFUSED, error=fault, checked=found.to_json())
                return
            why_not = "; ".join(found.no_way_back)
            way = "it can be rolled back" if found.has_way_back else f"it can't be rolled back: {why_not}"
            is_direct = request.shadow is None
            state = UpdateState.SNAPSHOTTING if is_direct else UpdateState.SHADOWING
            self._advance(update, state, checked=found.to_json(), why=way)
            if is_direct:
                failpoint.hit("update.snapshotting")
            else:
                failpoint.hit("shadow.starting")
        except StreamStateError as exc:
            # Somebody decided it meanwhile.
            _log.info("check_not_kept", stream=update.stream, error=str(exc))

    def _run_shadow(self, update: StreamUpdate, place: UpdatedStream) -> None:
        """Compare the new release with the old one before anything is touched."""
        now, running = time.time(), place.held.running
        lag = None if running is None else self._read_lag(place.record, running.status())
        try:
            step = self._shadows.look(
                update, place.record, place.starter.shadows, None if lag is None else now - lag
            )
        except RefeedError as exc:
            self._end(update, place, UpdateState.FAILED, error=UpdateFault.of(exc).shown())
            return
        failpoint.hit("shadow.looked")
        figures = {**(update.figures or {}), SHADOW_FIGURES: asdict(step.report)}
        if step.fault is not None:
            self._end(update, place, UpdateState.FAILED, error=step.fault, figures=figures)
        elif step.has_agreed:
            why = f"the shadow compared {step.report.messages_compared} messages, and all rows are equal"
            self._advance(update, UpdateState.SNAPSHOTTING, figures=figures, why=why)
            failpoint.hit("update.snapshotting")
        elif figures != update.figures:
            self._updates[update.stream] = self._store.note_update(update, figures=figures)

    def _take_snapshot(self, update: StreamUpdate, place: UpdatedStream) -> None:
        """Request a snapshot of the state; the same key gives back the same one."""
        made = self._store.create_snapshot(
            update.stream,
            with_source=False,
            actor=_ACTOR,
            reason=SnapshotReason.UPDATE,
            idempotency=Idempotency(update.id, update.id),
        )
        if made.state is SnapshotState.COMPLETED:
            self._advance(update, UpdateState.STARTING, snapshot_id=made.id)
            failpoint.hit("update.starting")
        elif made.state is not SnapshotState.PENDING:
            why = f"{made.id} is {made.state}" if made.error is None else made.error.message
            self._end(update, place, UpdateState.FAILED, error=UpdateFault("snapshot_failed", why))

    def _start_standby(self, update: StreamUpdate, place: UpdatedStream) -> None:
        """Keep a standby until it is ready, and hand over to it then; give up after some that died."""
        is_forward = update.state is UpdateState.STARTING
        step = self._step(update)
        standby = self._standbys.find(update, place)
        if standby is None or not standby.is_running:
            self._standbys.drop(update.stream)
            if update.attempts < _ATTEMPTS:
                self._begin_standby(update, place)
                return
            error = place.status_of(update.instance_id).get("error") or {}
            why = f"{_ATTEMPTS} processes ended before they were ready. {error.get('message', '')}"
            self._give_up(update, place, why.strip())
            return
        if is_ready(standby):
            state = UpdateState.HANDING_OVER if is_forward else UpdateState.HANDING_BACK
            outgoing = place.held.running
            changes: dict[str, Any] = {"outgoing_id": place.record.instance_id}
            if is_forward and outgoing is not None:
                before = outgoing.status()
                lag = self._read_lag(place.record, before)
                figures = WatchFigures.of_last_minute(before, lag)
                changes["figures"] = {**(update.figures or {}), "before": asdict(figures)}
            handing = self._advance(update, state, **changes)
            failpoint.hit("update.handing_over")
            self._hand_over(handing, place)
        elif self._now() - step.began >= _STANDBY_SECONDS:
            _log.warning("standby_late", stream=update.stream, instance=standby.instance_id)
            standby.kill()

    def _begin_standby(self, update: StreamUpdate, place: UpdatedStream) -> None:
        is_forward = update.state is UpdateState.STARTING
        wanted = replace(
            place.record,
            release=update.request.release if is_forward else update.from_release,
            options=update.to_options if is_forward else update.back_options,
        )
        instance_id = new_instance_id()
        try:
            prepared = place.starter.prepare(wanted, instance_id, is_standby=True)
        except RefeedError as exc:
            self._give_up(update, place, exc.message)
            return
        # Written down first: by its instance id the next agent finds it.
        update = self._store.note_update(update, instance_id=instance_id, attempts=update.attempts + 1)
        self._updates[update.stream] = update
        self._standbys.begin(update.stream, prepared)
        failpoint.hit("update.standby_started")

    def _give_up(self, update: StreamUpdate, place: UpdatedStream, why: str) -> None:
        """End an update whose next release can't be started; the one that runs goes on."""
        name = update.stream
        if update.state is UpdateState.STARTING:
            message = f"The new release of {name} can't be started, and the old release continues: {why}"
            code = "standby_failed"
        else:
            before = (
                ""
                if update.error is None
                else f" The update was being rolled back because: {update.error.message}"
            )
            message = f"The old release of {name} can't be started again, and the new one stays: {why}{before}"
            code = "no_way_back"
            place.held.start_at = 0.0
        release = "new" if update.state is UpdateState.STARTING else "old"
        logs = {release: place.starter.logs.last_lines(name, update.instance_id)}
        self._end(update, place, UpdateState.FAILED, error=UpdateFault(code, message, logs))

    def _hand_over(self, update: StreamUpdate, place: UpdatedStream) -> None:
        """Give the two processes their orders, and see which one has the stream in the end."""
        step = self._step(update)
        incoming = self._standbys.find(update, place)
        outgoing = self._standbys.find_outgoing(update, place)
        if incoming is not None and step.hand_over is None:
            step.hand_over = HandOver(outgoing, incoming, timeout_seconds=_DRAIN_SECONDS)
        stands = HandOverState.NEW_ENDED if step.hand_over is None else step.hand_over.look()
        if stands is HandOverState.UNDER_WAY and incoming is not None and _is_unwanted(update, place):
            incoming.kill()
            if outgoing is not None and place.record.wanted is Wanted.CANCELLED:
                outgoing.kill()
        if not step.is_ordered:
            step.is_ordered = True
            failpoint.hit("update.ordered")
        if incoming is not None and stands is HandOverState.HANDED_OVER:
            self._finish_hand_over(update, place, incoming)
        elif stands is HandOverState.NEW_ENDED and (outgoing is None or not outgoing.is_running):
            self._lose_hand_over(update, place)
        elif stands is HandOverState.NEW_ENDED and outgoing is not None:
            # It may have its order to drain, and never runs again then.
            outgoing.order("drain", timeout_seconds=_DRAIN_SECONDS)
            if self._now() - step.began >= _DRAIN_SECONDS + KILL_GRACE_SECONDS:
                outgoing.kill()

    def _finish_hand_over(self, update: StreamUpdate, place: UpdatedStream, incoming: StreamProcess) -> None:
        outgoing = self._standbys.find_outgoing(update, place)
        held = place.held
        self._standbys.forget(update.stream)
        held.process, held.started_at, held.kill_at, held.deaths = incoming, self._now(), None, 0
        if outgoing is not None:
            # It has let go of the stream, and only Spark's end is left of it.
            self._standbys.leave(outgoing)
        self._settle_hand_over(update, place, has_taken_over=True)

    def _lose_hand_over(self, update: StreamUpdate, place: UpdatedStream) -> None:
        """Go on after the process that was to take over has ended, and the other one too."""
        place.held.process, place.held.start_at = None, 0.0
        self._standbys.forget(update.stream)
        # One that had the stream and ended by no fault of its own is started again by the agent.
        status = place.status_of(update.instance_id)
        hand_over = self._step(update).hand_over
        has_hung = hand_over is not None and hand_over.has_hung
        has_taken_over = status.get("epoch") is not None and status.get("state") != "failed" and not has_hung
        self._settle_hand_over(update, place, has_taken_over=has_taken_over)

    def _settle_hand_over(self, update: StreamUpdate, place: UpdatedStream, *, has_taken_over: bool) -> None:
        """Write down the step after a hand-over; a stream that went back is the old release's either way."""
        if place.record.wanted is not Wanted.RUNNING:
            self._end(update, place, UpdateState.FAILED, error=update.abandoned(place.record.wanted))
        elif update.state is UpdateState.HANDING_BACK:
            fault = update.error or UpdateFault("update_unwanted", "The update was rolled back.")
            self._end(update, place, UpdateState.ROLLED_BACK, error=fault, replay=self._replay_of(update, place))
        elif update.error is not None:
            self._fail(update, place, update.error.code, update.error.message)
        elif has_taken_over:
            self._advance(update, UpdateState.WATCHING)
            failpoint.hit("update.watching")
        else:
            self._fail(update, place, "stream_died", _why_lost(self._step(update).hand_over))

    def _watch(self, update: StreamUpdate, place: UpdatedStream) -> None:
        record, process = place.record, place.held.process
        if record.instance_id != update.instance_id:
            # Another agent has started it again, after an end that was not the release's.
            moved = self._store.note_update(update, instance_id=record.instance_id)
            self._advance(moved, UpdateState.WATCHING, why=f"watched again as {record.instance_id}")
            return
        if process is None:
            return
        status = process.status()
        if not process.is_running:
            died = process.ended_error()
            code = died.details.get("exit_code", "unknown")
            error = status.get("error") if status.get("state") == "failed" else None
            why = f"The new release ended with code {code}." if error is None else str(error.get("message"))
            self._fail(update, place, "stream_died", why)
            return
        # By the clock that wrote the step down: two machines' may differ.
        seconds = (self._store.now() - update.changed_at).total_seconds()
        lag = self._read_lag(record, status)
        after = WatchFigures.of_process(status, seconds, lag)
        verdict, why = judge(
            WatchFigures.before(update.figures),
            after,
            is_over=seconds >= update.request.validate_seconds,
            min_messages=update.request.min_messages,
            bounds=update.request.bounds,
        )
        update = self._note_pause(update, place, status)
        if verdict is WatchVerdict.OPEN:
            return
        figures = {**(update.figures or {}), "after": asdict(after)}
        update = self._store.note_update(update, figures=figures)
        if verdict is WatchVerdict.FAILED:
            self._fail(update, place, "update_failed", why)
        elif verdict is WatchVerdict.INCONCLUSIVE:
            self._end_inconclusive(update, place, why)
        else:
            self._end(update, place, UpdateState.STABLE, why=why)

    def _end_inconclusive(self, update: StreamUpdate, place: UpdatedStream, why: str) -> None:
        """End a watch that proves nothing as its request wants it; the record says so either way."""
        if update.request.when_inconclusive is WhenInconclusive.FAIL:
            self._fail(update, place, _INCONCLUSIVE, why)
        else:
            fault = UpdateFault(_INCONCLUSIVE, f"{why} The new release stays.")
            self._end(update, place, UpdateState.STABLE, error=fault)

    def _note_pause(self, update: StreamUpdate, place: UpdatedStream, status: Mapping[str, Any]) -> StreamUpdate:
        """Note how long nothing was committed, once the new release has committed something."""
        if update.paused_seconds is not None:
            return update
        pause = Pause.between(place.status_of(update.outgoing_id), status)
        if pause.seconds is None:
            return update
        return self._store.note_update(update, paused_seconds=pause.seconds)

    def _fail(self, update: StreamUpdate, place: UpdatedStream, code: str, why: str) -> None:
        """Go back because of the new release's fault; without a way back, or to halt, go on with it."""
        last_lines = partial(place.starter.logs.last_lines, update.stream)
        logs = {"old": last_lines(update.outgoing_id), "new": last_lines(update.instance_id)}
        is_written = self._has_written(update, place)
        # Who takes it back wants it back whatever a failure is to do.
        is_halting = update.request.is_halting and code != UNWANTED
        if not is_written or (update.has_way_back and not is_halting):
            fault = UpdateFault(code, why, logs)
            self._advance(update, UpdateState.ROLLING_BACK, error=fault)
            failpoint.hit("update.rolling_back")
            return
        if is_halting:
            message = f"{why} The new release stays and is started again, because on_failure is halt."
            self._end(update, place, UpdateState.FAILED, error=UpdateFault(code, message, logs))
            return
        no_way = "; ".join((update.checked or {}).get("no_way_back", ()))
        message = f"{why} The update can't be rolled back ({no_way}). The new release stays and is started again."
        self._end(update, place, UpdateState.FAILED, error=UpdateFault("no_way_back", message, logs))

    def _has_written(self, update: StreamUpdate, place: UpdatedStream) -> bool:
        """Whether the new release ever had the stream; without that the old one finds its state as it left it."""
        has_epoch = place.status_of(update.instance_id).get("epoch") is not None
        return update.state is not UpdateState.HANDING_OVER or has_epoch

    # -- the record

    def _step(self, update: StreamUpdate) -> _Step:
        step = self._steps.get(update.stream)
        key = (update.id, update.state, update.attempts)
        if step is None or (step.update_id, step.state, step.attempts) != key:
            step = self._steps[update.stream] = _Step(*key, began=self._now())
        return step

    def _advance(self, update: StreamUpdate, state: UpdateState, **changes: Any) -> StreamUpdate:
        moved = self._store.advance_update(update, state, **changes)
        self._updates[update.stream] = moved
        _log.info("update_step", stream=update.stream, update=update.id, state=state.value)
        return moved

    def _end(self, update: StreamUpdate, place: UpdatedStream, state: UpdateState, **changes: Any) -> None:
        ended = self._advance(update, state, **changes)
        self._updates.pop(update.stream, None)
        if state is not UpdateState.REFUSED:
            self._standbys.drop(update.stream)
            own = [each for each in (place.record.instance_id, ended.instance_id, ended.outgoing_id) if each]
            place.starter.logs.remove_standbys(update.stream, keep=own)
            self._forget_snapshots(ended)

    def _forget_snapshots(self, update: StreamUpdate) -> None:
        """Have the snapshots of earlier updates deleted; the newest one stays."""
        for made in self._store.list_snapshots(stream=update.stream, reason=SnapshotReason.UPDATE):
            is_older = made.id != update.snapshot_id
            if is_older and update.snapshot_id is not None and made.state is not SnapshotState.DELETING:
                with suppress(StreamStateError):
                    self._store.delete_snapshot(made.id)

    def _replay_of(self, update: StreamUpdate, place: UpdatedStream) -> UpdateReplay | None:
        """Return the messages that the new release may have staged; a backup stages nothing."""
        if place.record.kind is not StreamKind.PIPELINE or update.handed_over_at is None:
            return None
        lag = ((update.figures or {}).get("before") or {}).get("lag_seconds")
        since = None if lag is None else update.handed_over_at - timedelta(seconds=lag)
        return UpdateReplay(since, datetime.now(UTC), PlanFacts.read(place.state / PLAN_FILE).topics)


def _is_unwanted(update: StreamUpdate, place: UpdatedStream) -> bool:
    """Whether nobody wants the process that takes the stream over: it is cancelled, or the update taken back."""
    is_taken_back = update.state is UpdateState.HANDING_OVER and update.error is not None
    return is_taken_back or place.record.wanted is Wanted.CANCELLED


def _why_lost(hand_over: HandOver | None) -> str:
    if hand_over is not None and hand_over.has_hung:
        return f"During the hand-over, the new release did not report for {HUNG_SECONDS:.0f} s."
    return "The new release ended during the hand-over."
