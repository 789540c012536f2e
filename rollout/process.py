"""One start of a stream as a process of this machine: started or found again, given orders, ended."""

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import structlog

from model.errors import ProcessEndedError
from model.process import Process
from rollout.child import KILL_SECONDS, Child, FoundProcess
from streams.control import BatchPace, ControlFile, Order, StreamControl
from streams.folder import StreamFolder
from streams.status import StatusFile

_log = structlog.get_logger(__name__)

INSTANCE_OPTION: Final = "--instance"
_PROCESSES: Final = Path("/proc")


class StreamProcess:
    """A process that runs one instance of a stream, and the control file by which it takes orders.

    The process may be another agent's child, one that was killed: it runs on under its instance id, by which
    :meth:`find` finds it. Only its status file has how such a process ended.
    """

    def __init__(self, folder: StreamFolder, runs: Child | FoundProcess) -> None:
        self.folder = folder
        self._runs = runs
        path = folder.control
        assert path is not None, "an instance has a control file"
        self._path = path
        self._control = ControlFile(path).read()
        # A snapshot pauses the stream from a thread of its own.
        self._ordering = threading.Lock()

    @classmethod
    def start(
        cls,
        folder: StreamFolder,
        command: Sequence[str],
        pace: BatchPace,
        *,
        environment: Mapping[str, str],
        log: Path,
        order: Order = "run",
    ) -> Self:
        """Start ``command`` for the instance that ``folder`` names, at this pace, with ``order`` as its first."""
        child = Child(folder.name, command, environment=environment, log=log)
        process = cls(folder, child)
        process.order(order, pace=pace)
        child.start()
        return process

    @classmethod
    def find(cls, folder: StreamFolder) -> Self | None:
        """Return the process here that runs the instance, also if another agent started it; None without one.

        One that takes its orders in another home of this machine can't be steered from this one, and is killed.
        """
        found = None if folder.instance_id is None else find_instance(folder.name, folder.instance_id)
        if found is None:
            return None
        process = cls(folder, found)
        if process._path.exists():
            return process
        _log.warning("process_of_another_home_killed", stream=folder.name, pid=found.pid)
        process.kill()
        return None

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.folder.name

    @property
    def instance_id(self) -> str | None:
        """The id of this start."""
        return self.folder.instance_id

    @property
    def pid(self) -> int:
        """Its process id, also its group's."""
        return self._runs.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._runs.is_running

    @property
    def control(self) -> StreamControl:
        """The order that was given last."""
        return self._control

    def status(self) -> dict[str, Any]:
        """Return what it has written of itself; empty before its first word."""
        return StatusFile.read(self.folder.status) or {}

    def order(self, order: Order, *, timeout_seconds: float | None = None, pace: BatchPace | None = None) -> int:
        """Give an order, unless it was the last one; return its number, which the status names once it is done."""
        with self._ordering:
            last = self._control
            wanted = pace or last.pace
            if (order, timeout_seconds, wanted) != (last.order, last.timeout_seconds, last.pace):
                self._give(order, timeout_seconds, wanted)
            return self._control.number

    def keep_pace(self, pace: BatchPace) -> None:
        """Let a stream that runs do so at this pace; a pause is somebody else's, who ends it."""
        with self._ordering:
            if self._control.order == "run" and self._control.pace != pace:
                self._give("run", None, pace)

    def pause(self, timeout_seconds: float) -> int:
        """Let no commit begin until :meth:`resume`, for ``timeout_seconds`` at most; return the order's number."""
        with self._ordering:
            self._give("pause", timeout_seconds, self._control.pace)
            return self._control.number

    def resume(self, number: int | None = None) -> None:
        """End a pause, with ``number`` that one alone; a stream that is to end goes on ending."""
        with self._ordering:
            if self._control.order == "pause" and number in {None, self._control.number}:
                self._give("run", None, self._control.pace)

    def ask_to_stop(self) -> None:
        """Send SIGTERM, which drains it without a bound."""
        self._runs.ask_to_stop()

    def kill(self, *, seconds: float = KILL_SECONDS) -> None:
        """Send SIGKILL to it and everything it started; the first time, wait ``seconds`` at most for its end."""
        self._runs.kill(seconds=seconds)

    def stop(self, *, seconds: float) -> None:
        """Drain it, and kill it when ``seconds`` pass."""
        self._runs.stop(seconds=seconds)

    def ended_error(self) -> ProcessEndedError:
        """Return the error of its end."""
        return self._runs.ended_error()

    def _give(self, order: Order, timeout_seconds: float | None, pace: BatchPace) -> None:
        control = StreamControl(self._control.number + 1, order, timeout_seconds, *astuple(pace))
        control.write(self._path)
        self._control = control


@dataclass(slots=True)
class HeldStream:
    """A stream that an agent holds; ``start_at`` is when it is to be started while it has no process."""

    process: StreamProcess | None = None
    start_at: float = 0.0
    started_at: float = 0.0
    deaths: int = 0
    kill_at: float | None = None
    # The version of the record that the pace was made of.
    version: int = 0
    pace: BatchPace = field(default_factory=BatchPace)

    @property
    def running(self) -> StreamProcess | None:
        """Its process where one runs."""
        return self.process if self.process is not None and self.process.is_running else None


def find_instance(name: str, instance_id: str) -> FoundProcess | None:
    """Return the process of this machine whose command names the instance; an id is never used twice."""
    named = f"\0{INSTANCE_OPTION}\0{instance_id}\0".encode()
    for folder in _PROCESSES.glob("[0-9]*"):
        with suppress(OSError):
            if named in (folder / "cmdline").read_bytes() and (found := Process.of(int(folder.name))) is not None:
                return FoundProcess(name, found)
    return None
