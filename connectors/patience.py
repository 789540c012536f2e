"""For how long a call that fails in passing is tried again, and the pauses between."""

import random
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from model.errors import QuotaExceededError, WarehouseUnavailableError

Result = TypeVar("Result")

_FIRST_PAUSE_SECONDS: Final = 0.1
_FIRST_QUOTA_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 10.0


class Patience:
    """For how long something that fails in passing is tried again, and the pauses between.

    They double from a tenth of a second to ten seconds, a quota's begin at a second, and each is spread by half,
    so that many tasks do not come back at once.
    """

    def __init__(self, seconds: float, wait: Callable[[float], Any] = time.sleep) -> None:
        self._seconds = seconds
        self._wait = wait
        self._ends_at: float | None = time.monotonic() + seconds
        self._pause = _FIRST_PAUSE_SECONDS

    def renew(self) -> None:
        """Restart the time and the pauses with the next failure: there was progress."""
        self._ends_at = None
        self._pause = _FIRST_PAUSE_SECONDS

    def wait_after(self, failure: WarehouseUnavailableError) -> None:
        """Wait before the next try.

        Raises:
            WarehouseUnavailableError: ``failure`` itself, when the time is over.
        """
        if isinstance(failure, QuotaExceededError):
            self._pause = max(self._pause, _FIRST_QUOTA_PAUSE_SECONDS)
        now = time.monotonic()
        if self._ends_at is None:
            self._ends_at = now + self._seconds
        if now + self._pause > self._ends_at:
            raise failure
        self._wait(self._pause * random.uniform(0.5, 1.0))  # noqa: S311 spreads load, keeps no secret
        self._pause = min(self._pause * 2, _LONGEST_PAUSE_SECONDS)


def retry_passing(
    call: Callable[[], Result], *, seconds: float, wait: Callable[[float], Any] = time.sleep
) -> Result:
    """Return what ``call`` returns; while it raises an error that passes, call it again for ``seconds``."""
    patience = Patience(seconds, wait)
    while True:
        try:
            return call()
        except WarehouseUnavailableError as exc:
            patience.wait_after(exc)
