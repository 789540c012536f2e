"""The engine of rollouts: brings each one step further, whichever replica looks at it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import Any, Final

import structlog

from jobs.store import JobStore
from model import failpoint
from model.errors import RefeedError, RolloutStateError, StoreUnavailableError
from model.failure import fixed_sentence
from model.fault import FaultRecord
from model.rollout_record import Rollout, RolloutState
from model.stream_record import StreamEvent, StreamEventType, StreamRecord, StreamState, Wanted
from model.stream_update import StreamUpdate, UpdateFault, UpdateState
from rollout.manifests.rollout import RolloutManifest, read_rollout
from rollout.rollouts import UNWANTED, update_request
from rollout.service import check_work
from rollout.shadow_work import DIFFERS, INCONCLUSIVE
from rollout.updates import UNWANTED as UPDATE_UNWANTED
from rollout.watch import WatchFigures, WatchVerdict, judge
from rollout.watch_query import ANSWER_SECONDS, WatchRows
from streams.status import RATE_SECONDS

# How long a launched release may take until it runs; Spark takes a minute.
_START_SECONDS: Final = 300.0
# How long a restart waits for the figures of the old release's last minute.
_FIGURES_SECONDS: Final = 120.0
# A replica that has not finished a validation's query by then has died, and another one runs the query.
_QUERY_SECONDS: Final = 4 * ANSWER_SECONDS
_ABANDONED: Final = "rollout_abandoned"
_INCONCLUSIVE: Final = "rollout_inconclusive"
_DRAINS: Final = frozenset({RolloutState.DRAINING, RolloutState.ROLLING_BACK})
_SHADOW_ENDS: Final = frozenset({DIFFERS, INCONCLUSIVE})
_LOG: Final = structlog.get_logger()

ReadStatus = Callable[[StreamRecord], Mapping[str, Any]]
ReadLag = Callable[[StreamRecord, Mapping[str, Any]], float | None]
CountRows = Callable[[str, datetime, int], WatchRows]


class RolloutEngine:
    """Looks at all rollouts once a second; every replica of the service has one, and they need no leader.

    What a step does to the stream is kept in the same transaction as the step: of several replicas one takes it,
    and one that dies leaves nothing half done. ``read_status`` returns the newest status of a stream's
    process, empty where nobody knows; ``read_lag`` the age of the oldest message that waits for it;
    ``count_rows`` how many rows a query of a validation gives.
    """

    def __init__(
        self, store: JobStore, *, read_status: ReadStatus, read_lag: ReadLag, count_rows: CountRows
    ) -> None:
        self._store = store
        self._count_rows = count_rows
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
        is_update = rollout.strategy != "restart" and rollout.state is not RolloutState.PENDING
        if is_update and rollout.state is not RolloutState.VALIDATING:
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
            case RolloutState.VALIDATING:
                self._follow_query(rollout)

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
            self._pass(rollout, why=why, compared=compared)
        else:
            code = "rollout_failed" if verdict is WatchVerdict.FAILED else _INCONCLUSIVE
            self._fail(rollout, FaultRecord(code, why), compared=compared)

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

    # -- the query of the validation

    def _pass(self, rollout: Rollout, **changes: Any) -> None:
        """Go on after a watch that proves nothing bad: with the query where there is one."""
        if _spec_of(rollout).validate_.query is None or rollout.is_trusted or rollout.unwanted_by is not None:
            self._end(rollout, RolloutState.STABLE, **changes)
        else:
            self._ask(rollout, **changes)

    def _follow_query(self, rollout: Rollout) -> None:
        """Ask again where the replica that asked has died."""
        if rollout.unwanted_by is not None:
            self._take_back(rollout, _unwanted(rollout))
        elif self._seconds(rollout) >= _QUERY_SECONDS:
            self._ask(rollout, why="asked again")

    def _ask(self, rollout: Rollout, **changes: Any) -> None:
        """Take the step to VALIDATING, so that no other replica asks, and end it by the query's rows."""
        asked = self._store.advance_rollout(rollout, RolloutState.VALIDATING, **changes)
        wanted = _spec_of(rollout).validate_
        try:
            found = self._count_rows(str(wanted.query), self._since(rollout), wanted.max_bytes_billed)
        except StoreUnavailableError:
            raise
        except RefeedError as exc:
            _LOG.warning("rollout_query_failed", rollout=rollout.id, problem=exc.message)
            # An engine's own words may quote values of messages.
            why = f"The validation query failed: {exc.code}: {fixed_sentence(exc.code)}"
            self._fail(asked, FaultRecord(_INCONCLUSIVE, why))
            return
        if found.count:
            self._fail(asked, FaultRecord("rollout_failed", f"The validation query returned {found}."))
        else:
            self._end(asked, RolloutState.STABLE, why="The query gave no rows.")

    def _since(self, rollout: Rollout) -> datetime:
        """Return when the new release began."""
        if rollout.update_id is not None:
            update = self._store.get_update(rollout.update_id)
            return update.handed_over_at or update.created_at
        return next(step.at for step in reversed(rollout.steps) if step.state is RolloutState.STARTING)

    # -- an update that carries it out

    def _follow_update(self, rollout: Rollout, update: StreamUpdate) -> None:
        is_back = rollout.state is RolloutState.ROLLING_BACK
        if update.state.is_ended:
            self._note_update_end(rollout, update, is_back=is_back)
        elif update.state is UpdateState.INCONCLUSIVE:
            self._decide(rollout, update, is_back=is_back)
        elif rollout.unwanted_by is not None and not is_back:
            self._take_update_back(rollout, update)

    def _note_update_end(self, rollout: Rollout, update: StreamUpdate, *, is_back: bool) -> None:
        fault = None if update.error is None else FaultRecord(update.error.code, update.error.message)
        compared = {
            **(rollout.compared or {}),
            # On the way back nothing is compared.
            **({} if is_back else {**(update.figures or {}), "paused_seconds": update.paused_seconds}),
        }
        end = partial(self._end, rollout, error=fault, compared=compared)
        if update.state is UpdateState.STABLE:
            if is_back:
                end(RolloutState.ROLLED_BACK)
            else:
                self._pass(rollout, error=fault, compared=compared)
        elif is_back:
            end(RolloutState.FAILED)
        elif update.state is UpdateState.REFUSED:
            end(RolloutState.REFUSED)
        elif update.state is UpdateState.ROLLED_BACK:
            end(RolloutState.CANCELLED if update.handed_over_at is None else RolloutState.ROLLED_BACK)
        else:
            is_over = update.handed_over_at is not None
            is_halted = is_over if update.request.is_halting else False
            # Nothing was touched, and a person looks at the rows that differ.
            is_halted |= not is_over and fault is not None and fault.code in _SHADOW_ENDS
            end(RolloutState.HALTED if is_halted else RolloutState.FAILED)

    def _decide(self, rollout: Rollout, update: StreamUpdate, *, is_back: bool) -> None:
        """Decide an update that nobody could prove good: nobody waits at a screen for a rollout."""
        why = "" if update.error is None else update.error.message
        if is_back or rollout.is_trusted:
            self._store.advance_update(
                update, UpdateState.STABLE, actor=rollout.actor, why="It was STABLE before."
            )
        elif rollout.unwanted_by is not None:
            self._take_update_back(rollout, update)
        elif update.has_way_back and not update.request.is_halting:
            fault = UpdateFault(_INCONCLUSIVE, why)
            self._store.advance_update(update, UpdateState.ROLLING_BACK, actor=rollout.actor, error=fault)
        else:
            fault = UpdateFault(_INCONCLUSIVE, f"{why} The new release stays.")
            self._store.advance_update(update, UpdateState.FAILED, actor=rollout.actor, error=fault)

    def _take_update_back(self, rollout: Rollout, update: StreamUpdate) -> None:
        """Have the update of a cancelled rollout taken back as soon as it can be."""
        fault = UpdateFault(UPDATE_UNWANTED, _unwanted(rollout).message)
        if update.state.is_before_hand_over:
            self._store.advance_update(update, UpdateState.ROLLED_BACK, actor=rollout.actor, error=fault)
        elif update.state in {UpdateState.WATCHING, UpdateState.INCONCLUSIVE}:
            state = UpdateState.ROLLING_BACK if update.has_way_back else UpdateState.FAILED
            self._store.advance_update(update, state, actor=rollout.actor, error=fault)

    # -- ends

    def _fail(self, rollout: Rollout, fault: FaultRecord, **changes: Any) -> None:
        if _spec_of(rollout).on_failure == "halt":
            self._end(rollout, RolloutState.HALTED, error=fault, **changes)
        else:
            self._take_back(rollout, fault, **changes)

    def _take_back(self, rollout: Rollout, fault: FaultRecord, **changes: Any) -> None:
        with self._ending(rollout, RolloutState.FAILED):
            if rollout.update_id is None:
                self._store.drain_for_rollout(rollout, RolloutState.ROLLING_BACK, error=fault, **changes)
            else:
                back = update_request(rollout, is_back=True)
                self._store.update_for_rollout(rollout, RolloutState.ROLLING_BACK, back, error=fault, **changes)
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
