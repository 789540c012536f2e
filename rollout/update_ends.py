"""The ends of an update's steps: the way back after a fault, and the cleanup."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from jobs.steps import Fail, Found, Next, StepRun
from jobs.store import JobStore, first_step_back, update_of
from model.errors import RefeedError, StreamStateError
from model.job import JobState
from model.stream_options import StreamKind
from model.stream_record import StreamRecord, Wanted
from model.stream_snapshot import SnapshotReason, SnapshotState
from model.stream_update import UNWANTED, StreamUpdate, UpdateFault, UpdateReplay, UpdateState
from pipeline.plan import PlanFacts
from rollout.standbys import Standbys, UpdatedStream
from streams.snapshot import PLAN_FILE

# Errors after which a step is tried again.
PASSING: Final = (RefeedError, OSError)

ReadLag = Callable[[StreamRecord, Mapping[str, Any]], float | None]
Run = StepRun[UpdatedStream]


class UpdateEnds:
    """Ends updates or takes them back, in the same way for every strategy."""

    def __init__(self, store: JobStore, standbys: Standbys) -> None:
        self._store = store
        self._standbys = standbys

    def while_wanted(self, look: Callable[[Run], Found]) -> Callable[[Run], Found]:
        """Return the step ``look`` with a check before it that ends the update if its stream is to end."""

        def look_or_end(run: Run) -> Found:
            wanted = run.place.record.wanted
            if wanted is Wanted.RUNNING:
                return look(run)
            return self.fail(run, update_of(run.job).abandoned(wanted))

        return look_or_end

    def go_back(self, run: Run, code: str, why: str) -> Next | Fail:
        """Go back after a fault of the new release; without a way back, or if the request halts, keep it."""
        update, place = update_of(run.job), run.place
        last_lines = partial(place.starter.logs.last_lines, update.stream)
        logs = {"old": last_lines(update.outgoing_id), "new": last_lines(update.instance_id)}
        # A new release that never owned the stream has written nothing, and the old state is unchanged.
        has_epoch = place.status_of(update.instance_id).get("epoch") is not None
        is_written = update.state is not UpdateState.HANDING_OVER or has_epoch
        # A person's revert goes back even if a failure would halt.
        is_halting = update.request.is_halting and code != UNWANTED
        if not is_written or (update.has_way_back and not is_halting):
            fault = UpdateFault(code, why, logs).shown()
            return Next(first_step_back(update.request), {"error": fault}, why=str(fault))
        if is_halting:
            message = f"{why} The new release stays and is started again, because on_failure is halt."
            return self.fail(run, UpdateFault(code, message, logs))
        no_way = "; ".join((update.checked or {}).get("no_way_back", ()))
        message = f"{why} The update can't be rolled back ({no_way}). The new release stays and is started again."
        return self.fail(run, UpdateFault("no_way_back", message, logs))

    def end_back(self, run: Run) -> Fail:
        """End an update after the stream has the old release again."""
        update = update_of(run.job)
        fault = update.error or UpdateFault(UNWANTED, "The update was rolled back.")
        replay = _replay_of(update, run.place)
        return self.fail(run, fault, outcome=UpdateState.ROLLED_BACK, replay=replay)

    def end_without_way_back(self, run: Run, why: str, logs: Mapping[str, str]) -> Fail:
        """End an update that can't go back; ``why`` has the reason."""
        update = update_of(run.job)
        if update.error is not None:
            why += f" The update was being rolled back because: {update.error.message}"
        return self.fail(run, UpdateFault("no_way_back", why, logs))

    def fail(
        self, run: Run, fault: UpdateFault, *, outcome: UpdateState = UpdateState.FAILED, **memory: Any
    ) -> Fail:
        """Fail an update, and clean up after it."""
        self.clean_up(run)
        fault = fault.shown()
        state = JobState.CANCELLED if fault.code == UNWANTED else JobState.FAILED
        return Fail(fault, {"error": fault, "outcome": outcome, **memory}, state)

    def clean_up(self, run: Run) -> None:
        """Remove everything of an ended update except its snapshot and the logs of the stream's processes."""
        update, place = update_of(run.job), run.place
        self._standbys.drop(update.stream)
        own = [each for each in (place.record.instance_id, update.instance_id, update.outgoing_id) if each]
        with suppress(OSError):
            place.starter.logs.remove_standbys(update.stream, keep=own)
        if update.snapshot_id is None:
            return
        for made in self._store.list_snapshots(stream=update.stream, reason=SnapshotReason.UPDATE):
            if made.id != update.snapshot_id and made.state is not SnapshotState.DELETING:
                with suppress(StreamStateError):
                    self._store.delete_snapshot(made.id)


def _replay_of(update: StreamUpdate, place: UpdatedStream) -> UpdateReplay | None:
    """Return the range of messages that the new release may have staged; None for a backup: it stages none."""
    if place.record.kind is not StreamKind.PIPELINE or update.handed_over_at is None:
        return None
    lag = ((update.figures or {}).get("before") or {}).get("lag_seconds")
    since = None if lag is None else update.handed_over_at - timedelta(seconds=lag)
    return UpdateReplay(since, datetime.now(UTC), PlanFacts.read(place.state / PLAN_FILE).topics)
