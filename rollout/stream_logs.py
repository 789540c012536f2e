"""The log files of one home's streams, and their last lines."""

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
# A log of this size becomes the older log, and replaces the one before.
MAX_LOG_BYTES: Final = 20_000_000


class StreamLogs:
    """The logs of the streams of ``home``: for each stream a newest and an older file, 40 MB together.

    All instances of a stream write to the same file, except standbys: each standby has its own file, because the
    old process still writes the stream's log.
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
        """Return the log of the instance, also if it began as a standby."""
        own = None if instance_id is None else self.of_standby(name, instance_id)
        return own if own is not None and own.exists() else self.of(name)

    def rotate(self, name: str, instance_id: str | None) -> None:
        """Rotate an instance's log if it is long: copy it to the older log, and empty it.

        The writing process keeps the file open. So the content is copied, and a line written meanwhile may be
        lost.
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
            # The disk is full: the older lines are given up for the space.
            older.unlink(missing_ok=True)
        with path.open("r+b") as log:
            log.truncate(0)

    def remove_standbys(self, name: str, *, keep: Sequence[str]) -> None:
        """Remove the logs of standbys, except of the instances in ``keep``."""
        kept = {self.of_standby(name, instance_id) for instance_id in keep}
        for path in self.of(name).parent.glob(f"{name}.in_*.log"):
            if path not in kept:
                path.unlink(missing_ok=True)
                _older(path).unlink(missing_ok=True)

    def last_lines(self, name: str, instance_id: str | None) -> str:
        """Return the last lines of an instance's log."""
        try:
            content = _read_end(self.of_instance(name, instance_id), _LAST_LINES)
        except OSError:
            return ""
        return content[-_LAST_BYTES:].decode(errors="replace").removesuffix("\n")

    def read_end(self, record: StreamRecord, *, tail_lines: int) -> bytes:
        """Return the end of the newest instance's log, whole lines only; empty before the first instance.

        If the stream ran on another machine, the answer is one line with the place.
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
    """Return the last lines of a log, and of the older log if these are too few."""
    content, _ = read_tail(path, tail_lines)
    missing = tail_lines - content.count(b"\n") - (not content.endswith(b"\n") and content != b"")
    if missing > 0:
        with suppress(FileNotFoundError):
            content = read_tail(_older(path), missing)[0] + content
    return content
