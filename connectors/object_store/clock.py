"""The clock of an object store, which this machine's clock does not change."""

import time
from collections.abc import Callable
from datetime import datetime
from typing import Final

_MEASURED_FOR_SECONDS: Final = 3600.0


class StoreClock:
    """The clock of an object store, measured once an hour; a change of this machine's clock does not move it."""

    def __init__(self) -> None:
        self._measured: tuple[float, float] | None = None

    def now(self, measure: Callable[[], datetime]) -> float:
        """Return the store's time in Unix seconds; ``measure`` returns it by requests."""
        measured = self._measured
        if measured is None or _steady_seconds() - measured[0] > _MEASURED_FOR_SECONDS:
            # An answer is later than what it says.
            began = _steady_seconds()
            measured = self._measured = began, measure().timestamp()
        return measured[1] + _steady_seconds() - measured[0]


def _steady_seconds() -> float:
    # On Linux, it goes on while the machine sleeps.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
