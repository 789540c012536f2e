"""Repeats one call in a thread while a block runs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeating(act: Callable[[], object], *, every_seconds: float, name: str) -> Iterator[None]:
    """Call ``act`` every ``every_seconds`` until the block ends, and then wait for a running call.

    The first call comes after ``every_seconds``. ``name`` is the thread's name; an error of ``act`` ends the
    thread.
    """
    over = threading.Event()

    def run() -> None:
        while not over.wait(every_seconds):
            act()

    # A daemon, so that it does not keep the process alive.
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
