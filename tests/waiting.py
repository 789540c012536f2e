"""Waits in a test for what other threads or processes do."""

import time
from collections.abc import Callable


def wait_until(
    is_true: Callable[[], object], why: str, *, seconds: float = 30.0, every_seconds: float = 0.01
) -> None:
    """Look every ``every_seconds`` until ``is_true``; fail with ``why`` and the bound after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {why}"
        time.sleep(every_seconds)
