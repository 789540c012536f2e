"""The steps of an update by a restart: the agent drains the old process, then starts the new one."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from jobs.steps import Fail, Found, Next, Stay, Step
from jobs.store import JobStore, update_of
from model.fault import FaultRecord
from model.stream_record import StreamState
from model.stream_update import UpdateState
from rollout.standbys import UpdatedStream
from rollout.update_ends import PASSING, ReadLag, Run, UpdateEnds
from rollout.watch import WatchFigures
from streams.status import RATE_SECONDS

# Timeout for the figures of the old release's last minute.
_FIGURES_SECONDS: Final = 120.0
# The drain has a timeout of two minutes, and the agent kills the process after one more minute.
_STOP_SECONDS: Final = 240.0
# Timeout until the new process runs; Spark needs a minute.
_START_SECONDS: Final = 300.0


class RestartSteps:
    """Stops the stream, then starts it with the other release and options; the way back has the same two steps.

    During the stop step the agent drains the process and starts none. The transaction that begins the start step
    writes the other release and options into the stream's record. From then on the agent starts these, also after
    a process is killed.
    """

    def __init__(self, store: JobStore, ends: UpdateEnds, read_lag: ReadLag) -> None:
        self._store = store
        self._ends = ends
        self._read_lag = read_lag

    def there(self) -> tuple[Step[UpdatedStream], ...]:
        """Return the steps from the check to the watch."""
        measure = self._ends.while_wanted(self._measure)
        return (
            Step("measure", measure, _FIGURES_SECONDS, passing=PASSING, gave_up=self._end_measuring),
            *self._exchange("stop", "start"),
        )

    def back(self) -> tuple[Step[UpdatedStream], ...]:
        """Return the steps after a failed watch or start."""
        return self._exchange("back_stop", "back_start")

    def _exchange(self, stop: str, start: str) -> tuple[Step[UpdatedStream], ...]:
        wanted, fast = self._ends.while_wanted, partial(Step, passing=PASSING)
        return (
            fast(stop, wanted(self._stop), _STOP_SECONDS, gave_up=self._end_stop),
            fast(start, wanted(self._start), _START_SECONDS, gave_up=self._end_start),
        )

    def _measure(self, run: Run) -> Found:
        """Wait until the old release has enough figures for a comparison."""
        found = self._figures(run)
        if found is None or found.missing or (found.seconds or 0.0) < RATE_SECONDS:
            return Stay()
        return _end_measured(found)

    def _end_measuring(self, run: Run, _: FaultRecord) -> Next:
        return _end_measured(self._figures(run))

    def _figures(self, run: Run) -> WatchFigures | None:
        process = run.place.held.running
        if process is None or not (status := process.status()):
            return None
        return WatchFigures.of_last_minute(status, self._read_lag(run.place.record, status))

    def _stop(self, run: Run) -> Found:
        """Wait while the agent drains the process, or kills it after the timeout."""
        return Stay() if run.place.held.process is not None else self._end_stopped(run)

    def _end_stop(self, run: Run, _: FaultRecord) -> Next:
        if (process := run.place.held.process) is not None:
            process.kill()
            run.place.held.process = None
        return self._end_stopped(run)

    def _end_stopped(self, run: Run) -> Next:
        update, held = update_of(run.job), run.place.held
        held.start_at, held.deaths, held.kill_at = 0.0, 0, None
        memory: dict[str, Any] = {"outgoing_id": run.place.record.instance_id}
        if update.error is not None:
            # The update is on its way back, or was reverted meanwhile.
            return Next("back_start", memory)
        return Next("start", {**memory, "handed_over_at": self._store.now()})

    def _start(self, run: Run) -> Found:
        """Wait until the agent has started the stream."""
        # Read again: this step may have changed the record in this look.
        record, update = self._store.get_stream(run.place.record.name), update_of(run.job)
        if record.instance_id not in {update.outgoing_id, update.instance_id}:
            run.note({"instance_id": record.instance_id})
        is_forward = update.state is UpdateState.RESTARTING
        if record.state is StreamState.RUNNING:
            return Next("watch") if is_forward else self._ends.end_back(run)
        if is_forward and record.state is StreamState.FAILED:
            fault = record.error or FaultRecord("start_failed", "The stream's log has the reason.")
            return self._fail_start(run, fault)
        return Stay()

    def _end_start(self, run: Run, _: FaultRecord) -> Next | Fail:
        update, place = update_of(run.job), run.place
        record = self._store.get_stream(update.stream)
        is_seen = record.instance_id == update.instance_id != update.outgoing_id
        if run.job.attempt == 1 and not is_seen and record.state is not StreamState.FAILED:
            # No agent was running that could start the stream: begin the timeout again, once.
            return Next(run.job.step or "", why="No agent started the stream.")
        if update.state is UpdateState.RESTARTING:
            why = f"The stream did not run within {_START_SECONDS:.0f} s."
            return self._fail_start(run, FaultRecord("start_failed", why))
        why = f"The old release of {update.stream} was started, but it does not run. The stream is {record.state}."
        logs: Mapping[str, str] = {"old": place.starter.logs.last_lines(update.stream, update.instance_id)}
        return self._ends.end_without_way_back(run, why, logs)

    def _fail_start(self, run: Run, fault: FaultRecord) -> Next | Fail:
        name = run.place.record.name
        return self._ends.go_back(run, fault.code, f"The new release of {name} did not start: {fault.message}")


def _end_measured(found: WatchFigures | None) -> Next:
    return Next("stop", {"figures": {"before": None if found is None else asdict(found)}})
