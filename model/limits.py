"""How often somebody may call: one bucket of tokens each, filled at a steady rate."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

# The number of callers that are told apart; the one that was not seen for longest starts again from nothing.
_MAX_CALLERS: Final = 10_000
_MINUTE_SECONDS: Final = 60.0


class TokenBuckets:
    """Lets every caller make ``per_minute`` calls a minute, a minute's worth of them at once; 0 is no limit.

    Example:
        >>> buckets = TokenBuckets(2, clock=lambda: 0.0)
        >>> [buckets.take("ann"), buckets.take("ann"), buckets.take("ann"), buckets.take("bob")]
        [0.0, 0.0, 30.0, 0.0]
    """

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_minute / _MINUTE_SECONDS
        self._size = float(per_minute)
        self._clock = clock
        self._lock = threading.Lock()
        # caller -> (tokens, when they were counted), the one that called last at the end
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> float:
        """Take a token and return 0, or return the seconds until there is one; that one is not taken."""
        if self._size == 0:
            return 0.0
        with self._lock:
            now = self._clock()
            tokens, counted_at = self._buckets.pop(caller, (self._size, now))
            tokens = min(self._size, tokens + (now - counted_at) * self._per_second)
            wait = 0.0 if tokens >= 1 else (1 - tokens) / self._per_second
            self._buckets[caller] = (tokens - 1 if wait == 0 else tokens, now)
            if len(self._buckets) > _MAX_CALLERS:
                self._buckets.popitem(last=False)
            return wait
