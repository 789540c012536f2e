"""Periodic tasks of backfills: verifying those that have ended, and forgetting old plans and sessions."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import structlog

from backfill.steer.kind import BACKFILL
from jobs.periodic import CLEAN_SECONDS, PeriodicTask
from jobs.store import Job, JobStore
from jobs.supervisor import ACTOR

_VERIFY_TICK_SECONDS: Final = 2.0
_VERIFY_HOLD_SECONDS: Final = 600.0
_VERIFY_FIRST_SECONDS: Final = 5.0
# A merge runs every night: two of them have had their chance by then.
_VERIFY_LAST_SECONDS: Final = 48 * 3600.0
_KEEP: Final = timedelta(days=1)

# Returns what is proven of an ended job.
Verify = Callable[[Job], dict[str, Any]]

_LOG: Final = structlog.get_logger()


def backfill_tasks(store: JobStore, verify: Verify | None = None) -> list[PeriodicTask]:
    """Return the tasks; of these the verdicts come first, because people wait for them."""
    purging = PeriodicTask(partial(_purge, store), CLEAN_SECONDS)
    if verify is None:
        return [purging]
    return [PeriodicTask(partial(_verify_ended, store, verify), _VERIFY_TICK_SECONDS), purging]


def _verify_ended(store: JobStore, verify: Verify) -> None:
    # One at a time: a big one must not keep the others from another replica.
    for job in store.list_unverified(BACKFILL.name, 1, hold_seconds=_VERIFY_HOLD_SECONDS):
        verification = verify(job)
        again = verify_again_seconds(job, verification)
        store.set_verification(job.id, verification, actor=ACTOR, epoch=job.epoch, again_seconds=again)
        _LOG.info("verified", backfill_id=job.id, state=verification.get("state"))


def _purge(store: JobStore) -> None:
    store.purge_short_lived(datetime.now(UTC) - _KEEP)


def verify_again_seconds(job: Job, verification: Mapping[str, Any]) -> float | None:
    """Return when to look again: what was published lands within seconds, and is merged by night."""
    state, landed = verification.get("state"), verification.get("landed")
    is_merged = state == "complete" and (verification.get("merged") or 0) >= (landed or 0)
    age = 0.0 if job.finished_at is None else (datetime.now(UTC) - job.finished_at).total_seconds()
    is_uncounted = landed is None and state != "pending"
    if is_uncounted or is_merged or age > _VERIFY_LAST_SECONDS:
        return None
    return max(_VERIFY_FIRST_SECONDS, age / 2)
