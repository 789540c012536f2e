"""Repeats one call from a thread of its own, for as long as a block runs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeating(act: Callable[[], object], *, every_seconds: float, name: str) -> Iterator[None]:
    """Call ``act`` every ``every_seconds`` until the block ends, and wait for a call that is under way then.

    The first call is made after that time. ``name`` is the thread's; an error of ``act`` ends it.
    """
    over = threading.Event()

    def run() -> None:
        while not over.wait(every_seconds):
            act()

    # A daemon: it must not keep the process from its end.
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
