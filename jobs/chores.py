"""What a supervisor has done beside following jobs: chores, one at a time, because each may take minutes."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import structlog

CLEAN_SECONDS: Final = 3600.0
_LOG: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Chore:
    """Something to do again and again; what it raises is logged, and it is done again all the same."""

    do: Callable[[], None]
    every_seconds: float


class ChoreThread:
    """Does chores in a thread of its own; of several that are due, the first one comes first."""

    def __init__(self, chores: Sequence[Chore]) -> None:
        self._chores = chores
        self._begun_at: list[float | None] = [None] * len(chores)
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="chores")
        self._under_way: Future[None] | None = None

    def tick(self) -> None:
        """Begin a chore that is due, unless one is under way."""
        if self._under_way is not None and not self._under_way.done():
            return
        now = time.monotonic()
        for number, chore in enumerate(self._chores):
            begun_at = self._begun_at[number]
            if begun_at is None or now - begun_at > chore.every_seconds:
                self._begun_at[number] = now
                self._under_way = self._pool.submit(_guarded, chore)
                return

    def stop(self) -> None:
        """Begin none any more; there must be no :meth:`tick` after this."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def join(self) -> None:
        """Wait for the chore under way, after :meth:`stop`."""
        self._pool.shutdown()


def _guarded(chore: Chore) -> None:
    try:
        chore.do()
    except Exception:  # noqa: BLE001 - it is done again
        _LOG.exception("a chore failed; trying again")
