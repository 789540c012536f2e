"""Keeps the spare query process of a closed service for the next service of the same test process.

A process takes 0.7 s of CPU to start, and most services of tests end before a query has used theirs. New ones are
forked from one that has made their imports. Each query still has a process to itself. The fixture ``own_spares``
starts and ends processes as the product does.
"""

import atexit
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from connectors.lake import query_process
from connectors.lake.query_process import QueryProcesses
from tests.nursery import Nursery

MAX_KEPT = 2
_Process = query_process._Process
_close = QueryProcesses.close


class _ForkedProcess(_Process):
    """A process for one call that was not started but forked."""

    def __init__(self, nursery: Nursery) -> None:
        self._popen: Any = nursery.fork()
        self._in, self._out = self._popen.stdin, self._popen.stdout


class Spares:
    """Processes that wait for their query, and what each was started with."""

    def __init__(self) -> None:
        self._kept: list[tuple[Any, Any]] = []
        self._nursery: tuple[Any, Nursery] | None = None
        self._lock = threading.Lock()

    def take(self) -> Any:
        """Return a process that was kept, if it was started as one would be now, or a new one."""
        now = _surroundings()
        for kept in list(self._kept):
            began, process = kept
            if began == now:
                self._kept.remove(kept)
                if process.is_alive():
                    return process
                process.end()
        process = self._make(now)
        process.surroundings = now
        return process

    def _make(self, now: Any) -> Any:
        """Fork where the first process was started, and elsewhere start a process."""
        with self._lock:
            if self._nursery is None:
                self._nursery = now, Nursery(_environment())
            began, nursery = self._nursery
            return _ForkedProcess(nursery) if began == now else _Process()

    def close(self, processes: QueryProcesses) -> None:
        with processes._lock:
            spare = processes._spare
            began = getattr(spare, "surroundings", None)
            if began is not None and spare.is_alive() and len(self._kept) < MAX_KEPT:
                self._kept.append((began, spare))
                processes._spare = None
        _close(processes)

    def end(self) -> None:
        while self._kept:
            self._kept.pop()[1].end()
        if self._nursery is not None:
            self._nursery[1].end()


def _surroundings() -> Any:
    known = [os.environ.get(name) for name in query_process._ENVIRONMENT]
    return known, list(sys.path), Path.cwd()


def _environment() -> dict[str, str]:
    known = {name: os.environ[name] for name in query_process._ENVIRONMENT if name in os.environ}
    return {**known, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}


def install() -> None:
    """Let every closed service of this test process leave its spare process to the next one."""
    spares = Spares()
    atexit.register(spares.end)

    def close(processes: QueryProcesses) -> None:
        spares.close(processes)

    query_process._Process = spares.take
    QueryProcesses.close = close


@pytest.fixture
def own_spares(monkeypatch):
    """Let query processes start and end as in the product."""
    with monkeypatch.context() as patched:
        patched.setattr(query_process, "_Process", _Process)
        patched.setattr(QueryProcesses, "close", _close)
        yield
