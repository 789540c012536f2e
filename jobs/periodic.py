"""Periodic tasks beside the supervision of jobs, one at a time, since each may take minutes."""

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
    """A task to repeat; its errors are logged and don't end the repetition."""

    do: Callable[[], None]
    every_seconds: float


class PeriodicTasks:
    """Runs tasks in one thread; of several due tasks the first in ``tasks`` runs first."""

    def __init__(self, tasks: Sequence[PeriodicTask]) -> None:
        self._tasks = tasks
        self._begun_at: list[float | None] = [None] * len(tasks)
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="periodic")
        self._under_way: Future[None] | None = None

    def tick(self) -> None:
        """Begin a due task, unless one is under way."""
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
        """Begin no more tasks; don't call :meth:`tick` afterwards."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def join(self) -> None:
        """Wait for the task under way, after :meth:`stop`."""
        self._pool.shutdown()


def _guarded(task: PeriodicTask) -> None:
    try:
        task.do()
    except Exception:  # noqa: BLE001 - the task runs again
        _LOG.exception("a periodic task failed; trying again")
