"""One process of the system under chaos: started, broken, started again, with failpoints of its own."""

import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from model import failpoint
from rollout.child import Child, Children

_START_SECONDS: Final = 300.0
_POLL_SECONDS: Final = 0.1
_TAIL_LINES: Final = 30
# Debian's package libfaketime; the one for programs of several threads.
_FAKETIME: Final = "faketime/libfaketimeMT.so.1"


class StuckError(Exception):
    """What should have happened has not; the text says what, and what the process said last."""


class Part:
    """A process that is started again whenever it is wanted and does not run, as a supervisor would.

    ``is_ready`` is asked with what it has written since its start. Each part has a folder in which failpoints are
    armed; ``over`` ends every wait.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        *,
        home: Path,
        environment: Mapping[str, str],
        children: Children,
        is_ready: Callable[[str], bool],
        over: threading.Event,
    ) -> None:
        self.name = name
        self.home = home
        self.orders = home / "failpoints" / name
        self.log = home / "logs" / f"{name}.log"
        self.starts = 0
        self._command = command
        self._environment = dict(environment)
        self._children = children
        self._is_ready = is_ready
        self._over = over
        self._child: Child | None = None
        self._log_start = 0
        # Several lanes may miss the API at once.
        self._lock = threading.Lock()

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.is_running

    @property
    def pid(self) -> int:
        """The id of its process, also its group's."""
        return self._child.pid

    def said(self) -> str:
        """Return what it has written since its last start."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def start(self, **environment: str) -> None:
        """Start it unless it runs, without waiting for it to be ready.

        Raises:
            StuckError: the run is over, and what is started now would outlive it.
        """
        with self._lock:
            self._start(environment)

    def _start(self, environment: Mapping[str, str]) -> None:
        if self.is_running:
            return
        if self._over.is_set():
            raise StuckError(f"{self.name}: the run is over")
        if self._child is not None:
            # What it left behind of its group.
            self._child.kill()
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self.starts += 1
        armed = {"REFEED_FAILPOINTS": str(self.orders)}
        self._child = self._children.start(
            Child(
                self.name, self._command, environment={**self._environment, **armed, **environment}, log=self.log
            )
        )

    def ensure(self, **environment: str) -> None:
        """Return once it runs and is ready; one that ends meanwhile is started again."""
        self.wait(lambda: self.log.exists() and self._is_ready(self.said()), "is ready", **environment)

    def wait(
        self, is_true: Callable[[], bool], what: str, *, seconds: float = _START_SECONDS, **environment: str
    ) -> None:
        """Wait until ``is_true``, and keep the process running until then.

        Raises:
            StuckError: it did not come to that.
        """
        deadline = time.monotonic() + seconds
        while True:
            # First of all: a process that has just ended may have written what is looked for.
            self.start(**environment)
            if is_true() and self.is_running:
                return
            if time.monotonic() > deadline or self._over.wait(_POLL_SECONDS):
                raise StuckError(f"{self.name}: not within {seconds:.0f} s: {what}; {self.last_words()}")

    def wait_for_kill(self, name: str, *, seconds: float) -> bool:
        """Keep it running until its armed failpoint was hit, or for so long; say whether it was."""
        deadline = time.monotonic() + seconds
        while not failpoint.is_hit(self.orders, name) and time.monotonic() < deadline:
            self.start()
            if self._over.wait(_POLL_SECONDS):
                break
        return failpoint.disarm(self.orders, name)

    def last_words(self) -> str:
        return "" if self._child is None else f"the log of {self.name} ends:\n{self._child.log_tail(_TAIL_LINES)}"

    def kill(self) -> None:
        """End it and everything that it started with SIGKILL."""
        if self._child is not None:
            self._child.kill()

    def stop(self, seconds: float = 120.0) -> int | None:
        """Let it drain and return its exit code."""
        return self._child.stop(seconds=seconds)

    def join(self, seconds: float) -> int | None:
        """Wait for a command that ends by itself and return its exit code; None when it is still at it."""
        assert self._child is not None
        deadline = time.monotonic() + seconds
        while self._child.is_running and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return self._child.exit_code

    def processes(self, program: str) -> list[int]:
        """Return those below it whose program's name begins so."""
        return [pid for name, pids in descendants(self.pid).items() if name.startswith(program) for pid in pids]


def kill_pid(pid: int) -> None:
    """End one process with SIGKILL; one that is gone is no error."""
    signal_pid(pid, signal.SIGKILL)


def signal_pid(pid: int, number: signal.Signals) -> None:
    """Send a signal; a process that is gone is no error."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def suspend(pids: list[int], seconds: float, over: threading.Event) -> None:
    """Stop processes for a while, as a machine that swaps or a paused container does."""
    for pid in pids:
        signal_pid(pid, signal.SIGSTOP)
    try:
        over.wait(seconds)
    finally:
        for pid in pids:
            signal_pid(pid, signal.SIGCONT)


def descendants(pid: int) -> dict[str, list[int]]:
    """Return the processes below ``pid`` by the name of their program, deepest last."""
    children: dict[int, list[int]] = defaultdict(list)
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            name, _, rest = (entry / "stat").read_text().rpartition(")")
        except OSError:
            continue
        names[int(entry.name)] = name.partition("(")[2]
        children[int(rest.split()[1])].append(int(entry.name))
    found: dict[str, list[int]] = defaultdict(list)
    waiting = list(children[pid])
    while waiting:
        each = waiting.pop(0)
        found[names[each]].append(each)
        waiting += children[each]
    return found


def find_faketime() -> Path | None:
    """Return the library that shows a process another time, where it is installed; CHAOS_FAKETIME may name it."""
    if named := os.environ.get("CHAOS_FAKETIME"):
        return Path(named)
    folders = [Path("/usr/lib"), Path("/usr/local/lib"), *Path("/usr/lib").glob("*-linux-gnu*")]
    return next((folder / _FAKETIME for folder in folders if (folder / _FAKETIME).exists()), None)


def skewed(library: Path, offset: str) -> dict[str, str]:
    """Return what a Python process's environment needs so that its own clock is ``offset`` ("+5h") off.

    Its timeouts, the times of files, and the clocks of the processes below it stay as they are.
    """
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME": offset,
        "DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
        "PYTHONPATH": str(Path(__file__).with_name("skewed")),
    }
