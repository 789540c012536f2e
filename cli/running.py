"""What a running ``refeed up`` says of itself in its home, so that other commands find it."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from model.disk import replace_text
from model.home import find_home
from model.process import Process


@dataclass(frozen=True, slots=True)
class RunningUp:
    """One ``refeed up``: where its services are, its own process, and those of its services by name."""

    api_url: str
    pubsub_emulator_host: str
    project: str
    up: Process
    processes: Mapping[str, Process]

    def write(self, record: Path) -> None:
        """Replace ``record`` with this.

        Raises:
            OSError: the disk did not take it; ``record`` is as it was.
        """
        replace_text(record, json.dumps(asdict(self)))

    @classmethod
    def read(cls, record: Path) -> Self | None:
        """Return what ``record`` says, None when there is none or it has another shape."""
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            found = json.loads(record.read_text())
            processes = {str(name): Process(**fields) for name, fields in found["processes"].items()}
            addresses = str(found["api_url"]), str(found["pubsub_emulator_host"])
            return cls(*addresses, str(found["project"]), Process(**found["up"]), processes)
        return None

    @classmethod
    def of(cls, api_url: str, emulator_host: str, project: str, *, up: Process, pids: Mapping[str, int]) -> Self:
        """Return it with the processes of its services that run."""
        found = {name: Process.of(pid) for name, pid in pids.items()}
        return cls(api_url, emulator_host, project, up, {name: one for name, one in found.items() if one})

    def left(self) -> Iterable[tuple[str, Process]]:
        """Return the processes of its services that still run, with their names."""
        return [(name, process) for name, process in self.processes.items() if process.is_alive]


def record_of(home: Path) -> Path:
    """Return where an ``up`` on ``home`` writes what it is."""
    return home / "run" / "up.json"


def find_running(environment: Mapping[str, str]) -> RunningUp | None:
    """Return the ``refeed up`` that runs on this environment's home; what a dead one left is not one."""
    found = RunningUp.read(record_of(find_home(environment)))
    return found if found is not None and found.up.is_alive else None
