"""The engine of rollouts: brings each one step further, whichever replica looks at it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any, Final

import structlog

from jobs.store import JobStore
from model import failpoint
from model.errors import RefeedError, RolloutStateError, StoreUnavailableError, StreamStateError
from model.fault import FaultRecord
from model.rollout_record import Rollout, RolloutState
from model.stream_record import StreamEvent, StreamEventType, StreamRecord, StreamState, Wanted
from model.stream_update import UNWANTED as UNWANTED_UPDATE
from model.stream_update import StreamUpdate, UpdateFault, UpdateState
from rollout.manifests.rollout import RolloutManifest, read_rollout
from rollout.rollouts import UNWANTED, update_request
from rollout.service import check_work
from rollout.shadow_work import DIFFERS, INCONCLUSIVE
from rollout.watch import WatchFigures, WatchVerdict, judge
from streams.status import RATE_SECONDS

# How long a launched release may take until it runs; Spark takes a minute.
_START_SECONDS: Final = 300.0
# How long a restart waits for the figures of the old release's last minute.
_FIGURES_SECONDS: Final = 120.0
_ABANDONED: Final = "rollout_abandoned"
_INCONCLUSIVE: Final = "rollout_inconclusive"
_DRAINS: Final = frozenset({RolloutState.DRAINING, RolloutState.ROLLING_BACK})
_SHADOW_ENDS: Final = frozenset({DIFFERS, INCONCLUSIVE})
_LOG: Final = structlog.get_logger()

ReadStatus = Callable[[StreamRecord], Mapping[str, Any]]
ReadLag = Callable[[StreamRecord, Mapping[str, Any]], float | None]


class RolloutEngine:
    """Looks at all rollouts once a second; every replica of the service has one, and they need no leader.

    What a step does to the stream is kept in the same transaction as the step: of several replicas one takes it,
    and one that dies leaves nothing half done. ``read_status`` returns the newest status of a stream's
    process, empty where nobody knows; ``read_lag`` the age of the oldest message that waits for it.
    """

    def __init__(self, store: JobStore, *, read_status: ReadStatus, read_lag: ReadLag) -> None:
        self._store = store
        self._read_status = read_status
        self._read_lag = read_lag

    def tick(self) -> None:
        """Bring every rollout one step further; a fault of one keeps no other from its step.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        for rollout in self._store.list_rollouts(living=True):
            try:
                self._carry_out(rollout, self._store.get_stream(rollout.stream))
            except RolloutStateError as exc:
                # Another replica was first, or somebody has cancelled it.
                _LOG.debug("rollout_moved", rollout=rollout.id, why=exc.message)
            except StoreUnavailableError:
                raise
            except RefeedError as exc:
                _LOG.warning("rollout_waits", rollout=rollout.id, problem=exc.message)

    # -- the steps

    def _carry_out(self, rollout: Rollout, record: StreamRecord) -> None:
        if rollout.strategy != "restart" and rollout.state is not RolloutState.PENDING:
            self._follow_update(rollout, self._store.get_update(str(rollout.update_id)))
            return
        if rollout.state is not RolloutState.PENDING and (
            why := _abandoned(rollout, record) or self._drained_by_others(rollout)
        ):
            self._end(rollout, RolloutState.FAILED, error=FaultRecord(_ABANDONED, why))
            return
        match rollout.state:
            case RolloutState.PENDING:
                self._begin(rollout, record)
            case RolloutState.DRAINING | RolloutState.ROLLING_BACK:
                self._await_drain(rollout, record)
            case RolloutState.STARTING | RolloutState.STARTING_BACK:
                self._await_start(rollout, record)
            case RolloutState.WATCHING:
                self._watch(rollout, record)

    def _begin(self, rollout: Rollout, record: StreamRecord) -> None:
        """Begin with what runs; where something else runs by now, nothing is touched."""
        with self._ending(rollout, RolloutState.REFUSED):
            if rollout.strategy == "restart":
                before = self._read_before(rollout, record)
                if self._waits_for_figures(rollout, record, before):
                    return
                compared = {"before": None if before is None else asdict(before)}
                self._store.drain_for_rollout(rollout, RolloutState.DRAINING, compared=compared)
            else:
                self._store.update_for_rollout(rollout, RolloutState.UPDATING, update_request(rollout))
        failpoint.hit("rollout.begun")

    def _read_before(self, rollout: Rollout, record: StreamRecord) -> WatchFigures | None:
        """Return the old release's figures; None where nothing is compared, or it has no status."""
        status = {} if rollout.is_trusted else self._read_status(record)
        return WatchFigures.of_last_minute(status, self._read_lag(record, status)) if status else None

    def _waits_for_figures(self, rollout: Rollout, record: StreamRecord, before: WatchFigures | None) -> bool:
        """Whether the process began so lately that its figures, compared with others, would prove nothing yet."""
        if rollout.is_trusted or _abandoned(rollout, record) or self._seconds(rollout) >= _FIGURES_SECONDS:
            return False
        return before is None or before.missing != [] or (before.seconds or 0.0) < RATE_SECONDS

    def _await_drain(self, rollout: Rollout, record: StreamRecord) -> None:
        """Start the other side once the stream has drained; the old one again where it was cancelled meanwhile."""
        if record.state is not StreamState.DRAINED:
            return
        is_forward = rollout.state is RolloutState.DRAINING and rollout.unwanted_by is None
        side, state = (
            (rollout.to_side, RolloutState.STARTING)
            if is_forward
            else (rollout.from_side, RolloutState.STARTING_BACK)
        )

        def guard(stopped: StreamRecord, living: Sequence[StreamRecord]) -> None:
            check_work(stopped.name, stopped.kind, side.options, living)

        with self._ending(rollout, RolloutState.FAILED):
            self._store.launch_for_rollout(rollout, state, side, guard=guard)
        failpoint.hit("rollout.launched")

    def _await_start(self, rollout: Rollout, record: StreamRecord) -> None:
        is_forward = rollout.state is RolloutState.STARTING
        is_late = self._seconds(rollout) >= _START_SECONDS
        if is_forward and rollout.unwanted_by is not None:
            self._take_back(rollout, _unwanted(rollout))
        elif record.state is StreamState.RUNNING:
            self._note_start(rollout, record)
        elif is_forward and (is_late or record.state is StreamState.FAILED):
            fault = record.error
            why = f"The stream did not run within {_START_SECONDS:.0f} s." if fault is None else fault.message
            code = "start_failed" if fault is None else fault.code
            self._fail(rollout, FaultRecord(code, f"The new release of {record.name} did not start: {why}"))
        elif is_late:
            why = (
                f"The old release of {record.name} was started, but it does not run. The stream is {record.state}."
            )
            self._end(rollout, RolloutState.FAILED, error=FaultRecord("no_way_back", why))

    def _note_start(self, rollout: Rollout, record: StreamRecord) -> None:
        if rollout.state is RolloutState.STARTING_BACK:
            fault = _unwanted(rollout) if rollout.unwanted_by is not None else None
            self._end(rollout, RolloutState.ROLLED_BACK, error=fault)
        elif rollout.is_trusted:
            self._end(rollout, RolloutState.STABLE, why="It was STABLE before.")
        else:
            compared = {**(rollout.compared or {}), "instance_id": record.instance_id}
            self._store.advance_rollout(rollout, RolloutState.WATCHING, compared=compared)
            failpoint.hit("rollout.watching")

    def _watch(self, rollout: Rollout, record: StreamRecord) -> None:
        if rollout.unwanted_by is not None:
            self._take_back(rollout, _unwanted(rollout))
            return
        if died := self._died(rollout):
            self._fail(rollout, FaultRecord("stream_died", f"The new release of {record.name} ended: {died}"))
            return
        known = rollout.compared or {}
        if record.instance_id != known.get("instance_id"):
            # Another machine has started it, and it ended by no fault that an agent saw.
            compared = {**known, "instance_id": record.instance_id}
            why = f"watched again as {record.instance_id}"
            self._store.advance_rollout(rollout, RolloutState.WATCHING, why=why, compared=compared)
            return
        if not record.is_held or record.state is not StreamState.RUNNING:
            # Its agent is gone, and the next one has not come: the figures prove nothing.
            return
        self._judge(rollout, record)

    def _judge(self, rollout: Rollout, record: StreamRecord) -> None:
        spec = _spec_of(rollout)
        seconds = self._seconds(rollout)
        status = self._read_status(record)
        after = WatchFigures.of_process(status, seconds, self._read_lag(record, status))
        verdict, why = judge(
            WatchFigures.before(rollout.compared),
            after,
            is_over=seconds >= spec.validate_.seconds,
            min_messages=spec.validate_.min_messages,
            bounds=spec.validate_.thresholds,
        )
        if verdict is WatchVerdict.OPEN:
            return
        compared = {**(rollout.compared or {}), "after": asdict(after)}
        if verdict is WatchVerdict.PASSED:
            self._end(rollout, RolloutState.STABLE, why=why, compared=compared)
        elif verdict is WatchVerdict.FAILED:
            self._fail(rollout, FaultRecord("rollout_failed", why), compared=compared)
        elif spec.validate_.when_inconclusive == "fail":
            self._fail(rollout, FaultRecord(_INCONCLUSIVE, why), compared=compared)
        else:
            fault = FaultRecord(_INCONCLUSIVE, f"{why} The new release stays.")
            self._end(rollout, RolloutState.STABLE, error=fault, compared=compared)

    def _died(self, rollout: Rollout) -> str | None:
        """Return why a process of the launch that is watched has ended, None while none has."""
        for event in self._list_events(rollout, StreamEventType.MOVED):
            if event.fields.get("to") == StreamState.FAILED:
                return event.why or "its log says why."
        return None

    def _drained_by_others(self, rollout: Rollout) -> str | None:
        """Return who else wants the stream drained while its rollout drains it; None where nobody does."""
        if rollout.state not in _DRAINS:
            return None
        for event in self._list_events(rollout, StreamEventType.WANTED):
            if event.actor != rollout.actor:
                return f"{event.actor} wanted {rollout.stream} DRAINED while the rollout was {rollout.state}."
        return None

    def _list_events(self, rollout: Rollout, kind: StreamEventType) -> list[StreamEvent]:
        """Return the lines of one type in the history of the launch that the rollout knows."""
        return self._store.list_stream_events(rollout.stream, generation=rollout.generation, kind=kind)

    # -- an update that carries it out

    def _follow_update(self, rollout: Rollout, update: StreamUpdate) -> None:
        if update.state.is_ended:
            self._note_update_end(rollout, update)
        elif rollout.unwanted_by is not None:
            self._take_update_back(rollout, update)

    def _note_update_end(self, rollout: Rollout, update: StreamUpdate) -> None:
        fault = None if update.error is None else FaultRecord(update.error.code, update.error.message)
        compared = {
            **(rollout.compared or {}),
            **(update.figures or {}),
            "paused_seconds": update.paused_seconds,
        }
        match update.state:
            case UpdateState.STABLE:
                state = RolloutState.STABLE
                # To a release that was STABLE before nothing was to be proven.
                fault = None if rollout.is_trusted else fault
            case UpdateState.REFUSED:
                state = RolloutState.REFUSED
            case UpdateState.ROLLED_BACK:
                is_early = update.handed_over_at is None
                state = RolloutState.CANCELLED if is_early else RolloutState.ROLLED_BACK
            case _:
                is_over = update.handed_over_at is not None
                # A shadow that ended touched nothing, and a person looks at the rows that differ.
                is_seen = not is_over and fault is not None and fault.code in _SHADOW_ENDS
                is_halted = is_seen or (is_over and update.request.is_halting)
                state = RolloutState.HALTED if is_halted else RolloutState.FAILED
        self._end(rollout, state, error=fault, compared=compared)

    def _take_update_back(self, rollout: Rollout, update: StreamUpdate) -> None:
        """Have the update of a cancelled rollout taken back as soon as it can be."""
        fault = UpdateFault(UNWANTED_UPDATE, _unwanted(rollout).message)
        with suppress(StreamStateError):
            self._store.take_update_back(update.id, fault, actor=rollout.actor, may_stay=True)

    # -- ends

    def _fail(self, rollout: Rollout, fault: FaultRecord, **changes: Any) -> None:
        if _spec_of(rollout).on_failure == "halt":
            self._end(rollout, RolloutState.HALTED, error=fault, **changes)
        else:
            self._take_back(rollout, fault, **changes)

    def _take_back(self, rollout: Rollout, fault: FaultRecord, **changes: Any) -> None:
        with self._ending(rollout, RolloutState.FAILED):
            self._store.drain_for_rollout(rollout, RolloutState.ROLLING_BACK, error=fault, **changes)
        failpoint.hit("rollout.rolling_back")

    @contextmanager
    def _ending(self, rollout: Rollout, state: RolloutState) -> Iterator[None]:
        """End the rollout in ``state`` when the block fails, unless another step or another try comes first."""
        try:
            yield
        except (RolloutStateError, StoreUnavailableError):
            raise
        except RefeedError as exc:
            self._end(rollout, state, error=FaultRecord.of(exc))

    def _end(self, rollout: Rollout, state: RolloutState, **changes: Any) -> None:
        ended = self._store.advance_rollout(rollout, state, **changes)
        _LOG.info("rollout_ended", rollout=ended.id, stream=ended.stream, state=state.value)

    def _seconds(self, rollout: Rollout) -> float:
        return (self._store.now() - rollout.changed_at).total_seconds()


def _spec_of(rollout: Rollout) -> RolloutManifest:
    return read_rollout(rollout.document)


def _unwanted(rollout: Rollout) -> FaultRecord:
    return FaultRecord(UNWANTED, f"{rollout.unwanted_by} cancelled the rollout.")


def _abandoned(rollout: Rollout, record: StreamRecord) -> str | None:
    """Return what somebody else did to the stream that ends its rollout; None where nobody did."""
    if record.generation != rollout.generation:
        return f"{record.name} was launched again while the rollout was {rollout.state}."
    wanted = Wanted.DRAINED if rollout.state in _DRAINS else Wanted.RUNNING
    if record.wanted is not wanted:
        return f"Somebody requested {record.wanted} for {record.name} while the rollout was {rollout.state}."
    return None
