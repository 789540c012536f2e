"""A topic's messages on disk: append-only segments of ready-made records, with an index file beside each.

``<first number>.log`` holds nothing but records; ``<first number>.idx`` holds one entry a publish request, written
after the records: an entry that is whole and whose checksums fit *is* the publish. What a crash leaves behind the
last such entry is cut off at start.
"""

import contextlib
import errno
import os
import shutil
import struct
import threading
import time
import zlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from local.seqset import Seqs, read_runs
from local.status import StatusError
from local.wire import Bytes, build_records

SEGMENT_BYTES: Final = 64 * 1024 * 1024
# An index of a 64 MB segment of 1 KB messages takes 0.3 MB of memory.
MAX_LOADED_SEGMENTS: Final = 16

# crc32 of the rest of the entry, messages, record bytes, crc32 of the records, publish time in microseconds.
_ENTRY: Final = struct.Struct("<IIQIq")
_CHECKED: Final = 4


def store_error(exc: OSError) -> StatusError:
    """Return the status for a write that the disk did not take."""
    if exc.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        return StatusError.disk_full()
    return StatusError.unavailable(f"The local server could not write: {exc.strerror}; nothing was stored.")


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` survive a power cut: a file that was made there, or renamed."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes, offset: int) -> None:
    """Write all of ``data`` at ``offset``; write(2) may take a part only."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        offset += written
        view = view[written:]


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

    def view(self) -> Seqs:
        return self._values[: self._count]


class Segment:
    """One pair of files; ``offsets`` has one element more than there are messages."""

    def __init__(self, folder: Path, first_seq: int) -> None:
        self.first_seq = first_seq
        self.log_path = folder / f"{first_seq:020d}.log"
        self.idx_path = folder / f"{first_seq:020d}.idx"
        self.fd = os.open(self.log_path, os.O_RDWR | os.O_CREAT, 0o644)
        self._idx_fd = -1
        self._idx_size = 0
        self.offsets = _Column("u4")
        self.offsets.extend([0])
        self._frame_seqs = _Column("i8")
        self._frame_times = _Column("i8")
        self._read_index()

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
    def last_time(self) -> int:
        """When the last message was published, in microseconds; 0 when there is none."""
        times = self._frame_times.view()
        return int(times[-1]) if len(times) else 0

    def _read_index(self) -> None:
        if not self.idx_path.exists():
            return
        raw = self.idx_path.read_bytes()
        position = 0
        log_size = os.fstat(self.fd).st_size
        while position + _ENTRY.size <= len(raw):
            crc, count, length, _, publish_time = _ENTRY.unpack_from(raw, position)
            end = position + _ENTRY.size + 4 * count
            if (
                end > len(raw)
                or crc != zlib.crc32(raw[position + _CHECKED : end])
                or self.size + length > log_size
            ):
                break
            lengths = np.frombuffer(raw, dtype="<u4", count=count, offset=position + _ENTRY.size)
            self._note(lengths.astype(np.int64), publish_time)
            position = end
        self._idx_size = position

    def _note(self, lengths: Seqs, publish_time: int) -> None:
        self._frame_seqs.extend([self.first_seq + self.count])
        self._frame_times.extend([publish_time])
        self.offsets.extend(self.size + np.cumsum(lengths))

    def open_for_append(self) -> None:
        """Check the records' checksums, cut off what was not published whole, and make ready to append."""
        self._idx_fd = os.open(self.idx_path, os.O_RDWR | os.O_CREAT, 0o644)
        raw = self.idx_path.read_bytes()[: self._idx_size]
        position = start = 0
        good_entries = 0
        while position < len(raw):
            _, count, length, crc, _ = _ENTRY.unpack_from(raw, position)
            if zlib.crc32(os.pread(self.fd, length, start)) != crc:
                break
            position += _ENTRY.size + 4 * count
            start += length
            good_entries += 1
        if position < len(raw):
            # A power cut can keep an entry and lose its records; only then is anything behind it doubtful.
            self._forget_from(good_entries)
            self._idx_size = position
        os.ftruncate(self._idx_fd, self._idx_size)
        os.ftruncate(self.fd, self.size)

    def _forget_from(self, entries: int) -> None:
        messages = int(self._frame_seqs.view()[entries]) - self.first_seq
        for name, kept in (("_frame_seqs", entries), ("_frame_times", entries), ("offsets", messages + 1)):
            old: _Column = getattr(self, name)
            new = _Column(str(old.view().dtype))
            new.extend(old.view()[:kept])
            setattr(self, name, new)

    def append(self, records: bytes, lengths: Sequence[int], publish_time: int) -> None:
        """Write one publish request's records; ``flush`` makes them durable.

        Raises:
            OSError: the disk did not take it; the segment is as before.
        """
        body = _ENTRY.pack(0, len(lengths), len(records), zlib.crc32(records), publish_time)
        body += np.array(lengths, dtype="<u4").tobytes()
        entry = struct.pack("<I", zlib.crc32(body[_CHECKED:])) + body[_CHECKED:]
        try:
            write_all(self.fd, records, self.size)
            write_all(self._idx_fd, entry, self._idx_size)
        except OSError:
            # Both are written at known offsets, so that a failed cut is overwritten by the next publish.
            with contextlib.suppress(OSError):
                os.ftruncate(self._idx_fd, self._idx_size)
                os.ftruncate(self.fd, self.size)
            raise
        self._idx_size += len(entry)
        self._note(np.array(lengths, dtype=np.int64), publish_time)

    def flush(self) -> None:
        """Make every record written before this call survive a power cut.

        An entry may reach the disk before its records do; the checksums find that at the next start.
        """
        os.fdatasync(self.fd)
        os.fdatasync(self._idx_fd)

    @property
    def mark(self) -> tuple[int, int]:
        """The place that ``cut_back`` returns to: entries, bytes of the index."""
        return len(self._frame_seqs), self._idx_size

    def cut_back(self, mark: tuple[int, int]) -> None:
        """Forget what was written after ``mark``; a failed cut is overwritten by the next publish."""
        entries, self._idx_size = mark
        if entries < len(self._frame_seqs):
            self._forget_from(entries)
        with contextlib.suppress(OSError):
            os.ftruncate(self._idx_fd, self._idx_size)
            os.ftruncate(self.fd, self.size)

    def publish_time(self, seq: int) -> int:
        """Return when message ``seq`` was published, in microseconds."""
        return int(self._frame_times.view()[np.searchsorted(self._frame_seqs.view(), seq, side="right") - 1])

    def first_seq_since(self, publish_time: int) -> int:
        """Return the first message published at ``publish_time`` or later, or the one behind the last."""
        at = int(np.searchsorted(self._frame_times.view(), publish_time, side="left"))
        frames = self._frame_seqs.view()
        return int(frames[at]) if at < len(frames) else self.first_seq + self.count

    def delete(self) -> None:
        """Remove both files; readers that hold the segment can go on reading."""
        self.log_path.unlink(missing_ok=True)
        self.idx_path.unlink(missing_ok=True)


class MessageLog:
    """All messages of one topic, numbered from 0 in the order of publishing.

    Safe to use from many threads. A message's id is ``first_id`` plus its number: unique in the topic, growing
    over restarts, and, ``first_id`` being the time of creation, never that of a deleted topic of the same name.
    """

    def __init__(
        self, folder: Path, first_id: int, *, segment_bytes: int = SEGMENT_BYTES, fsync: bool = False
    ) -> None:
        self.folder = folder
        self.first_id = first_id
        self._segment_bytes = segment_bytes
        self._fsync = fsync
        # Held once, never nested, by whoever waits for a flush.
        self._lock = threading.RLock()
        folder.mkdir(parents=True, exist_ok=True)
        if fsync:
            sync_folder(folder.parent)
        self._firsts = sorted(int(path.stem) for path in folder.glob("*.idx")) or [0]
        self._loaded: OrderedDict[int, Segment] = OrderedDict()
        self._active = self._open_last()
        if fsync:
            sync_folder(folder)
        self._last_time = self._read_last_time()
        self.next_seq = self._written_seq = self._active.first_seq + self._active.count
        self._flushed = threading.Condition(self._lock)
        self._flushed_mark = self._active.mark
        self._is_flushing = False
        # Where each failed flush cut the log.
        self._cuts: list[int] = []
        self.answered_seq = self.next_seq
        # The first number of each publish whose answer is under way, ascending, and since when.
        self._answering: dict[int, float] = {}
        # Apart from the other lock, which is held over writes: the server's one polling thread takes this one.
        self._answering_lock = threading.Lock()

    @property
    def first_seq(self) -> int:
        """The first message that is still on disk."""
        return self._firsts[0]

    def _open_last(self) -> Segment:
        active = Segment(self.folder, self._firsts[-1])
        active.open_for_append()
        return active

    def _read_last_time(self) -> int:
        if self._active.last_time or len(self._firsts) == 1:
            return self._active.last_time
        return self._segment(len(self._firsts) - 2).last_time

    def append(self, bodies: Sequence[bytes], *, is_answered: bool = True) -> int:
        """Store one publish request's messages and return the first one's number.

        They may be delivered at once, or unless ``is_answered`` after ``release``.

        Raises:
            StatusError: RESOURCE_EXHAUSTED or UNAVAILABLE, the disk did not take it; nothing is stored.
        """
        with self._lock:
            try:
                while self._active.size >= self._segment_bytes:
                    self._roll()
                first = self._written_seq
                # Times never run back, so that a seek to a time is a binary search.
                publish_time = max(time.time_ns() // 1000, self._last_time)
                records, lengths = build_records(bodies, self.first_id + first, publish_time)
                self._active.append(records, lengths, publish_time)
            except OSError as exc:
                raise store_error(exc) from exc
            self._last_time = publish_time
            self._written_seq = end = first + len(bodies)
            if not is_answered:
                with self._answering_lock:
                    self._answering[first] = time.monotonic()
            if not self._fsync:
                self._store_to(end)
                return first
            cuts = len(self._cuts)
            try:
                while self.next_seq < end and len(self._cuts) == cuts:
                    self._join_flush()
            except OSError as exc:
                raise store_error(exc) from exc
            if len(self._cuts) > cuts and self._cuts[cuts] < end:
                raise store_error(OSError(errno.EIO, os.strerror(errno.EIO)))
        return first

    def _store_to(self, seq: int) -> None:
        self.next_seq = seq
        with self._answering_lock:
            self._update_answered()

    def _update_answered(self) -> None:
        self.answered_seq = min(next(iter(self._answering), self.next_seq), self.next_seq)

    @property
    def is_answering(self) -> bool:
        """Whether messages are stored whose publish was not answered yet."""
        return self.answered_seq < self.next_seq

    def release(self, first_seq: int) -> None:
        """Let the messages of a publish be delivered, and those after it: the publish was answered.

        Publishes answered out of order are delivered in order.
        """
        with self._answering_lock:
            self._answering.pop(first_seq, None)
            self._update_answered()

    def release_before(self, moment: float) -> bool:
        """Release the publishes stored before ``moment`` (monotonic seconds); return whether there were any."""
        with self._answering_lock:
            late = [first for first, since in self._answering.items() if since < moment]
            for first in late:
                del self._answering[first]
            self._update_answered()
        return bool(late)

    def _join_flush(self) -> None:
        """Wait for the flush under way, or begin one for everybody who waits; the lock is free meanwhile.

        Raises:
            OSError: the flush failed; what was not durable before it is cut off.
        """
        if self._is_flushing:
            self._flushed.wait()
            return
        self._is_flushing = True
        active, mark, end = self._active, self._active.mark, self._written_seq
        try:
            self._lock.release()
            try:
                active.flush()
            finally:
                self._lock.acquire()
            self._flushed_mark = mark
            self._store_to(end)
        except OSError:
            self._cut_back()
            raise
        finally:
            self._is_flushing = False
            self._flushed.notify_all()

    def _cut_back(self) -> None:
        self._active.cut_back(self._flushed_mark)
        self._written_seq = self.next_seq
        self._cuts.append(self.next_seq)
        with self._answering_lock:
            for first in [first for first in self._answering if first >= self.next_seq]:
                del self._answering[first]

    def _roll(self) -> None:
        """Begin a segment; with ``fsync`` flush the last one first, since a start checks only the newest."""
        if self.next_seq < self._written_seq:
            self._join_flush()
            return
        segment = Segment(self.folder, self._written_seq)
        segment.open_for_append()
        if self._fsync:
            sync_folder(self.folder)
        self._loaded[self._active.first_seq] = self._active
        self._active = segment
        self._flushed_mark = segment.mark
        self._firsts.append(segment.first_seq)

    def _segment_of(self, seq: int) -> Segment:
        with self._lock:
            if seq < self._firsts[0]:
                raise StatusError.unavailable("A message was dropped by its retention while it was read.")
            return self._segment(bisect_right(self._firsts, seq) - 1)

    def _segment(self, at: int) -> Segment:
        """Return the segment at place ``at``, its index loaded; the least used ones are forgotten again."""
        with self._lock:
            first = self._firsts[at]
            if first == self._active.first_seq:
                return self._active
            segment = self._loaded.pop(first, None) or Segment(self.folder, first)
            self._loaded[first] = segment
            while len(self._loaded) > MAX_LOADED_SEGMENTS:
                self._loaded.popitem(last=False)
            return segment

    def _pieces(self, seqs: Seqs) -> Iterable[tuple[Segment, int, int]]:
        """Yield (segment, start, end) for the runs of ``seqs``, places counted within the segment."""
        for run_start, end in read_runs(seqs):
            start = run_start
            while start < end:
                segment = self._segment_of(start)
                stop = min(end, segment.first_seq + segment.count)
                yield segment, start - segment.first_seq, stop - segment.first_seq
                start = stop

    def read_lengths(self, seqs: Seqs) -> Seqs:
        """Return the record length in bytes of each message; each must be on disk."""
        pieces = [np.diff(segment.offsets.view()[a : b + 1]) for segment, a, b in self._pieces(seqs)]
        return np.concatenate(pieces).astype(np.int64) if pieces else np.empty(0, dtype=np.int64)

    def read(self, seqs: Seqs, lengths: Seqs) -> Bytes:
        """Return the records of ``seqs``, joined in that order, in a buffer of the caller's own."""
        buffer = np.empty(int(lengths.sum()), dtype=np.uint8)
        position = 0
        for segment, a, b in self._pieces(seqs):
            offsets = segment.offsets.view()
            start, size = int(offsets[a]), int(offsets[b]) - int(offsets[a])
            view = buffer.data[position : position + size]
            while view:
                got = os.preadv(segment.fd, [view], start)
                if got == 0:
                    raise StatusError.unavailable(
                        f"The log of the topic is shorter than its index: {segment.log_path}."
                    )
                view = view[got:]
                start += got
            position += size
        return buffer

    def publish_time(self, seq: int) -> int:
        """Return when message ``seq`` was published, in microseconds; it must be on disk."""
        return self._segment_of(seq).publish_time(seq)

    def first_seq_since(self, publish_time: int) -> int:
        """Return the first message published at ``publish_time`` (microseconds) or later, or the next."""
        with self._lock:
            for at in range(len(self._firsts)):
                segment = self._segment(at)
                if segment.last_time >= publish_time:
                    return min(segment.first_seq_since(publish_time), self.next_seq)
            return self.next_seq

    def delete_before(self, seq: int, publish_time: int | None = None) -> int:
        """Delete the segments whose messages are below ``seq`` and older than ``publish_time``; return how many.

        The one that is appended to stays.
        """
        deleted = 0
        with self._lock:
            while len(self._firsts) > 1 and self._firsts[1] <= seq:
                segment = self._segment(0)
                if publish_time is not None and segment.last_time >= publish_time:
                    break
                segment.delete()
                self._loaded.pop(segment.first_seq, None)
                del self._firsts[0]
                deleted += 1
        return deleted

    def delete(self) -> None:
        """Remove every file of the log; readers that are under way can finish."""
        with self._lock:
            self._loaded.clear()
            shutil.rmtree(self.folder, ignore_errors=True)
