"""The folder of a stream: its state, and below ``instances/`` the status of each start."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from typing import Any, Final, Self

from model.stream_record import StreamRecord
from streams.status import StatusFile

_INSTANCES: Final = "instances"
_STATUS: Final = "status.json"
# The state of an instance that is ready and does not own the stream.
STANDBY: Final = "standby"


@dataclass(frozen=True, slots=True)
class StreamFolder:
    """The folder of the stream's state (``state``), and the folder of this instance's status and orders (``run``).

    An agent gives each start an ``instance_id`` with its own folder. A stream that was started by hand has no id:
    it writes its status beside the state, and obeys only signals.
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
        """The folder of this instance."""
        return self.state if self.instance_id is None else self.state / _INSTANCES / self.instance_id

    @property
    def status(self) -> Path:
        """The status file of this instance."""
        return self.run / _STATUS

    @property
    def control(self) -> Path | None:
        """The control file of this instance, None for a stream that was started by hand."""
        return None if self.instance_id is None else self.run / "control.json"

    @property
    def scratch(self) -> Path:
        """The folder of Spark's temporary files, which are deleted after this instance."""
        return self.run / "spark"


def list_instances(home: Path) -> list[StreamFolder]:
    """Return the folders of all instances that ``home`` still has, sorted by stream and age."""
    return [
        StreamFolder(run.parent.parent, run.name) for run in sorted((home / "streams").glob(f"*/{_INSTANCES}/*"))
    ]


def has_state(record: StreamRecord, home: Path) -> bool:
    """Whether ``home`` has the stream's state, or the stream never ran: state is in the home of the last start.

    Machines that share a home see the same files, also those of instances on other machines.
    """
    if record.home is None:
        return True
    folder = StreamFolder.of(home, record.name, record.instance_id)
    if (record.home.host, record.home.path) == (gethostname(), str(folder.state)):
        return True
    return record.instance_id is not None and folder.run.exists()


def read_statuses(home: Path, name: str = "*") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and each status of the streams of ``home``, or of the stream with this name."""
    for state in sorted((home / "streams").glob(name)):
        for path in (state / _STATUS, *sorted(state.glob(f"{_INSTANCES}/*/{_STATUS}"))):
            status = StatusFile.read(path)
            # Skip standbys: their status would hide the status of the running instance.
            if status is not None and status.get("state") != STANDBY:
                yield state.name, status


def read_newest_status(home: Path, name: str) -> dict[str, Any] | None:
    """Return the newest status of the stream ``name`` of ``home``, or None."""
    return max(
        (status for _, status in read_statuses(home, name)),
        key=lambda status: float(status.get("at") or 0.0),
        default=None,
    )
