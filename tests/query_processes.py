"""The lake's query processes of this test's process: found, and held so that their queries last."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_LOOK_SECONDS: Final = 0.005


def find_query_processes() -> set[int]:
    """Return the ids of the query processes that this process has started and that have not ended."""
    found = set()
    for task in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        with suppress(OSError):
            found |= {int(pid) for pid in task.read_text().split() if _is_query_process(int(pid))}
    return found


@contextmanager
def hold_query_processes() -> Iterator[set[int]]:
    """Stop every query process, also one that starts later, with SIGSTOP; yield the ids of those stopped so far.

    After the block they go on.
    """
    held: set[int] = set()
    is_over = threading.Event()

    def hold() -> None:
        while not is_over.wait(_LOOK_SECONDS):
            for pid in find_query_processes() - held:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                held.add(pid)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield held
    finally:
        is_over.set()
        thread.join()
        for pid in held & find_query_processes():
            os.kill(pid, signal.SIGCONT)


def _is_query_process(pid: int) -> bool:
    with suppress(OSError):
        is_ended = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        return not is_ended and b"query_process import serve" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
