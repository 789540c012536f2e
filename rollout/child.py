"""Child processes: each with its own log, waited for with a deadline, ended by its id."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Protocol, Self

from model.errors import ProcessEndedError
from model.process import Process, signal_name

_POLL_SECONDS: Final = 0.05
_TAIL_LINES: Final = 15
# A log grows for as long as its process is started again.
_TAIL_BYTES: Final = 16_000
# What a child has to end by itself; the API takes up to 25 seconds of it (api/server.py).
STOP_SECONDS: Final = 30.0
# A process that SIGKILL ends is gone within milliseconds. One that the kernel holds in uninterruptible sleep, for
# example for a disk that does not answer, ends when that lets go of it: nobody waits for it.
KILL_SECONDS: Final = 2.0


class Running(Protocol):
    """A process that can be asked to stop, and killed."""

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        ...

    def ask_to_stop(self) -> None:
        """Send SIGTERM."""
        ...

    def kill(self, *, seconds: float = KILL_SECONDS) -> None:
        """Send SIGKILL to its group, and wait ``seconds`` at most for its end."""
        ...


def stop_all(processes: Iterable[Running], *, seconds: float) -> None:
    """Ask all to stop, wait ``seconds`` for all of them together, and kill those that are left."""
    found = list(processes)
    for each in found:
        each.ask_to_stop()
    _wait_for_all(found, seconds)
    for each in found:
        # Processes that it started end too.
        each.kill(seconds=0.0)
    _wait_for_all(found, KILL_SECONDS)


def _wait_for_all(processes: Sequence[Running], seconds: float) -> None:
    ends_at = time.monotonic() + seconds
    while any(each.is_running for each in processes) and time.monotonic() < ends_at:
        time.sleep(_POLL_SECONDS)


class Child:
    """A process in a group of its own, its output appended to ``log``.

    A Ctrl-C in the terminal does not reach it: its parent ends it, in the order that drains. ``kill``
    takes the whole group, so that a JVM or a worker that the process started goes with it.
    """

    def __init__(self, name: str, command: Sequence[str], *, environment: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        self._command = list(command)
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._was_killed = False

    def start(self) -> Self:
        """Start it; one that runs already is left alone."""
        if not self.is_running:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self._was_killed = False
            with self.log.open("ab") as output:
                self._process = subprocess.Popen(  # noqa: S603  our own commands
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                    start_new_session=True,
                )
        return self

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id, also its group's."""
        if self._process is None:
            raise ProcessEndedError(f"{self.name} was not started.", name=self.name)
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended, negative for a signal; None while it runs."""
        return None if self._process is None else self._process.poll()

    def wait_until(self, is_ready: Callable[[], bool], *, seconds: float, what: str) -> None:
        """Return once ``is_ready`` returns True.

        Raises:
            ProcessEndedError: the process ended first, or ``seconds`` passed; the message ends with its log's
                last lines.
        """
        deadline = time.monotonic() + seconds
        while not is_ready():
            if not self.is_running:
                raise self.ended_error()
            if time.monotonic() > deadline:
                raise ProcessEndedError(
                    f"{self.name} has not {what} in {seconds:.0f} s; its log {self.log} ends:\n{self.log_tail()}",
                    name=self.name,
                )
            time.sleep(_POLL_SECONDS)

    def ended_error(self) -> ProcessEndedError:
        """Return the error of its end, with its log's last lines unless it was killed."""
        code = self.exit_code
        if code is not None and code < 0:
            message = f"{self.name} (process {self.pid}) was ended by signal {signal_name(-code)}."
        else:
            message = f"{self.name} ended with code {code}; its log {self.log} ends:\n{self.log_tail()}"
        return ProcessEndedError(message, name=self.name, exit_code=code)

    def log_tail(self, lines: int = _TAIL_LINES) -> str:
        """Return the last lines of its log."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the process itself, which drains what it has begun."""
        self._signal(os.kill, signal.SIGTERM)

    def stop(self, *, seconds: float = STOP_SECONDS) -> int | None:
        """Ask it to stop, wait, and kill its group when ``seconds`` pass; return the exit code."""
        self.ask_to_stop()
        if self._process is not None:
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.kill()
        # Processes that it started end too.
        self._signal(os.killpg, signal.SIGKILL)
        return self.exit_code

    def kill(self, *, seconds: float = KILL_SECONDS) -> None:
        """Send SIGKILL to it and everything it started, and wait ``seconds`` at most for its end, the first time.

        One that the kernel holds ends later: :attr:`is_running` says when.
        """
        self._signal(os.killpg, signal.SIGKILL)
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.0 if self._was_killed else seconds)
            self._was_killed = True

    def _signal(self, send: Callable[[int, int], None], number: int) -> None:
        if self._process is None or (send is os.kill and self._process.poll() is not None):
            return
        with suppress(ProcessLookupError):
            send(self._process.pid, number)


class FoundProcess:
    """A process that another agent started and this one goes on with; its exit code is unknown."""

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self._process = process
        self._was_killed = False

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.is_alive

    @property
    def pid(self) -> int:
        """Its process id, also its group's."""
        return self._process.pid

    def ended_error(self) -> ProcessEndedError:
        """Return the error of its end."""
        return ProcessEndedError(f"{self.name} (process {self.pid}) has ended.", name=self.name)

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the process itself, which drains what it has begun."""
        if self.is_running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def stop(self, *, seconds: float = STOP_SECONDS) -> None:
        """Ask it to stop, wait, and kill its group when ``seconds`` pass."""
        self.ask_to_stop()
        deadline = time.monotonic() + seconds
        while self.is_running and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        self.kill()

    def kill(self, *, seconds: float = KILL_SECONDS) -> None:
        """Send SIGKILL to it and everything it started; the first time, wait ``seconds`` at most for its end."""
        self._process.signal_group(signal.SIGKILL)
        if not self._was_killed:
            _wait_for_all([self], seconds)
        self._was_killed = True


class Children:
    """The children of one command; leaving the block stops all, the last one started first.

    ``on_start`` is called after each start, to write down what runs.
    """

    def __init__(self, on_start: Callable[[], None] = lambda: None) -> None:
        self._children: list[Child] = []
        self._on_start = on_start

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __iter__(self) -> Iterator[Child]:
        return iter(self._children)

    def start(self, child: Child) -> Child:
        """Start ``child`` and stop it with the others."""
        self._children.append(child)
        child.start()
        self._on_start()
        return child

    def stop(self, *, seconds: float = STOP_SECONDS) -> None:
        """Stop all, the last one started first, each with ``seconds`` to drain and also after another's error."""
        with ExitStack() as stack:
            for child in self._children:
                stack.callback(child.stop, seconds=seconds)
