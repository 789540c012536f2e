"""Runs streams' work in threads: one at a time for each stream, with a backoff after failures."""

import threading
import time
from collections.abc import Callable
from typing import Final

import structlog

from model.errors import RefeedError

_log = structlog.get_logger(__name__)

FIRST_WAIT_SECONDS: Final = 5.0
LONGEST_WAIT_SECONDS: Final = 300.0


class StreamThreads:
    """Begins work in a thread of its stream; ``kind`` names the threads.

    After an error a later look begins the work again: after five seconds, then after twice as long each time, at
    most five minutes. Waits are by ``key``, so that one task of a stream does not wait for another.
    """

    def __init__(self, kind: str, *, now: Callable[[], float] = time.monotonic) -> None:
        self._kind = kind
        self._now = now
        self._threads: dict[str, threading.Thread] = {}
        # The key and the begin of each thread's work.
        self._begun: dict[str, tuple[str, float]] = {}
        # By key: when its work may begin again, and the wait after the next failure.
        self._waits: dict[str, tuple[float, float]] = {}
        self._waits_lock = threading.Lock()

    def begin(self, stream: str, key: str, work: Callable[[], object]) -> None:
        """Begin the work, unless the stream's thread is busy, or the key waits after a failure."""
        thread = self._threads.get(stream)
        if thread is not None and thread.is_alive():
            return
        wait = self._waits.get(key)
        if wait is not None and self._now() < wait[0]:
            return
        thread = threading.Thread(
            target=self._run, args=(stream, key, work), name=f"{self._kind}-{stream}", daemon=True
        )
        self._threads[stream] = thread
        self._begun[stream] = (key, self._now())
        thread.start()

    def abandon(self, stream: str, key: str, *, older_than_seconds: float) -> None:
        """Forget a stream's thread if it works on ``key`` or hangs; the next work begins in a new thread.

        A thread that works on another key counts as hung after ``older_than_seconds``.
        """
        at_work, began = self._begun.get(stream, (key, 0.0))
        if at_work == key or self._now() - began >= older_than_seconds:
            self._threads.pop(stream, None)

    def join(self, seconds: float) -> None:
        """Wait at most ``seconds`` in total for the threads under way."""
        deadline = time.monotonic() + seconds
        for thread in self._threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))

    def keep(self, streams: set[str], keys: set[str]) -> None:
        """Forget the threads and waits of every other stream and key."""
        self._threads = {
            name: thread for name, thread in self._threads.items() if name in streams or thread.is_alive()
        }
        self._begun = {name: begun for name, begun in self._begun.items() if name in self._threads}
        with self._waits_lock:
            self._waits = {key: wait for key, wait in self._waits.items() if key in keys}

    def _run(self, stream: str, key: str, work: Callable[[], object]) -> None:
        try:
            work()
        except (RefeedError, OSError) as exc:
            seconds = self._wait(key)
            _log.warning(f"{self._kind}_work_waits", stream=stream, error=str(exc), retry_seconds=seconds)
        except Exception:  # noqa: BLE001 - it must not be raised again at every look
            seconds = self._wait(key)
            _log.exception(f"{self._kind}_work_failed", stream=stream, retry_seconds=seconds)
        else:
            with self._waits_lock:
                self._waits.pop(key, None)

    def _wait(self, key: str) -> float:
        with self._waits_lock:
            _, seconds = self._waits.get(key, (0.0, FIRST_WAIT_SECONDS))
            self._waits[key] = (self._now() + seconds, min(2 * seconds, LONGEST_WAIT_SECONDS))
        return seconds
