"""Which slots of a schedule get a run now, and how each run begins."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Final

import structlog

from model.manifest_record import NewRun, RunState, ScheduleRun, Settlement
from rollout.manifests.schedule import ScheduleManifest

# A slot that was seen later than this was missed: the service was away.
GRACE_SECONDS: Final = 60.0
_LOG: Final = structlog.get_logger()


def settle_slots(
    spec: ScheduleManifest, settled_until: datetime, now: datetime, living: Sequence[ScheduleRun]
) -> Settlement | None:
    """Return the runs of the slots that are due and not settled yet; None while there are none.

    Without a catch-up only the newest slot gets a run, and only where it is at most a minute late. With one, the
    newest slots within its window do, one after another. While ``living`` runs go on the schedule's overlap
    decides, and of several slots about the newest.
    """
    window = GRACE_SECONDS if spec.catch_up is None else max(GRACE_SECONDS, spec.catch_up.window_seconds)
    most = 1 if spec.catch_up is None else spec.catch_up.max
    timing = spec.timing()
    since = max(settled_until, now - timedelta(seconds=window))
    due = list(takewhile(lambda each: each <= now, timing.after(since)))
    if not due:
        return None
    chosen = due[-most:]
    if len(chosen) < len(due):
        _LOG.warning("slots were missed", schedule=spec.name, slots=len(due) - len(chosen))
    if living:
        states = _beside(spec, len(chosen), living)
    else:
        states = [(RunState.STARTING, None), *[(RunState.QUEUED, None)] * (len(chosen) - 1)]
    runs = [
        NewRun(slot, timing.before(slot), state, why) for slot, (state, why) in zip(chosen, states, strict=True)
    ]
    request = {"job": spec.job.model_dump(mode="json", by_alias=True), "time_zone": spec.time_zone}
    return Settlement(due[-1], tuple(runs), request, ends_others=bool(living) and spec.overlap == "replace")


def _beside(
    spec: ScheduleManifest, count: int, living: Sequence[ScheduleRun]
) -> list[tuple[RunState, str | None]]:
    """Return how runs begin beside living ones: all but the newest are left out."""
    before = living[-1]
    skipped = (RunState.SKIPPED, f"The run of {before.slot:%Y-%m-%dT%H:%MZ} goes on.")
    queue_is_full = spec.overlap == "queue" and any(run.state is RunState.QUEUED for run in living)
    is_left_out = spec.overlap == "skip" or queue_is_full
    return [*[skipped] * (count - 1), skipped if is_left_out else (RunState.QUEUED, None)]
