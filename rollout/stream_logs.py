"""Where the processes of one home's streams log, and the end of what they logged."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from jobs.log import read_tail
from model.stream_record import StreamRecord
from streams.folder import has_state

_LAST_LINES: Final = 15
_LAST_BYTES: Final = 16_000


class StreamLogs:
    """The logs of the streams of ``home``.

    A stream's starts write to one file, but for those that began as a standby: each of them has its own, because
    the stream's is the old release's meanwhile.
    """

    def __init__(self, home: Path) -> None:
        self._home = home

    def of(self, name: str) -> Path:
        """Return the stream's log."""
        return self._home / "logs" / f"{name}.log"

    def of_standby(self, name: str, instance_id: str) -> Path:
        """Return the log of an instance that began as a standby."""
        return self._home / "logs" / f"{name}.{instance_id}.log"

    def of_instance(self, name: str, instance_id: str | None) -> Path:
        """Return where the instance logs, however it began."""
        own = None if instance_id is None else self.of_standby(name, instance_id)
        return own if own is not None and own.exists() else self.of(name)

    def remove_standbys(self, name: str, *, keep: Sequence[str]) -> None:
        """Remove the logs of standbys, but for those of the instances to ``keep``."""
        kept = {self.of_standby(name, instance_id) for instance_id in keep}
        for path in self.of(name).parent.glob(f"{name}.in_*.log"):
            if path not in kept:
                path.unlink(missing_ok=True)

    def last_lines(self, name: str, instance_id: str | None) -> str:
        """Return the last lines that an instance has logged."""
        try:
            content, _ = read_tail(self.of_instance(name, instance_id), _LAST_BYTES)
        except OSError:
            return ""
        return "\n".join(content.decode(errors="replace").splitlines()[-_LAST_LINES:])

    def read_end(self, record: StreamRecord, *, tail_bytes: int) -> bytes:
        """Return the end of the log of the stream's newest instance, whole lines only; empty before its first.

        Of a stream that ran on another machine it is one line with the place.
        """
        if record.home is not None and not has_state(record, self._home):
            place = Path(record.home.path).parents[1] / "logs"
            return f"{record.name} logs on {record.home.host}, in {place}.\n".encode()
        path = self.of_instance(record.name, record.instance_id)
        try:
            content, _ = read_tail(path, tail_bytes)
        except FileNotFoundError:
            return b""
        return content
