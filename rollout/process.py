"""One instance of a stream as a process of this machine: start it, find it again, steer it, and end it."""

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
    """A process that runs one instance of a stream, and the control file with its orders.

    The process can be the child of an agent that was killed: it continues to run, and :meth:`find` finds it by its
    instance id. Only the status file shows how such a process ended.
    """

    def __init__(self, folder: StreamFolder, runs: Child | FoundProcess) -> None:
        self.folder = folder
        self._runs = runs
        path = folder.control
        assert path is not None, "an instance has a control file"
        self._path = path
        self._control = ControlFile(path).read()
        # Another thread pauses the stream for a snapshot.
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
        """Start ``command`` for the instance in ``folder``, with this pace and this first order."""
        child = Child(folder.name, command, environment=environment, log=log)
        process = cls(folder, child)
        process.order(order, pace=pace)
        child.start()
        return process

    @classmethod
    def find(cls, folder: StreamFolder) -> Self | None:
        """Return the process of this machine that runs the instance, whichever agent started it, or None.

        A process that takes its orders from another home can't be steered from this home, and is killed.
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
        """The id of the process and of its process group."""
        return self._runs.pid

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._runs.is_running

    @property
    def control(self) -> StreamControl:
        """The last order."""
        return self._control

    def status(self) -> dict[str, Any]:
        """Return the status that the process has written; empty before the first one."""
        return StatusFile.read(self.folder.status) or {}

    def order(self, order: Order, *, timeout_seconds: float | None = None, pace: BatchPace | None = None) -> int:
        """Write an order unless it is the last one; return its number, which is in the status once it is done."""
        with self._ordering:
            last = self._control
            wanted = pace or last.pace
            if (order, timeout_seconds, wanted) != (last.order, last.timeout_seconds, last.pace):
                self._give(order, timeout_seconds, wanted)
            return self._control.number

    def keep_pace(self, pace: BatchPace) -> None:
        """Set the pace of a running stream; a paused stream stays paused until :meth:`resume`."""
        with self._ordering:
            if self._control.order == "run" and self._control.pace != pace:
                self._give("run", None, pace)

    def pause(self, timeout_seconds: float) -> int:
        """Begin no commit until :meth:`resume`, for ``timeout_seconds`` at most; return the order's number."""
        with self._ordering:
            self._give("pause", timeout_seconds, self._control.pace)
            return self._control.number

    def resume(self, number: int | None = None) -> None:
        """End the pause, or with ``number`` only the pause of that order; a draining stream continues to drain."""
        with self._ordering:
            if self._control.order == "pause" and number in {None, self._control.number}:
                self._give("run", None, self._control.pace)

    def ask_to_stop(self) -> None:
        """Send SIGTERM, which drains the stream without a timeout."""
        self._runs.ask_to_stop()

    def kill(self, *, seconds: float = KILL_SECONDS) -> None:
        """Send SIGKILL to the process group; the first call waits ``seconds`` at most for its end."""
        self._runs.kill(seconds=seconds)

    def stop(self, *, seconds: float) -> None:
        """Drain the stream, and kill it after ``seconds``."""
        self._runs.stop(seconds=seconds)

    def ended_error(self) -> ProcessEndedError:
        """Return the error that says how the process ended."""
        return self._runs.ended_error()

    def _give(self, order: Order, timeout_seconds: float | None, pace: BatchPace) -> None:
        control = StreamControl(self._control.number + 1, order, timeout_seconds, *astuple(pace))
        control.write(self._path)
        self._control = control


@dataclass(slots=True)
class HeldStream:
    """A stream that an agent holds; ``start_at`` is the time of its next start while it has no process."""

    process: StreamProcess | None = None
    start_at: float = 0.0
    started_at: float = 0.0
    deaths: int = 0
    kill_at: float | None = None
    # The version of the record from which the pace was read.
    version: int = 0
    pace: BatchPace = field(default_factory=BatchPace)

    @property
    def running(self) -> StreamProcess | None:
        """The process, if it runs."""
        return self.process if self.process is not None and self.process.is_running else None


def find_instance(name: str, instance_id: str) -> FoundProcess | None:
    """Return the process of this machine with the instance id in its command line; no id is used twice."""
    named = f"\0{INSTANCE_OPTION}\0{instance_id}\0".encode()
    for folder in _PROCESSES.glob("[0-9]*"):
        with suppress(OSError):
            if named in (folder / "cmdline").read_bytes() and (found := Process.of(int(folder.name))) is not None:
                return FoundProcess(name, found)
    return None
