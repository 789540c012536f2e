"""Ends a driver whose Spark Connect server is gone: its session is lost, and its client waits for minutes."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

import structlog

_LOG: Final = structlog.get_logger()
_LOOK_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 5.0
# A server that is too busy, or stands still, still has its port open; nobody at all refuses each time.
_REFUSALS: Final = 3
# EX_UNAVAILABLE of sysexits.h: the supervisor replaces the driver.
GONE_EXIT_CODE: Final = 69


@contextmanager
def leaving_without_server(remote: str | None) -> Iterator[None]:
    """Watch the server at ``remote`` ("sc://host:port") for as long as the block runs; None watches nothing.

    When nobody listens there any more the process ends at once with :data:`GONE_EXIT_CODE`, whatever it is doing:
    it says nothing of how its job ended, so that the job is another driver's.
    """
    if remote is None:
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(remote, over), name="spark-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _watch(remote: str, over: threading.Event) -> None:
    found = urlsplit(remote)
    refusals = 0
    while not over.wait(_LOOK_SECONDS):
        refusals = refusals + 1 if _is_refused(found.hostname or "", found.port or 0) else 0
        if refusals == _REFUSALS:
            _LOG.error("spark is gone", remote=found.netloc)
            os._exit(GONE_EXIT_CODE)


def _is_refused(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=_ANSWER_SECONDS).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        # Slow, or a network that fails: nothing is known of the server.
        return False
    return False
