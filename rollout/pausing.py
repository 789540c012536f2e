"""Holds a stream between two commits while something of it is copied."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from model.errors import SnapshotRefusedError
from streams.control import LONGEST_PAUSE_SECONDS
from streams.lease import lock_home
from streams.status import StatusFile

_POLL_SECONDS: Final = 0.05
_PAUSED: Final = "paused"


class PauseOrders(Protocol):
    """Gives a running stream its orders; numbers grow with each."""

    def pause(self, timeout_seconds: float) -> int:
        """Order a pause of ``timeout_seconds`` at most, and return the order's number."""
        ...

    def resume(self) -> None:
        """Order the stream to run as before."""
        ...


@contextmanager
def pause_stream(
    status: Path, orders: PauseOrders, *, timeout_seconds: float = LONGEST_PAUSE_SECONDS
) -> Iterator[None]:
    """Keep the stream whose status is the file ``status`` from every commit while the block runs.

    Raises:
        SnapshotRefusedError: it did not pause in time, or the block took longer than the pause: then it may have
            committed meanwhile.
    """
    number = orders.pause(timeout_seconds)
    began = time.monotonic()
    try:
        while not _is_paused(status, number):
            if time.monotonic() - began >= timeout_seconds:
                raise SnapshotRefusedError(
                    f"The stream did not pause within {timeout_seconds:g} s: a commit was under way all the "
                    "time, or it is starting."
                )
            time.sleep(_POLL_SECONDS)
        yield
        if time.monotonic() - began >= timeout_seconds or not _is_paused(status, number):
            raise SnapshotRefusedError(
                f"The snapshot took longer than the stream's pause of {timeout_seconds:g} s."
            )
    finally:
        orders.resume()


@contextmanager
def hold_still(state: Path) -> Iterator[None]:
    """Keep every stream from starting in the folder ``state``, where none runs, while the block runs.

    Raises:
        LeaseHeldError: one runs.
    """
    with lock_home(state):
        yield


def _is_paused(status: Path, number: int) -> bool:
    found = StatusFile.read(status) or {}
    return found.get("state") == _PAUSED and found.get("control_number") == number
