"""The steps of an update's job: the hand-over of a stream from one release to another, and the way back."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final

import structlog

from jobs.steps import Again, Done, Fail, Found, Next, Stay, Step, StepKind
from jobs.store import UPDATE, Idempotency, JobStore, standby_name, update_of
from model import failpoint
from model.errors import RefeedError, StoreUnavailableError, StreamStateError
from model.fault import FaultRecord
from model.stream_record import StreamRecord, Wanted, new_instance_id
from model.stream_snapshot import SnapshotReason, SnapshotState
from model.stream_update import (
    MAX_VALIDATE_SECONDS,
    StreamUpdate,
    UpdateFault,
    UpdateState,
    WhenInconclusive,
)
from rollout.checking import UpdateChecker
from rollout.handover import HUNG_SECONDS, KILL_GRACE_SECONDS, HandOver, HandOverState, Pause, is_ready
from rollout.process import StreamProcess
from rollout.restart_steps import RestartSteps
from rollout.service import check_work
from rollout.shadow_work import SHADOW_FIGURES, ShadowWork
from rollout.standbys import Standbys, UpdatedStream
from rollout.update_ends import PASSING, ReadLag, Run, UpdateEnds
from rollout.watch import WatchFigures, WatchVerdict, judge

_log = structlog.get_logger(__name__)

# Tries of a step, and the timeout until a standby is ready; Spark needs a minute.
_ATTEMPTS: Final = 3
_STANDBY_SECONDS: Final = 180.0
_CHECK_SECONDS: Final = 180.0
# A shadow reads one day of the archive, and then follows for as long as the longest watch.
_SHADOW_SECONDS: Final = 3 * 86_400.0
# The job that makes the snapshot has three tries of an hour.
_SNAPSHOT_SECONDS: Final = 4 * 3600.0
# Drain timeout of the process that hands over.
_DRAIN_SECONDS: Final = 30.0
# Long, because the new process may have to learn ids from the tables before it reports RUNNING.
_HAND_OVER_SECONDS: Final = 3 * 3600.0
# Timeout of a watch whose stream no agent starts, and of the whole watch with its restarts.
_START_SECONDS: Final = 600.0
_WATCH_SECONDS: Final = 2 * MAX_VALIDATE_SECONDS
_WATCHES: Final = 10
_ACTOR: Final = "agent"
_INCONCLUSIVE: Final = "update_inconclusive"


class UpdateSteps:
    """The steps of an update; each look takes one step.

    Each step is written into the record before it begins, and can be repeated: the process of a killed agent is
    found by its instance id. Until the hand-over the old process continues in every case. In the hand-over both
    processes get their orders at the same moment: drain, and run. The home's lock and the lease beside the tables
    keep them apart. The new release owns the stream as soon as it has the lease; the way back is the same
    hand-over.

    ``open_checker`` is called in a thread. ``read_lag`` returns the age of the oldest message that waits for a
    stream, or None if it is unknown.
    """

    def __init__(
        self,
        store: JobStore,
        *,
        open_checker: Callable[[], UpdateChecker],
        read_lag: ReadLag,
        standbys: Standbys,
        shadows: ShadowWork,
    ) -> None:
        self._store = store
        self._open_checker = open_checker
        self._read_lag = read_lag
        self._standbys = standbys
        self._shadows = shadows
        self._ends = UpdateEnds(store, standbys)
        self._restart = RestartSteps(store, self._ends, read_lag)
        # The running hand-overs, by the update and the process that takes over.
        self._hand_overs: dict[tuple[str, str], HandOver] = {}

    def kind(self) -> StepKind[UpdatedStream]:
        """Return the kind of job: the steps there, and after the watch the steps back."""
        wanted, fast = self._ends.while_wanted, partial(Step, passing=PASSING)
        standby: dict[str, Any] = {"seconds": _STANDBY_SECONDS, "attempts": _ATTEMPTS, "gave_up": self._give_up}
        handing: dict[str, Any] = {"seconds": _HAND_OVER_SECONDS, "gave_up": self._end_hand_over}
        steps = (
            Step("check", wanted(self._check), _CHECK_SECONDS, _ATTEMPTS, is_slow=True, gave_up=_refuse),
            fast("shadow", wanted(self._shadow), _SHADOW_SECONDS),
            fast("snapshot", wanted(self._snapshot), _SNAPSHOT_SECONDS),
            fast("stand_by", wanted(self._stand_by), **standby),
            fast("hand_over", self._hand_over, **handing),
            *self._restart.there(),
            fast("watch", wanted(self._watch), _WATCH_SECONDS, _WATCHES, gave_up=self._end_unproven),
            fast("back_stand_by", wanted(self._stand_by), **standby),
            fast("hand_back", self._hand_over, **handing),
            *self._restart.back(),
        )
        return StepKind(UPDATE, steps, entered=self._store.enter_update_step, ended=self._store.end_update)

    def keep(self, updates: Iterable[StreamUpdate]) -> None:
        """Forget the hand-overs of all other updates."""
        living = {(each.id, each.instance_id) for each in updates if each.state.is_handing}
        self._hand_overs = {key: found for key, found in self._hand_overs.items() if key in living}

    # -- before the hand-over: the old release runs, whatever happens

    def _check(self, run: Run) -> Found:
        """Check the update in a thread, because the wanted release reads the registry in its own process.

        A restart may set any option of the stream's kind; its start is the test of the new release.
        """
        update = update_of(run.job)
        request = update.request
        try:
            if request.is_restart:
                record = run.place.record
                check_work(record.name, record.kind, update.to_options, self._list_living())
                return Next("stop" if request.is_trusted else "measure")
            found = self._open_checker().check(
                run.place.record, release=request.release, options=request.options, mapping=request.mapping
            )
        except StoreUnavailableError:
            raise
        except (RefeedError, OSError) as exc:
            return _refuse(run, UpdateFault.of(exc).shown())
        if not found.passes:
            why = " ".join(f"{each.message} {each.remedy.advice}" for each in found.reasons)
            return _refuse(run, UpdateFault("update_refused", why), checked=found.to_json())
        why_not = "; ".join(found.no_way_back)
        way = "it can be rolled back" if found.has_way_back else f"it can't be rolled back: {why_not}"
        after = "snapshot" if request.shadow is None else "shadow"
        return Next(after, {"checked": found.to_json()}, why=way)

    def _list_living(self) -> list[StreamRecord]:
        return [each for each in self._store.list_streams() if each.is_living]

    def _shadow(self, run: Run) -> Found:
        """Compare the new release with the old one before anything changes."""
        update, place = update_of(run.job), run.place
        now, running = time.time(), place.held.running
        lag = None if running is None else self._read_lag(place.record, running.status())
        acknowledged_until = None if lag is None else now - lag
        try:
            step = self._shadows.look(update, place.record, place.starter.shadows, acknowledged_until)
        except RefeedError as exc:
            return self._ends.fail(run, UpdateFault.of(exc).shown())
        failpoint.hit("shadow.looked")
        figures = {**(update.figures or {}), SHADOW_FIGURES: asdict(step.report)}
        if step.fault is not None:
            return self._ends.fail(run, step.fault, figures=figures)
        if step.has_agreed:
            why = f"the shadow compared {step.report.messages_compared} messages, and all rows are equal"
            return Next("snapshot", {"figures": figures}, why=why)
        if figures != update.figures:
            run.note({"figures": figures})
        return Stay()

    def _snapshot(self, run: Run) -> Found:
        """Request a snapshot of the state; the idempotency key makes a repeated request return the same one."""
        made = self._store.create_snapshot(
            update_of(run.job).stream,
            with_source=False,
            actor=_ACTOR,
            reason=SnapshotReason.UPDATE,
            idempotency=Idempotency(run.job.id, run.job.id),
        )
        if made.state is SnapshotState.COMPLETED:
            return Next("stand_by", {"snapshot_id": made.id})
        if made.state is SnapshotState.PENDING:
            return Stay()
        why = f"{made.id} is {made.state}" if made.error is None else made.error.message
        return self._ends.fail(run, UpdateFault("snapshot_failed", why))

    # -- a standby, and the hand-over to it; the same on the way there and back

    def _stand_by(self, run: Run) -> Found:
        """Start or find the standby of this attempt, and go on to the hand-over when it is ready."""
        if run.job.memory.get("standby") != standby_name(run.job):
            self._standbys.drop(update_of(run.job).stream)
            try:
                self._begin_standby(run)
            except (StreamStateError, StoreUnavailableError):
                raise
            except RefeedError as exc:
                return self._give_up(run, FaultRecord.of(exc))
        update, place = update_of(run.job), run.place
        standby = self._standbys.find(update, place)
        if standby is None or not standby.is_running:
            error = place.status_of(update.instance_id).get("error") or {}
            return Again(f"The process ended before it was ready. {error.get('message', '')}".strip())
        if not is_ready(standby):
            return Stay()
        memory: dict[str, Any] = {"outgoing_id": place.record.instance_id}
        if update.state is UpdateState.ROLLING_BACK:
            return Next("hand_back", memory)
        if (outgoing := place.held.running) is not None:
            before = outgoing.status()
            figures = WatchFigures.of_last_minute(before, self._read_lag(place.record, before))
            memory["figures"] = {**(update.figures or {}), "before": asdict(figures)}
        return Next("hand_over", {**memory, "handed_over_at": self._store.now()})

    def _begin_standby(self, run: Run) -> None:
        update, place = update_of(run.job), run.place
        is_forward = update.state is UpdateState.STARTING
        wanted = replace(
            place.record,
            release=update.request.release if is_forward else update.from_release,
            options=update.to_options if is_forward else update.back_options,
        )
        instance_id = new_instance_id()
        prepared = place.starter.prepare(wanted, instance_id, is_standby=True)
        # Written first: the next agent finds the process by its instance id.
        run.note({"instance_id": instance_id, "standby": standby_name(run.job)})
        self._standbys.begin(update.stream, prepared)
        failpoint.hit("update.standby_started")

    def _give_up(self, run: Run, error: FaultRecord) -> Fail:
        """End an update whose new release can't be started; the old process continues."""
        update, place = update_of(run.job), run.place
        name, is_forward = update.stream, update.state is UpdateState.STARTING
        logs = {"new" if is_forward else "old": place.starter.logs.last_lines(name, update.instance_id)}
        if is_forward:
            message = f"The new release of {name} can't be started, and the old release continues: {error.message}"
            return self._ends.fail(run, UpdateFault("standby_failed", message, logs))
        place.held.start_at = 0.0
        why = f"The old release of {name} can't be started again, and the new one stays: {error.message}"
        return self._ends.end_without_way_back(run, why, logs)

    def _hand_over(self, run: Run) -> Found:
        """Give both processes their orders, and find out which one owns the stream at the end."""
        try:
            return self._look_at_hand_over(run)
        except PASSING:
            raise
        except Exception:
            # After both have ended, the agent starts the release in the stream's record.
            self._kill_both(run)
            raise

    def _look_at_hand_over(self, run: Run) -> Found:
        update, place = update_of(run.job), run.place
        incoming = self._standbys.find(update, place)
        outgoing = self._standbys.find_outgoing(update, place)
        key = (update.id, str(update.instance_id))
        hand_over, is_new = self._hand_overs.get(key), False
        if incoming is not None and hand_over is None:
            hand_over = self._hand_overs[key] = HandOver(outgoing, incoming, timeout_seconds=_DRAIN_SECONDS)
            is_new = True
        stands = HandOverState.NEW_ENDED if hand_over is None else hand_over.look()
        if stands is HandOverState.UNDER_WAY and incoming is not None and _is_unwanted(update, place):
            incoming.kill()
            if outgoing is not None and place.record.wanted is Wanted.CANCELLED:
                outgoing.kill()
        if is_new:
            failpoint.hit("update.ordered")
        if incoming is not None and stands is HandOverState.HANDED_OVER:
            return self._take_over(run, incoming, outgoing)
        if stands is not HandOverState.NEW_ENDED:
            return Stay()
        if outgoing is None or not outgoing.is_running:
            return self._lose(run)
        # The process may have its order to drain already: it can't return to running then.
        outgoing.order("drain", timeout_seconds=_DRAIN_SECONDS)
        # Counted from the order, because the step may have begun long before this agent.
        if place.held.kill_at is None:
            place.held.kill_at = time.monotonic() + _DRAIN_SECONDS + KILL_GRACE_SECONDS
        if time.monotonic() >= place.held.kill_at:
            outgoing.kill()
        return Stay()

    def _take_over(self, run: Run, incoming: StreamProcess, outgoing: StreamProcess | None) -> Found:
        held = run.place.held
        self._standbys.forget(run.place.record.name)
        held.process, held.started_at, held.kill_at, held.deaths = incoming, time.monotonic(), None, 0
        if outgoing is not None:
            # The old process has released the stream, and is only stopping Spark.
            self._standbys.leave(outgoing)
        return self._settle(run, has_taken_over=True)

    def _end_hand_over(self, run: Run, _: FaultRecord) -> Next | Done | Fail:
        """End a hand-over after its timeout, also if no agent ran: the process that owns the stream keeps it."""
        try:
            found = self._look_at_hand_over(run)
        except OSError:
            # With a full disk no order can be written, and the step must end all the same.
            return self._lose(run)
        return self._lose(run) if isinstance(found, Stay | Again) else found

    def _lose(self, run: Run) -> Next | Done | Fail:
        """Continue without both processes of a hand-over, because the new one has ended or hangs."""
        self._kill_both(run)
        update, place = update_of(run.job), run.place
        # A process that owned the stream and did not fail has taken over: the agent starts it again.
        status = place.status_of(update.instance_id)
        hand_over = self._hand_overs.get((update.id, str(update.instance_id)))
        has_hung = hand_over is not None and hand_over.has_hung
        has_taken_over = status.get("epoch") is not None and status.get("state") != "failed" and not has_hung
        return self._settle(run, has_taken_over=has_taken_over)

    def _kill_both(self, run: Run) -> None:
        update, place = update_of(run.job), run.place
        for each in (self._standbys.find(update, place), self._standbys.find_outgoing(update, place)):
            if each is not None:
                each.kill()
        place.held.process, place.held.start_at = None, 0.0
        self._standbys.forget(update.stream)

    def _settle(self, run: Run, *, has_taken_over: bool) -> Next | Done | Fail:
        """Return the step after a hand-over; on the way back the stream has the old release in any case."""
        update, place = update_of(run.job), run.place
        if place.record.wanted is not Wanted.RUNNING:
            return self._ends.fail(run, update.abandoned(place.record.wanted))
        if update.state is UpdateState.HANDING_BACK:
            return self._ends.end_back(run)
        if update.error is not None:
            return self._ends.go_back(run, update.error.code, update.error.message)
        if has_taken_over:
            return Next("watch")
        hand_over = self._hand_overs.get((update.id, str(update.instance_id)))
        return self._ends.go_back(run, "stream_died", _why_lost(hand_over))

    # -- after the hand-over

    def _watch(self, run: Run) -> Found:
        update, record, process = update_of(run.job), run.place.record, run.place.held.process
        seconds = self._seconds(run)
        if record.instance_id != update.instance_id:
            # Another agent has started the stream again, after an end that was not the release's fault.
            run.note({"instance_id": record.instance_id})
            return Again(f"It is watched again as {record.instance_id}.")
        if process is None:
            # Counted since this agent holds the stream, because no agent may have run before.
            if time.monotonic() - run.place.held.started_at < _START_SECONDS:
                return Stay()
            return self._ends.go_back(run, "stream_died", "No process of the new release runs.")
        if not process.is_running:
            return self._ends.go_back(run, "stream_died", _why_died(process))
        return self._judge(run, process.status(), seconds)

    def _judge(self, run: Run, status: Mapping[str, Any], seconds: float) -> Found:
        """Compare the figures of the new release with the figures of the old one."""
        update = update_of(run.job)
        if update.request.is_trusted:
            self._ends.clean_up(run)
            return Done({"why": "It was STABLE before."})
        after = WatchFigures.of_process(status, seconds, self._read_lag(run.place.record, status))
        verdict, why = judge(
            WatchFigures.before(update.figures),
            after,
            is_over=seconds >= update.request.validate_seconds,
            min_messages=update.request.min_messages,
            bounds=update.request.bounds,
        )
        self._note_pause(run, update, status)
        if verdict is WatchVerdict.OPEN:
            return Stay()
        run.note({"figures": {**(update.figures or {}), "after": asdict(after)}})
        if verdict is WatchVerdict.FAILED:
            return self._ends.go_back(run, "update_failed", why)
        if verdict is WatchVerdict.INCONCLUSIVE:
            return self._end_unproven(run, FaultRecord(_INCONCLUSIVE, why))
        self._ends.clean_up(run)
        return Done({"why": why})

    def _end_unproven(self, run: Run, error: FaultRecord) -> Next | Done | Fail:
        """End an inconclusive watch as its request asks for; the record says that it was inconclusive."""
        if update_of(run.job).request.when_inconclusive is WhenInconclusive.FAIL:
            return self._ends.go_back(run, _INCONCLUSIVE, error.message)
        self._ends.clean_up(run)
        return Done({"error": UpdateFault(_INCONCLUSIVE, f"{error.message} The new release stays.")})

    def _note_pause(self, run: Run, update: StreamUpdate, status: Mapping[str, Any]) -> None:
        """Note the pause between the two releases' commits, after the first commit of the new release."""
        if update.paused_seconds is None:
            pause = Pause.between(run.place.status_of(update.outgoing_id), status)
            if pause.seconds is not None:
                run.note({"paused_seconds": pause.seconds})

    def _seconds(self, run: Run) -> float:
        """Return the duration of the step by the store's clock, because machines' clocks differ."""
        return (self._store.now() - update_of(run.job).changed_at).total_seconds()


def _refuse(_: Run, error: FaultRecord, **memory: Any) -> Fail:
    fault = error.shown()
    return Fail(fault, {"error": fault, "outcome": UpdateState.REFUSED, **memory})


def _is_unwanted(update: StreamUpdate, place: UpdatedStream) -> bool:
    """Whether the new process is unwanted: the stream is cancelled, or the update is reverted."""
    is_taken_back = update.state is UpdateState.HANDING_OVER and update.error is not None
    return is_taken_back or place.record.wanted is Wanted.CANCELLED


def _why_lost(hand_over: HandOver | None) -> str:
    if hand_over is not None and hand_over.has_hung:
        return f"During the hand-over, the new release did not report for {HUNG_SECONDS:.0f} s."
    return "The new release ended during the hand-over."


def _why_died(process: StreamProcess) -> str:
    status = process.status()
    if status.get("state") == "failed" and status.get("error") is not None:
        return str(status["error"].get("message"))
    code = process.ended_error().details.get("exit_code", "unknown")
    return f"The new release ended with code {code}."
