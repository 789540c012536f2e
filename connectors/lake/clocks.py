"""Clocks: the time since a moment, and the time of an object store, which this machine's clock does not change."""

import time
from collections.abc import Callable
from datetime import datetime
from typing import Final

from model.errors import WarehouseError

_MEASURED_FOR_SECONDS: Final = 3600.0
# Amazon S3 refuses requests of a clock that is further off (RequestTimeTooSkewed).
_MOST_APART_SECONDS: Final = 900.0


class Stopwatch:
    """Measures the time since it was made, also where the machine slept or one of its clocks stood still."""

    def __init__(self) -> None:
        self._began = time.monotonic(), time.time()

    def seconds(self) -> float:
        """Return how long ago it was made: the longer of what two clocks say."""
        return max(time.monotonic() - self._began[0], time.time() - self._began[1])


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


def refuse_wrong_clock(now: float, what: str) -> None:
    """Raise if this machine's clock is more than 15 minutes off from ``now``, the storage's time.

    Raises:
        WarehouseError: it is; ``what`` was not done.
    """
    apart = time.time() - now
    if abs(apart) > _MOST_APART_SECONDS:
        where = "ahead of" if apart > 0 else "behind"
        raise WarehouseError(
            f"This machine's clock is {abs(apart) / 60:.0f} minutes {where} the clock of the bucket. Correct the "
            f"machine's clock. Until then, Refeed does not {what}, because Delta Lake calculates the ages of "
            "files from the machine's clock."
        )


def _steady_seconds() -> float:
    # On Linux, it goes on while the machine sleeps.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
