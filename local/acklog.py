"""What a subscription has acknowledged, on disk: an append-only log of runs that is rewritten when it grows."""

import contextlib
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from local.segments import store_error, write_all
from local.seqset import Run, SeqSet

# crc32 of the rest of the entry, runs, floor; then (start, end) of each run.
_ENTRY: Final = struct.Struct("<IIq")
_CHECKED: Final = 4
_RUN_BYTES: Final = 16
_COMPACT_BYTES: Final = 1024 * 1024
_COMPACT_FACTOR: Final = 4


class AckLog:
    """The acknowledged messages of one subscription; ``acked`` is the state, the file its history.

    Not thread-safe: its subscription calls it under its own lock.
    """

    def __init__(self, path: Path, first_seq: int, *, fsync: bool = False) -> None:
        self.path = path
        self._fsync = fsync
        self.acked = SeqSet(first_seq)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._size = self._read()
        self._stored_floor = self.acked.floor
        os.ftruncate(self._fd, self._size)

    def _read(self) -> int:
        raw = self.path.read_bytes()
        position = 0
        while position + _ENTRY.size <= len(raw):
            crc, count, floor = _ENTRY.unpack_from(raw, position)
            end = position + _ENTRY.size + _RUN_BYTES * count
            if end > len(raw) or crc != zlib.crc32(raw[position + _CHECKED : end]):
                break
            if position == 0:
                # The first entry of a file is a whole state; a seek may have set it below where the log began.
                self.acked = SeqSet(floor)
            self.acked.add(self.acked.floor, floor)
            runs = np.frombuffer(raw, dtype="<i8", count=2 * count, offset=position + _ENTRY.size)
            for start, stop in runs.reshape(-1, 2).tolist():
                self.acked.add(start, stop)
            position = end
        return position

    def record(self, runs: Sequence[Run]) -> None:
        """Write that ``runs`` are acknowledged, then hold them so.

        Raises:
            StatusError: the disk did not take it; nothing is acknowledged.
        """
        entry = _render_entry(self.acked.floor, runs)
        try:
            write_all(self._fd, entry, self._size)
            if self._fsync:
                os.fdatasync(self._fd)
        except OSError as exc:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise store_error(exc) from exc
        self._size += len(entry)
        self._stored_floor = self.acked.floor
        for start, end in runs:
            self.acked.add(start, end)
        if self._size > _COMPACT_BYTES and self._size > _COMPACT_FACTOR * len(_render_entry(0, self.acked.runs())):
            # A full disk only postpones it.
            with contextlib.suppress(OSError):
                self._rewrite(self.acked)

    def record_floor(self) -> None:
        """Write the floor when filtering or retention has raised it since the last entry."""
        if self.acked.floor != self._stored_floor:
            self.record([])

    def replace(self, acked: SeqSet) -> None:
        """Make ``acked`` the state, at once or not at all.

        Raises:
            StatusError: the disk did not take it; the state is as before.
        """
        try:
            self._rewrite(acked)
        except OSError as exc:
            raise store_error(exc) from exc
        self.acked = acked

    def _rewrite(self, acked: SeqSet) -> None:
        entry = _render_entry(acked.floor, acked.runs())
        temporary = self.path.with_suffix(".new")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            write_all(descriptor, entry, 0)
            os.fdatasync(descriptor)
            temporary.replace(self.path)
        except OSError:
            os.close(descriptor)
            raise
        os.close(self._fd)
        self._fd = descriptor
        self._size = len(entry)
        self._stored_floor = acked.floor

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _render_entry(floor: int, runs: Sequence[Run]) -> bytes:
    body = struct.pack("<Iq", len(runs), floor) + np.array(runs, dtype="<i8").tobytes()
    return struct.pack("<I", zlib.crc32(body)) + body
