"""The folder of a stream: its state at the top, and below ``instances/`` the reports of each start."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from typing import Any, Final, Self

from model.stream_record import StreamRecord
from streams.status import StatusFile

_INSTANCES: Final = "instances"
_STATUS: Final = "status.json"
# The state of a start that is ready and owns nothing.
STANDBY: Final = "standby"


@dataclass(frozen=True, slots=True)
class StreamFolder:
    """Where the stream keeps its state (``state``), and where this start of it reports and takes orders (``run``).

    An agent gives each start an ``instance_id``, and with it a folder of its own; a stream that was started by
    hand has none, reports beside its state and takes no orders but signals.
    """

    state: Path
    instance_id: str | None = None

    @classmethod
    def of(cls, home: Path, name: str, instance_id: str | None = None) -> Self:
        """Return the folder of the stream ``name`` in ``home``."""
        return cls(home / "streams" / name, instance_id)

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.state.name

    @property
    def run(self) -> Path:
        """The folder of this start."""
        return self.state if self.instance_id is None else self.state / _INSTANCES / self.instance_id

    @property
    def status(self) -> Path:
        """The status file of this start."""
        return self.run / _STATUS

    @property
    def control(self) -> Path | None:
        """The control file of this start, None for a stream that no agent started."""
        return None if self.instance_id is None else self.run / "control.json"

    @property
    def scratch(self) -> Path:
        """Spark's own files, which nobody needs after this start."""
        return self.run / "spark"


def list_instances(home: Path) -> list[StreamFolder]:
    """Return the folder of each start of a stream that ``home`` still has, by name and age."""
    return [
        StreamFolder(run.parent.parent, run.name) for run in sorted((home / "streams").glob(f"*/{_INSTANCES}/*"))
    ]


def has_state(record: StreamRecord, home: Path) -> bool:
    """Whether ``home`` has the stream's state, or it never ran: the state is where its last start was.

    Machines that share a home see the same files under another machine's name.
    """
    if record.home is None:
        return True
    folder = StreamFolder.of(home, record.name, record.instance_id)
    if (record.home.host, record.home.path) == (gethostname(), str(folder.state)):
        return True
    return record.instance_id is not None and folder.run.exists()


def read_statuses(home: Path, name: str = "*") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each status that the streams of ``home``, or the one of this name, have written, with the name."""
    for state in sorted((home / "streams").glob(name)):
        for path in (state / _STATUS, *sorted(state.glob(f"{_INSTANCES}/*/{_STATUS}"))):
            status = StatusFile.read(path)
            # A standby is not the stream yet: its report would hide that of the one that runs.
            if status is not None and status.get("state") != STANDBY:
                yield state.name, status


def read_newest_status(home: Path, name: str) -> dict[str, Any] | None:
    """Return the status that the stream ``name`` of ``home`` wrote last, None while it never wrote one."""
    return max(
        (status for _, status in read_statuses(home, name)),
        key=lambda status: float(status.get("at") or 0.0),
        default=None,
    )
