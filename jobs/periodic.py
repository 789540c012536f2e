"""Tasks that are done again and again beside following jobs, one at a time, because each may take minutes."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import structlog

CLEAN_SECONDS: Final = 3600.0
_LOG: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PeriodicTask:
    """Something to do again and again; what it raises is logged, and it is done again all the same."""

    do: Callable[[], None]
    every_seconds: float


class PeriodicTasks:
    """Does tasks in a thread of their own; of several that are due, the first one comes first."""

    def __init__(self, tasks: Sequence[PeriodicTask]) -> None:
        self._tasks = tasks
        self._begun_at: list[float | None] = [None] * len(tasks)
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="periodic")
        self._under_way: Future[None] | None = None

    def tick(self) -> None:
        """Begin a task that is due, unless one is under way."""
        if self._under_way is not None and not self._under_way.done():
            return
        now = time.monotonic()
        for number, task in enumerate(self._tasks):
            begun_at = self._begun_at[number]
            if begun_at is None or now - begun_at > task.every_seconds:
                self._begun_at[number] = now
                self._under_way = self._pool.submit(_guarded, task)
                return

    def stop(self) -> None:
        """Begin none any more; there must be no :meth:`tick` after this."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def join(self) -> None:
        """Wait for the task under way, after :meth:`stop`."""
        self._pool.shutdown()


def _guarded(task: PeriodicTask) -> None:
    try:
        task.do()
    except Exception:  # noqa: BLE001 - it is done again
        _LOG.exception("a periodic task failed; trying again")
