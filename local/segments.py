"""A topic's messages on disk: append-only segments of ready-made records, with an index file beside each.

``<first number>.log`` holds nothing but records, each with a checksum of its own; ``<first number>.idx`` holds
one entry a publish request, written after the records. At start every index is compared with its log, and a
segment that does not fit is repaired. After that only numbers between two segments are missing.
"""

import contextlib
import errno
import os
import shutil
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Final

import numpy as np

from local.damage import DamagedError, keep_aside, report_damage
from local.files import sync_folder
from local.salvage import Salvaged, salvage
from local.segment import Segment
from local.seqset import Seqs, SeqSet, read_runs
from local.status import StatusError
from local.wire import Bytes, build_records

SEGMENT_BYTES: Final = 64 * 1024 * 1024
# An index of a 64 MB segment of 1 KB messages takes 0.3 MB of memory.
MAX_LOADED_SEGMENTS: Final = 16
# After damage at its end a log goes on at the next multiple of this: whatever was there, no number is given twice.
# Numbers have 48 bits, so this may happen 65,000 times to a topic.
JUMP: Final = 1 << 32


def store_error(exc: OSError) -> StatusError:
    """Return the status for a write that the disk did not take."""
    if exc.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        return StatusError.disk_full()
    return StatusError.unavailable(f"The local server could not write: {exc.strerror}; nothing was stored.")


class MessageLog:
    """All messages of one topic, numbered from 0 in the order of publishing.

    Safe to use from many threads. A message's id is ``first_id`` plus its number: unique in the topic, growing
    over restarts, and, ``first_id`` being the time of creation, never that of a deleted topic of the same name.
    ``owner`` is the topic's name in reports of damage. With ``must_exist`` an empty folder is damage too.
    """

    def __init__(
        self,
        folder: Path,
        first_id: int,
        *,
        owner: str = "",
        must_exist: bool = False,
        segment_bytes: int = SEGMENT_BYTES,
        fsync: bool = False,
    ) -> None:
        self.folder = folder
        self.first_id = first_id
        self._owner = owner
        self._segment_bytes = segment_bytes
        self._fsync = fsync
        # Held once, never nested, by a thread that waits for a flush.
        self._lock = threading.RLock()
        self._reported: set[int] = set()
        folder.mkdir(parents=True, exist_ok=True)
        if fsync:
            sync_folder(folder.parent)
        for path in folder.glob("*.new"):
            path.unlink()
        self._firsts: list[int] = []
        # Where each segment but the last ends.
        self._ends: dict[int, int] = {}
        self._loaded: OrderedDict[int, Segment] = OrderedDict()
        self._active, is_end_whole, end = self._open_segments(is_new=not must_exist)
        if fsync:
            sync_folder(folder)
        self._last_time = self._read_last_time()
        self.next_seq = self._written_seq = self._active.end_seq
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
        self._report_missing()
        if not is_end_whole:
            self._jump(end)

    @property
    def first_seq(self) -> int:
        """The first message that is still on disk."""
        return self._firsts[0]

    def _open_segments(self, *, is_new: bool) -> tuple[Segment, bool, int]:
        """Check and repair all segments; return the last one, whether its end was whole, and the numbers' end."""
        files = [path for path in self.folder.iterdir() if path.suffix in {".log", ".idx"}]
        names = sorted({int(path.stem) for path in files if path.stem.isdigit()})
        is_whole_end, end = is_new, 0
        if not names and not is_new:
            report_damage("log_missing", self._owner, self.folder)
        for first, until in zip_longest(names, names[1:]):
            segment = Segment(self.folder, first, self.first_id)
            if until is None and not segment.is_flawed:
                segment.check_records()
            if segment.is_flawed:
                salvaged = self._salvage(first, until)
                is_whole_end, end = not salvaged.is_damaged, salvaged.end
            else:
                self._firsts.append(first)
                self._ends[first] = end = segment.end_seq
                is_whole_end = not segment.is_closed
                if until is None and segment.is_closed:
                    report_damage("segment_missing", self._owner, segment.log_path, offset=segment.size)
        if not self._firsts:
            self._firsts = [0 if is_whole_end else _next_jump(end)]
            is_whole_end = True
            return Segment.create(self.folder, self._firsts[0], self.first_id), is_whole_end, end
        del self._ends[self._firsts[-1]]
        active = Segment(self.folder, self._firsts[-1], self.first_id)
        active.open_for_append()
        return active, is_whole_end, end

    def _salvage(self, first: int, until: int | None) -> Salvaged:
        """Repair the segment at ``first`` and put what is left of it in its place."""
        salvaged = salvage(self.folder, first, until, self.first_id, self._owner)
        self._ends.pop(first, None)
        others = [other for other in self._firsts if other != first]
        self._firsts = sorted({*others, *salvaged.firsts})
        for left in salvaged.firsts:
            self._ends[left] = Segment(self.folder, left, self.first_id).end_seq
        return salvaged

    def _read_last_time(self) -> int:
        if self._active.last_time or len(self._firsts) == 1:
            return self._active.last_time
        return self._segment(len(self._firsts) - 2).last_time

    def claim(self, end: int) -> None:
        """Give no number below ``end`` again: they were in use, so the log has lost them."""
        with self._lock:
            if end > self.next_seq:
                report_damage("log_end_missing", self._owner, self._active.log_path, messages=end - self.next_seq)
                self._jump(end)

    def _jump(self, end: int) -> None:
        self.next_seq = self.answered_seq = self._written_seq = _next_jump(max(end, self.next_seq))
        self._roll()

    def _holes(self) -> Iterator[tuple[int, int]]:
        """Yield the runs of numbers between two segments: lost to damage, or passed over after it."""
        for first, following in pairwise(self._firsts):
            if self._ends[first] < following:
                yield self._ends[first], following

    def _report_missing(self) -> None:
        for start, stop in self._holes():
            # Numbers up to a jump were passed over, and never given.
            if stop % JUMP:
                report_damage(
                    "messages_missing",
                    self._owner,
                    self.folder,
                    messages=stop - start,
                    first_message_id=self.first_id + start,
                    last_message_id=self.first_id + stop - 1,
                )

    def fill_missing(self, acked: SeqSet) -> None:
        """Put every number that is no longer on disk into ``acked``."""
        with self._lock:
            acked.add(acked.floor, self.first_seq)
            for start, stop in self._holes():
                acked.add(start, stop)

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
        """Begin a segment; with ``fsync`` flush the last one first, since a start reads only the newest whole."""
        if self.next_seq < self._written_seq:
            self._join_flush()
            return
        segment = Segment.create(self.folder, self._written_seq, self.first_id)
        if self._fsync:
            sync_folder(self.folder)
        self._active.close()
        self._loaded[self._active.first_seq] = self._active
        self._ends[self._active.first_seq] = self._active.end_seq
        self._active = segment
        self._flushed_mark = segment.mark
        self._firsts.append(segment.first_seq)

    def _segment_of(self, seq: int) -> Segment:
        """Return the segment that holds ``seq``, or would, were it not missing."""
        with self._lock:
            if seq < self._firsts[0]:
                raise StatusError.unavailable("A message was dropped by its retention while it was read.")
            return self._segment(bisect_right(self._firsts, seq) - 1)

    def _segment(self, at: int) -> Segment:
        """Return the segment at place ``at``, its index loaded; the least used ones are forgotten again.

        One that was damaged since the start is repaired first, and the places of others may change by that.
        """
        with self._lock:
            first = self._firsts[at]
            if first == self._active.first_seq:
                return self._active
            segment = self._loaded.pop(first, None) or Segment(self.folder, first, self.first_id)
            if segment.is_flawed:
                try:
                    self._salvage(first, self._firsts[at + 1])
                except OSError as exc:
                    raise store_error(exc) from exc
                return self._segment(at)
            self._loaded[first] = segment
            while len(self._loaded) > MAX_LOADED_SEGMENTS:
                self._loaded.popitem(last=False)
            return segment

    def _pieces(self, seqs: Seqs) -> list[tuple[Segment, int, int]]:
        """Return (segment, start, end) for the runs of ``seqs``, places counted within the segment.

        Raises:
            DamagedError: some are missing.
        """
        pieces: list[tuple[Segment, int, int]] = []
        missing: list[Seqs] = []
        for run_start, end in read_runs(seqs):
            start = run_start
            while start < end:
                segment = self._segment_of(start)
                if start < segment.end_seq:
                    stop = min(end, segment.end_seq)
                    pieces.append((segment, start - segment.first_seq, stop - segment.first_seq))
                else:
                    with self._lock:
                        stop = min([end, *(first for first in self._firsts if first > start)])
                    missing.append(np.arange(start, stop, dtype=np.int64))
                start = stop
        if missing:
            raise DamagedError(np.concatenate(missing))
        return pieces

    def read_lengths(self, seqs: Seqs) -> Seqs:
        """Return the record length in bytes of each message.

        Raises:
            DamagedError: some are missing.
        """
        pieces = [np.diff(segment.offsets.view()[a : b + 1]) for segment, a, b in self._pieces(seqs)]
        return np.concatenate(pieces).astype(np.int64) if pieces else np.empty(0, dtype=np.int64)

    def read(self, seqs: Seqs, lengths: Seqs) -> Bytes:
        """Return the records of ``seqs``, joined in that order, in a buffer of the caller's own.

        Raises:
            DamagedError: some are missing or do not fit their checksums.
        """
        buffer = np.empty(int(lengths.sum()), dtype=np.uint8)
        position = 0
        damaged: list[int] = []
        for segment, start, end in self._pieces(seqs):
            pieces, places = segment.read(start, end)
            for piece in pieces:
                buffer[position : position + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
                position += len(piece)
            if places:
                damaged += [segment.first_seq + place for place in places]
                self._report(segment, places)
        if damaged:
            raise DamagedError(np.array(damaged, dtype=np.int64))
        return buffer

    def _report(self, segment: Segment, places: Sequence[int]) -> None:
        """Keep damaged records aside and report them, each once."""
        with self._lock:
            fresh = [place for place in places if segment.first_seq + place not in self._reported]
            self._reported.update(segment.first_seq + place for place in fresh)
        for start, end in read_runs(np.array(fresh, dtype=np.int64)):
            pieces, _ = segment.read(start, end)
            kept = None
            # On a full disk the report is all there is.
            with contextlib.suppress(OSError):
                kept = keep_aside(segment.log_path, b"".join(pieces))
            offset = int(segment.offsets.view()[start])
            report_damage(
                "log_damaged", self._owner, segment.log_path, offset=offset, messages=end - start, kept=kept
            )

    def publish_time(self, seq: int) -> int:
        """Return when message ``seq`` was published, in microseconds; it must be on disk."""
        return self._segment_of(seq).publish_time(seq)

    def first_seq_since(self, publish_time: int) -> int:
        """Return the first message published at ``publish_time`` (microseconds) or later, or the next."""
        with self._lock:
            for first in tuple(self._firsts):
                segment = self._segment_of(max(first, self.first_seq))
                if segment.last_time >= publish_time:
                    return min(segment.first_seq_since(publish_time), self.next_seq)
            return self.next_seq

    def delete_before(self, seq: int, publish_time: int | None = None) -> int:
        """Delete the segments that end before message ``seq`` and, if given, were full before ``publish_time``.

        The one that is appended to stays.
        """
        deleted = 0
        with self._lock:
            while True:
                segment = self._segment(0)
                if len(self._firsts) == 1 or self._firsts[1] > seq:
                    break
                if publish_time is not None and segment.last_time >= publish_time:
                    break
                segment.delete()
                self._loaded.pop(segment.first_seq, None)
                del self._ends[segment.first_seq]
                del self._firsts[0]
                deleted += 1
        return deleted

    def delete(self) -> None:
        """Remove every file of the log; readers that are under way can finish."""
        with self._lock:
            self._loaded.clear()
            shutil.rmtree(self.folder, ignore_errors=True)


def _next_jump(end: int) -> int:
    return (end // JUMP + 1) * JUMP
