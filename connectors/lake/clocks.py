"""The time since a moment, and whether this machine's clock is right."""

import time
from typing import Final

from model.errors import WarehouseError

# Amazon S3 refuses requests of a clock that is further off (RequestTimeTooSkewed).
_MOST_APART_SECONDS: Final = 900.0


class Stopwatch:
    """Measures the time since it was made, also where the machine slept or one of its clocks stood still."""

    def __init__(self) -> None:
        self._began = time.monotonic(), time.time()

    def seconds(self) -> float:
        """Return how long ago it was made: the longer of what two clocks say."""
        return max(time.monotonic() - self._began[0], time.time() - self._began[1])


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
