"""Renews a supervisor's leases while it looks at its jobs, however long a look takes."""

import threading
import time
from typing import Final

import structlog

from jobs.loop import BackgroundLoop
from jobs.store import JobStore

_LOG: Final = structlog.get_logger()
# Renewals per lease: one that fails or comes late does no harm.
_TIMES: Final = 4
# A look that hangs for this many lease times counts as dead: another supervisor gets the jobs.
_STUCK_LEASES: Final = 10


class Renewal:
    """Renews an owner's leases from a thread of its own.

    With renewals between two looks only, a slow look (a full disk, a loaded database) would lose jobs that are
    being launched. If that happened to two supervisors in turn, neither would ever launch a job.
    Each look must call :meth:`looked`: a supervisor that hangs does not keep its leases for ever.
    """

    def __init__(self, store: JobStore, owner: str, lease_seconds: float) -> None:
        self._store = store
        self._owner = owner
        self._lease_seconds = lease_seconds
        self._every_seconds = lease_seconds / _TIMES
        self._renewed_at: float | None = None
        self._looked_at = time.monotonic()
        self._lock = threading.Lock()
        self.loop = BackgroundLoop("renewal", self._renew_unless_stuck, every_seconds=self._look_seconds)

    def start(self) -> None:
        """Renew in the background until :meth:`stop`."""
        self._looked_at = time.monotonic()
        self.loop.start()

    def stop(self) -> None:
        """Stop renewing; after the return nothing is written any more."""
        self.loop.stop()

    def looked(self) -> None:
        """Note that a look begins, and renew if due.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        self._looked_at = time.monotonic()
        self._renew_when_due()

    def _look_seconds(self) -> float:
        return self._every_seconds / 2

    def _renew_unless_stuck(self) -> None:
        silence = time.monotonic() - self._looked_at
        if silence > _STUCK_LEASES * self._lease_seconds:
            _LOG.error("supervision hangs; other supervisors take over its jobs", seconds=round(silence))
        else:
            self._renew_when_due()

    def _renew_when_due(self) -> None:
        with self._lock:
            now = time.monotonic()
            if self._renewed_at is None or now - self._renewed_at >= self._every_seconds:
                self._store.renew(self._owner, self._lease_seconds)
                self._renewed_at = now
