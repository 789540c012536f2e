"""The clock of an object store, which this machine's clock does not change."""

import time
from collections.abc import Callable
from datetime import datetime
from typing import Final

_MEASURED_FOR_SECONDS: Final = 3600.0
# So wrong are the clocks with which the tests simulate a stream; see docs/simulation.md.
_MOST_APART_SECONDS: Final = 60.0


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


def wrong_clock(now: float) -> str | None:
    """Return what is wrong with this machine's clock if a store's is ``now``; None if less than a minute is."""
    apart = time.time() - now
    if abs(apart) <= _MOST_APART_SECONDS:
        return None
    where = "ahead of" if apart > 0 else "behind"
    return (
        f"This machine's clock is {abs(apart):,.0f} s {where} the clock of the bucket. Synchronise this machine's "
        "clock, for example with chrony or systemd-timesyncd."
    )


def _steady_seconds() -> float:
    # On Linux, it goes on while the machine sleeps.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
