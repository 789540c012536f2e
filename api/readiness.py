"""Whether a backfill could start now, asked of the store and of Pub/Sub at most once in a while."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

# /readyz is answered to anybody, and each look costs a call to Pub/Sub and one to the store.
MAX_AGE_SECONDS: Final = 2.0


class Readiness:
    """Remembers the answer of ``check`` for two seconds; callers meanwhile share one look.

    The trap: an answer may be two seconds old, and as long older as the look itself takes.
    """

    def __init__(
        self, check: Callable[[], Mapping[str, str]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._check = check
        self._clock = clock
        self._lock = threading.Lock()
        self._problems: Mapping[str, str] = {}
        self._looked_at: float | None = None

    def problems(self) -> Mapping[str, str]:
        """Return what is not ready, by name, with the reason."""
        # Blocks callers while one looks: they get that look's answer.
        with self._lock:
            if self._looked_at is None or self._clock() - self._looked_at > MAX_AGE_SECONDS:
                self._problems = self._check()
                self._looked_at = self._clock()
            return self._problems
