"""Which driver it is: a process, and whether that very one still lives, or a batch at Dataproc."""

import os
import resource
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_PID_SPACE: Final = Path("/proc/self/ns/pid")
# PROC_PID_INIT_INO of include/linux/proc_ns.h: where there are no containers.
_FIRST_PID_SPACE: Final = "pid:[4026531836]"


def raise_file_limit() -> None:
    """Allow this process as many open files as the system does, where a shell stops at 1024.

    A topic of the local Pub/Sub server keeps two, and each connection of a collector or an API one.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def signal_name(number: int) -> str:
    """Return what a signal is called; those of real time, but for two, have a number only.

    >>> signal_name(9), signal_name(40)
    ('SIGKILL', '40')
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


@dataclass(frozen=True, slots=True)
class Process:
    """A process; its start time and the machine's boot tell it from a later one with the same pid."""

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Return the process ``pid``, or None when it is gone or a zombie."""
        ticks = _start_ticks(pid)
        return None if ticks is None else cls(pid, ticks, _boot_id())

    @classmethod
    def of_child(cls, pid: int) -> Self:
        """Return the child ``pid`` of this process, which has not been waited for; it may have ended already."""
        ticks = _start_ticks(pid, or_ended=True)
        assert ticks is not None, "a child is there until it is waited for"
        return cls(pid, ticks, _boot_id())

    @property
    def is_here(self) -> bool:
        """Whether it was started where it can be seen and ended from here: this machine, this boot, these pids."""
        return self.boot_id == _boot_id()

    @property
    def is_alive(self) -> bool:
        """Whether this very process runs; of one that is not here nothing can be said but no."""
        return self.is_here and _start_ticks(self.pid) == self.start_ticks

    def __str__(self) -> str:
        return f"process {self.pid}"

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to a process that leads a group, and to its children, if it still lives."""
        if self.is_alive:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)


@dataclass(frozen=True, slots=True)
class DataprocBatch:
    """A driver that Dataproc runs: ``projects/P/locations/REGION/batches/ID``. No later batch has its name."""

    name: str

    @property
    def is_here(self) -> bool:
        """Whether it can be seen and ended from here: from everywhere."""
        return True

    @property
    def log_url(self) -> str:
        """Where its log is, for people.

        Example:
            >>> DataprocBatch("projects/shop/locations/europe-west1/batches/bf-1").log_url
            'https://console.cloud.google.com/dataproc/batches/europe-west1/bf-1/summary?project=shop'
        """
        _, project, _, region, _, batch_id = self.name.split("/")
        return f"https://console.cloud.google.com/dataproc/batches/{region}/{batch_id}/summary?project={project}"

    def __str__(self) -> str:
        return f"batch {self.name}"


# What a job's attempt runs in, on this machine or elsewhere.
Driver = Process | DataprocBatch


def _start_ticks(pid: int, *, or_ended: bool = False) -> int | None:
    try:
        # The command's name stands in parentheses and may hold anything; what follows the last ")" is fixed.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    state, start_ticks = fields[0], fields[19]
    return None if state in "ZX" and not or_ended else int(start_ticks)


def _boot_id() -> str:
    boot = _BOOT_ID.read_text().strip()
    # Containers of one machine share its boot and number their processes apart.
    try:
        space = str(_PID_SPACE.readlink())
    except OSError:
        return boot
    return boot if space == _FIRST_PID_SPACE else f"{boot}/{space}"
