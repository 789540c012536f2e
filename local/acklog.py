"""What a subscription has acknowledged, on disk: an append-only log of runs that is rewritten when it grows.

A damaged entry is ignored: its messages come again, and the entries after it count.
"""

import contextlib
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from local.damage import keep_aside, report_damage
from local.files import sync_folder, write_all
from local.segments import store_error
from local.seqset import Run, SeqSet

# crc32 of the rest of the entry, runs, floor; then (start, end) of each run.
_ENTRY: Final = struct.Struct("<IIq")
_CHECKED: Final = 4
_RUN_BYTES: Final = 16
_COMPACT_BYTES: Final = 1024 * 1024
_COMPACT_FACTOR: Final = 4


class AckLog:
    """The acknowledged messages of one subscription; ``acked`` is the state, the file its history.

    Not thread-safe: its subscription calls it under its own lock. ``owner`` is the subscription's name in reports
    of damage. With ``must_exist`` a missing file is damage too.
    """

    def __init__(
        self, path: Path, first_seq: int, *, owner: str = "", must_exist: bool = False, fsync: bool = False
    ) -> None:
        self.path = path
        self._owner = owner
        self._fsync = fsync
        self.acked = SeqSet(first_seq)
        if must_exist and not path.exists():
            report_damage("acknowledgements_missing", owner, path)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if fsync:
            sync_folder(path.parent)
        self._size = 0
        is_whole = self._read()
        self._stored_floor = self.acked.floor
        if not is_whole:
            self._rewrite(self.acked)

    def _read(self) -> bool:
        """Read all entries that are whole; return whether there is nothing else in the file."""
        raw = self.path.read_bytes()
        is_whole = True
        for start, end in _find_entries(raw):
            if start > self._size:
                is_whole = False
                self._report(raw[self._size : start])
            _, count, floor = _ENTRY.unpack_from(raw, start)
            if self._size == 0:
                # The first entry of a file is a whole state; a seek may have set it below where the log began.
                self.acked = SeqSet(floor)
            self.acked.add(self.acked.floor, floor)
            runs = np.frombuffer(raw, dtype="<i8", count=2 * count, offset=start + _ENTRY.size)
            for first, stop in runs.reshape(-1, 2).tolist():
                self.acked.add(first, stop)
            self._size = end
        if self._size < len(raw):
            is_whole = False
            self._report(raw[self._size :])
        return is_whole

    def _report(self, damaged: bytes) -> None:
        kept = keep_aside(self.path, damaged)
        report_damage("acknowledgements_damaged", self._owner, self.path, offset=self._size, kept=kept)

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
        whole_bytes = _ENTRY.size + _RUN_BYTES * self.acked.run_count
        if self._size > _COMPACT_BYTES and self._size > _COMPACT_FACTOR * whole_bytes:
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
        if self._fsync:
            # Else a power cut brings the old file back, and with it what is acknowledged from now on.
            sync_folder(self.path.parent)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _find_entries(raw: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each whole entry starts and ends, whatever stands between them."""
    position = 0
    while position + _ENTRY.size <= len(raw):
        crc, count, _ = _ENTRY.unpack_from(raw, position)
        end = position + _ENTRY.size + _RUN_BYTES * count
        if end <= len(raw) and crc == zlib.crc32(raw[position + _CHECKED : end]):
            yield position, end
            position = end
        else:
            position += 1


def _render_entry(floor: int, runs: Sequence[Run]) -> bytes:
    body = struct.pack("<Iq", len(runs), floor) + np.array(runs, dtype="<i8").tobytes()
    return struct.pack("<I", zlib.crc32(body)) + body
