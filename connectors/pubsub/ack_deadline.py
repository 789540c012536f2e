"""Until when the leases of pulled messages are held for sure, which Pub/Sub tells nobody."""

import math
import time
from collections.abc import Callable
from typing import Self


class AckDeadline:
    """The moment up to which no lease of a batch's messages can have run out.

    An acknowledgement after it is taken without an error, and may have no effect: "Acknowledging a message whose
    ack deadline has expired may succeed, but such a message may be redelivered later", whenever that is
    (https://cloud.google.com/pubsub/docs/reference/rest/v1/projects.subscriptions/acknowledge). An extension that
    is late has none either. So it counts only if it is answered before this moment.

    Two clocks count, whichever says later: while a machine sleeps the monotonic one may stand still, and the
    wall clock may be set back. A wall clock that is set ahead only has ids remembered that need not be.

    Example:
        >>> deadline = AckDeadline()
        >>> deadline.begin(10, age_seconds=0), deadline.is_over
        (None, False)
        >>> deadline.begin(10, age_seconds=11), deadline.is_over
        (None, True)
        >>> deadline.extend(60, lambda: True)
        >>> deadline.is_over
        True
    """

    def __init__(self) -> None:
        # By the monotonic clock and by the wall clock.
        self._ends = math.inf, math.inf

    @classmethod
    def at(cls, unix_seconds: float) -> Self:
        """Return what another process has noted, as :attr:`unix_seconds`."""
        found = cls()
        found._ends = time.monotonic() + unix_seconds - time.time(), unix_seconds
        return found

    @property
    def unix_seconds(self) -> float:
        """The moment for another process, by the wall clock; infinite as long as there is no lease."""
        return min(self._ends[1], time.time() + self._ends[0] - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether a lease may have run out."""
        return time.monotonic() >= self._ends[0] or time.time() >= self._ends[1]

    def begin(self, seconds: float, *, age_seconds: float) -> None:
        """Take in leases of ``seconds`` that began ``age_seconds`` ago at the earliest."""
        left = seconds - age_seconds
        ends = time.monotonic() + left, time.time() + left
        self._ends = min(self._ends[0], ends[0]), min(self._ends[1], ends[1])

    def extend(self, seconds: float, send: Callable[[], bool]) -> None:
        """Have ``send`` extend all leases by ``seconds``; it says whether all were extended."""
        ends = time.monotonic() + seconds, time.time() + seconds
        if send() and not self.is_over:
            self._ends = ends
