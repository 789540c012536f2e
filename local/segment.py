"""One segment of a topic's messages: a log of records, and an index of the publish requests that wrote them."""

import contextlib
import os
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

import numpy as np
from google_crc32c import extend

from local.files import write_all
from local.indexes import HEADER, parse_index, render_entry
from local.salvage import segment_paths
from local.seqset import Seqs
from local.wire import is_whole

_READ_BYTES: Final = 4 * 1024 * 1024
# To check one record alone takes as long as to read and check this many bytes of a request.
_RECORD_CHECK_BYTES: Final = 16 * 1024
# A filter reads a message before its delivery does, and Pulls seldom end where a publish request does: the last
# two reads of a segment stay in memory, each up to this size, for up to eight segments of a process.
_MAX_KEPT_BYTES: Final = 2 * 1024 * 1024
_MAX_KEPT_READS: Final = 2
_MAX_KEEPERS: Final = 8


class _Column:
    """A growing array of numbers whose filled part can be read by other threads while one appends."""

    def __init__(self, dtype: str) -> None:
        self._values = np.zeros(64, dtype=dtype)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def extend(self, values: Sequence[int] | Seqs) -> None:
        needed = self._count + len(values)
        if needed > len(self._values):
            grown = np.zeros(max(needed, 2 * len(self._values)), dtype=self._values.dtype)
            grown[: self._count] = self._values[: self._count]
            self._values = grown
        self._values[self._count : needed] = values
        self._count = needed

    def cut(self, count: int) -> "_Column":
        """Return the first ``count`` as a column of its own: readers may hold a view of this one."""
        column = _Column(str(self._values.dtype))
        column.extend(self.view()[:count])
        return column

    def view(self) -> Seqs:
        return self._values[: self._count]


class _Read(NamedTuple):
    """Records at places [start, end) that fit their checksums."""

    start: int
    end: int
    records: memoryview


class Segment:
    """One pair of files; ``offsets`` has one element more than there are messages.

    ``is_flawed`` when index and log do not fit together: ``salvage`` repairs the files.
    """

    # Those with reads in memory, the one that was read last at the end.
    _keepers: ClassVar[deque["weakref.ref[Segment]"]] = deque(maxlen=_MAX_KEEPERS)

    def __init__(self, folder: Path, first_seq: int, first_id: int) -> None:
        self.first_seq = first_seq
        self._first_id = first_id
        self.log_path, self.idx_path = segment_paths(folder, first_seq)
        self.fd = -1
        self._idx_fd = -1
        self._idx_size = 0
        self.offsets = _Column("u4")
        self.offsets.extend([0])
        # Where each request ends, counted in messages, and the crc32c of all records up to there.
        self._ends = _Column("i8")
        self._ends.extend([0])
        self._chains = _Column("u4")
        self._chains.extend([0])
        self._times = _Column("i8")
        self._kept: tuple[_Read, ...] = ()
        self.is_closed = False
        self.is_flawed = self._read_index()

    @classmethod
    def create(cls, folder: Path, first_seq: int, first_id: int) -> "Segment":
        """Make the files of an empty segment and return it, ready to append."""
        for path in segment_paths(folder, first_seq):
            path.touch()
        segment = cls(folder, first_seq, first_id)
        segment.open_for_append()
        return segment

    def __del__(self) -> None:
        # Readers may still hold a segment that was deleted or evicted; its file goes with the last of them.
        for descriptor in (getattr(self, "fd", -1), getattr(self, "_idx_fd", -1)):
            if descriptor >= 0:
                os.close(descriptor)

    @property
    def size(self) -> int:
        """Bytes of records."""
        return int(self.offsets.view()[-1])

    @property
    def count(self) -> int:
        """How many messages it holds."""
        return len(self.offsets) - 1

    @property
    def end_seq(self) -> int:
        """The number after its last message."""
        return self.first_seq + self.count

    @property
    def last_time(self) -> int:
        """When the last message was published, in microseconds; 0 when there is none."""
        times = self._times.view()
        return int(times[-1]) if len(times) else 0

    def _read_index(self) -> bool:
        """Read the entries that are whole; return whether anything does not fit."""
        raw = self.idx_path.read_bytes() if self.idx_path.exists() else b""
        entries, self._idx_size = parse_index(raw)
        for entry in entries:
            if len(entry.lengths):
                self._note(entry.lengths, entry.publish_time, entry.chain)
            else:
                self.is_closed = True
        try:
            self.fd = os.open(self.log_path, os.O_RDWR)
        except FileNotFoundError:
            return True
        return self._idx_size < len(raw) or os.fstat(self.fd).st_size != self.size

    def _note(self, lengths: Seqs, publish_time: int, chain: int) -> None:
        # Readers look at the last two first.
        self._chains.extend([chain])
        self._times.extend([publish_time])
        self._ends.extend([self.count + len(lengths)])
        self.offsets.extend(self.size + np.cumsum(lengths))

    def check_records(self) -> None:
        """Compare the whole log with its checksum; a difference is a flaw."""
        chain = place = 0
        while piece := os.pread(self.fd, _READ_BYTES, place):
            chain = extend(chain, piece)
            place += len(piece)
        self.is_flawed = self.is_flawed or chain != int(self._chains.view()[-1])

    def open_for_append(self) -> None:
        """Make ready to append."""
        self._idx_fd = os.open(self.idx_path, os.O_RDWR | os.O_CREAT, 0o644)

    def append(self, records: bytes, lengths: Sequence[int], publish_time: int) -> None:
        """Write one publish request's records; ``flush`` makes them durable.

        Raises:
            OSError: the disk did not take it; the segment is as before.
        """
        chain = extend(int(self._chains.view()[-1]), records)
        try:
            write_all(self.fd, records, self.size)
            self._write_entry(render_entry(publish_time, chain, lengths))
        except OSError:
            # Both are written at known offsets, so that a failed cut is overwritten by the next publish.
            with contextlib.suppress(OSError):
                os.ftruncate(self._idx_fd, self._idx_size)
                os.ftruncate(self.fd, self.size)
            raise
        self._note(np.array(lengths, dtype=np.int64), publish_time, chain)

    def flush(self) -> None:
        """Make every record written before this call survive a power cut.

        An entry may reach the disk before its records do; the checksums find that at the next start.
        """
        os.fdatasync(self.fd)
        os.fdatasync(self._idx_fd)

    @property
    def mark(self) -> tuple[int, int]:
        """The place that ``cut_back`` returns to: entries, bytes of the index."""
        return len(self._times), self._idx_size

    def cut_back(self, mark: tuple[int, int]) -> None:
        """Forget what was written after ``mark``; a failed cut is overwritten by the next publish."""
        entries, self._idx_size = mark
        self._kept = ()
        self.offsets = self.offsets.cut(int(self._ends.view()[entries]) + 1)
        self._ends = self._ends.cut(entries + 1)
        self._times = self._times.cut(entries)
        self._chains = self._chains.cut(entries + 1)
        with contextlib.suppress(OSError):
            os.ftruncate(self._idx_fd, self._idx_size)
            os.ftruncate(self.fd, self.size)

    def close(self) -> None:
        """Note in the index that another segment follows: one that is last and closed has lost it."""
        # Without the note, on a full disk, only that check is missing.
        with contextlib.suppress(OSError):
            self._write_entry(render_entry(0, 0, []))

    def _write_entry(self, entry: bytes) -> None:
        if not self._idx_size:
            entry = HEADER + entry
        write_all(self._idx_fd, entry, self._idx_size)
        self._idx_size += len(entry)

    def read(self, start: int, end: int) -> tuple[list[memoryview], list[int]]:
        """Return the records at places [start, end) in pieces, and the places of those that are damaged."""
        offsets, kept = self.offsets.view(), self._kept
        pieces: list[memoryview] = []
        while start < end:
            found = next((read for read in kept if read.start <= start < read.end), None)
            if found is None:
                piece, damaged = self._read_checked(start, end)
                return [*pieces, piece], damaged
            stop, begin = min(end, found.end), int(offsets[found.start])
            pieces.append(found.records[int(offsets[start]) - begin : int(offsets[stop]) - begin])
            start = stop
        return pieces, []

    def _read_checked(self, start: int, end: int) -> tuple[memoryview, list[int]]:
        ends, offsets = self._ends.view(), self.offsets.view()
        first, last = self._checked_requests(start, end)
        checked_start, checked_end = int(ends[first]), int(ends[last])
        read_start, read_end = min(start, checked_start), max(end, checked_end)
        raw = self._read_bytes(int(offsets[read_start]), int(offsets[read_end]))
        places = (offsets[start : end + 1] - offsets[read_start]).tolist()
        if first < last and self._is_chained(first, last, raw, int(offsets[read_start])):
            suspects: Iterable[int] = (
                *range(start, min(checked_start, end)),
                *range(max(checked_end, start), end),
            )
        else:
            suspects = range(start, end)
        damaged = []
        for place in suspects:
            record = raw[places[place - start] : places[place - start + 1]]
            seq = self.first_seq + place
            if not is_whole(record, self._first_id + seq, self.publish_time(seq)):
                damaged.append(place)
        if not suspects and len(raw) <= _MAX_KEPT_BYTES:
            self._keep(_Read(read_start, read_end, memoryview(raw)))
        return memoryview(raw)[places[0] : places[-1]], damaged

    def _keep(self, read: _Read) -> None:
        self._kept = (read, *self._kept[: _MAX_KEPT_READS - 1])
        keepers = self._keepers
        if keepers and keepers[-1]() is self:
            return
        oldest = keepers[0]() if len(keepers) == _MAX_KEEPERS else None
        if oldest is not None and oldest is not self:
            oldest._kept = ()  # noqa: SLF001 - of the same class
        keepers.append(weakref.ref(self))

    def _checked_requests(self, start: int, end: int) -> tuple[int, int]:
        """Return the first request, and the one after the last, that are checked as a whole for [start, end).

        A request that reaches beyond is one of them where reading the rest of it costs less than checking its
        records one by one; a reader that takes part of each request would else pay several times for it.
        """
        ends, offsets = self._ends.view(), self.offsets.view()
        first, last = int(np.searchsorted(ends, start, "left")), int(np.searchsorted(ends, end, "right")) - 1
        before, behind = int(np.searchsorted(ends, start, "right")) - 1, int(np.searchsorted(ends, end, "left"))
        more_bytes = int(offsets[start]) - int(offsets[ends[before]])
        if more_bytes <= (min(int(ends[first]), end) - start) * _RECORD_CHECK_BYTES:
            first = before
        more_bytes = int(offsets[ends[behind]]) - int(offsets[end])
        if more_bytes <= (end - max(int(ends[last]), start)) * _RECORD_CHECK_BYTES:
            last = behind
        return first, last

    def _read_bytes(self, start: int, end: int) -> bytes:
        raw = b""
        while len(raw) < end - start:
            piece = os.pread(self.fd, end - start - len(raw), start + len(raw))
            # What was cut off while the server runs is as damaged as what was changed.
            raw += piece or bytes(end - start - len(raw))
        return raw

    def _is_chained(self, first: int, last: int, raw: bytes, offset: int) -> bool:
        ends, chains, offsets = self._ends.view(), self._chains.view(), self.offsets.view()
        inner = raw[int(offsets[ends[first]]) - offset : int(offsets[ends[last]]) - offset]
        return bool(extend(int(chains[first]), inner) == int(chains[last]))

    def publish_time(self, seq: int) -> int:
        """Return when message ``seq`` was published, in microseconds; 0 in an empty segment."""
        times = self._times.view()
        at = int(np.searchsorted(self._ends.view(), seq - self.first_seq, side="right")) - 1
        return int(times[min(at, len(times) - 1)]) if len(times) else 0

    def first_seq_since(self, publish_time: int) -> int:
        """Return the first message published at ``publish_time`` or later, or the number after the last."""
        at = int(np.searchsorted(self._times.view(), publish_time, side="left"))
        return self.first_seq + int(self._ends.view()[at])

    def delete(self) -> None:
        """Remove both files; readers that hold the segment can go on reading."""
        self.log_path.unlink(missing_ok=True)
        self.idx_path.unlink(missing_ok=True)
