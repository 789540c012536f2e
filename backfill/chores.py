"""What a supervisor does beside following jobs: verifying ended ones, and cleaning up after old ones."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import structlog

from jobs.chores import CLEAN_SECONDS, Chore, ChoreThread
from jobs.cleaning import clean_folders
from jobs.folder import JobFolders
from jobs.store import Job, JobStore

KIND: Final = "backfill"
ACTOR: Final = "refeed"
_VERIFY_TICK_SECONDS: Final = 2.0
_VERIFY_HOLD_SECONDS: Final = 600.0
_VERIFY_FIRST_SECONDS: Final = 5.0
# A merge runs every night: two of them have had their chance by then.
_VERIFY_LAST_SECONDS: Final = 48 * 3600.0
_KEEP_PLANS: Final = timedelta(days=1)

# Says what is proven of an ended job.
Verify = Callable[[Job], dict[str, Any]]

_LOG: Final = structlog.get_logger()


class Chores(ChoreThread):
    """The chores of backfills; of these, whoever waits for a verdict comes first."""

    def __init__(
        self, store: JobStore, folders: JobFolders | Path, *, verify: Verify | None, keep: timedelta
    ) -> None:
        self._store = store
        self._folders = folders
        self._verify = verify
        self._keep = keep
        verifying = [] if verify is None else [Chore(self._verify_ended, _VERIFY_TICK_SECONDS)]
        super().__init__([*verifying, Chore(self._clean, CLEAN_SECONDS)])

    def _verify_ended(self) -> None:
        assert self._verify is not None
        # One at a time: a big one must not keep the others from another replica.
        for job in self._store.list_unverified(KIND, 1, hold_seconds=_VERIFY_HOLD_SECONDS):
            verification = self._verify(job)
            again = verify_again_seconds(job, verification)
            self._store.set_verification(job.id, verification, actor=ACTOR, epoch=job.epoch, again_seconds=again)
            _LOG.info("verified", backfill_id=job.id, state=verification.get("state"))

    def _clean(self) -> None:
        now = datetime.now(UTC)
        clean_folders(self._store, self._folders, keep=self._keep, now=now)
        self._store.purge_plans(now - _KEEP_PLANS)


def verify_again_seconds(job: Job, verification: Mapping[str, Any]) -> float | None:
    """Return when to look again: what was published lands within seconds, and is merged by night."""
    state, landed = verification.get("state"), verification.get("landed")
    is_merged = state == "complete" and (verification.get("merged") or 0) >= (landed or 0)
    age = 0.0 if job.finished_at is None else (datetime.now(UTC) - job.finished_at).total_seconds()
    if state == "unknown" or landed is None or is_merged or age > _VERIFY_LAST_SECONDS:
        return None
    return max(_VERIFY_FIRST_SECONDS, age / 2)
