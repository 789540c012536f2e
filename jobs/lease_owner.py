"""The owner of a lease: a replica of the service, by machine and process."""

import os
import secrets
import socket
from dataclasses import dataclass, field
from typing import Self

from model.process import Process


@dataclass(frozen=True, slots=True)
class LeaseOwner:
    """One supervisor in one process; two supervisors of a process are two owners."""

    host: str
    process: Process
    token: str = field(default_factory=lambda: secrets.token_hex(4))

    @classmethod
    def current(cls) -> Self:
        """Return a new owner in this process."""
        process = Process.of(os.getpid())
        assert process is not None, "this process runs"
        return cls(socket.gethostname(), process)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the owner that ``str`` rendered, or None if ``text`` is no owner."""
        parts = text.split("|")
        if len(parts) != 5 or not (parts[1].isdecimal() and parts[2].isdecimal()):  # noqa: PLR2004 - what str joins
            return None
        host, pid, start_ticks, boot_id, token = parts
        return cls(host, Process(int(pid), int(start_ticks), boot_id), token)

    @property
    def is_dead(self) -> bool:
        """Whether its process was on this machine and is gone; False for a process elsewhere."""
        return self.process.is_here and not self.process.is_alive

    def __str__(self) -> str:
        process = self.process
        return f"{self.host}|{process.pid}|{process.start_ticks}|{process.boot_id}|{self.token}"
