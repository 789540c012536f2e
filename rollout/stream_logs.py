"""Where the processes of one home's streams log, and the end of what they logged."""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from jobs.log import read_tail
from model.stream_record import StreamRecord
from streams.folder import has_state

_LAST_LINES: Final = 15
_LAST_BYTES: Final = 16_000
# A log that has grown to this becomes the older one, and the one before that goes.
MAX_LOG_BYTES: Final = 20_000_000


class StreamLogs:
    """The logs of the streams of ``home``, 40 MB at most for each: the newest lines, and those before them.

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

    def rotate(self, name: str, instance_id: str | None) -> None:
        """Begin an instance's log again where it is long, and keep what there is as the older one.

        The process that writes has the file open, so the lines are copied, and a line of that moment may be lost.
        """
        path = self.of_instance(name, instance_id)
        try:
            if path.stat().st_size < MAX_LOG_BYTES:
                return
        except FileNotFoundError:
            return
        older = _older(path)
        try:
            shutil.copyfile(path, older)
        except OSError:
            # A full disk: it needs the space more than anybody needs the older lines.
            older.unlink(missing_ok=True)
        with path.open("r+b") as log:
            log.truncate(0)

    def remove_standbys(self, name: str, *, keep: Sequence[str]) -> None:
        """Remove the logs of standbys, but for those of the instances to ``keep``."""
        kept = {self.of_standby(name, instance_id) for instance_id in keep}
        for path in self.of(name).parent.glob(f"{name}.in_*.log"):
            if path not in kept:
                path.unlink(missing_ok=True)
                _older(path).unlink(missing_ok=True)

    def last_lines(self, name: str, instance_id: str | None) -> str:
        """Return the last lines that an instance has logged."""
        try:
            content = _read_end(self.of_instance(name, instance_id), _LAST_LINES)
        except OSError:
            return ""
        return content[-_LAST_BYTES:].decode(errors="replace").removesuffix("\n")

    def read_end(self, record: StreamRecord, *, tail_lines: int) -> bytes:
        """Return the end of the log of the stream's newest instance, whole lines only; empty before its first.

        Of a stream that ran on another machine it is one line with the place.
        """
        if record.home is not None and not has_state(record, self._home):
            place = Path(record.home.path).parents[1] / "logs"
            return f"{record.name} logs on {record.home.host}, in {place}.\n".encode()
        path = self.of_instance(record.name, record.instance_id)
        try:
            return _read_end(path, tail_lines)
        except FileNotFoundError:
            return b""


def _older(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


def _read_end(path: Path, tail_lines: int) -> bytes:
    """Return the last lines of a log, those of the older one too where it has fewer."""
    content, _ = read_tail(path, tail_lines)
    missing = tail_lines - content.count(b"\n") - (not content.endswith(b"\n") and content != b"")
    if missing > 0:
        with suppress(FileNotFoundError):
            content = read_tail(_older(path), missing)[0] + content
    return content
