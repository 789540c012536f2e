"""Keeps slow calls from taking every thread of the service: a few run at a time, one more is refused."""

import threading
from typing import Final

from model.errors import ServiceBusyError

# Two queries run at once and the others wait (connectors/lake/query_process.py); the service has 40 threads.
MAX_SLOW_CALLS: Final = 8
# Each takes two milliseconds for each time that it reads its query, and the gate reads two at once.
MAX_QUICK_CALLS: Final = 8


class Bulkhead:
    """Lets ``max_calls`` blocks run at once; entering one more raises at once instead of waiting.

    Example:
        >>> slow = Bulkhead(1)
        >>> with slow, slow:
        ...     pass
        Traceback (most recent call last):
            ...
        model.errors.ServiceBusyError: At most 1 plans and queries can run at the same time. Try again in a moment.
    """

    def __init__(self, max_calls: int = MAX_SLOW_CALLS, what: str = "plans and queries") -> None:
        self._what = what
        self._max_calls = max_calls
        self._places = threading.BoundedSemaphore(max_calls)

    def __enter__(self) -> None:
        """Take a place.

        Raises:
            ServiceBusyError: all are taken.
        """
        if not self._places.acquire(blocking=False):
            raise ServiceBusyError(
                f"At most {self._max_calls} {self._what} can run at the same time. Try again in a moment."
            )

    def __exit__(self, *_: object) -> None:
        """Give the place back."""
        self._places.release()
