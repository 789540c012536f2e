"""What a subscription has still to deliver: messages that came back, then the log from its cursor on."""

import time
from typing import Final, Protocol

import numpy as np

from local.segments import MessageLog
from local.seqset import NOTHING, Run, Seqs, SeqSet
from local.wire import read_attributes
from model.filters import Filter

# How much of the log a filter looks at in one step, and how long one pull may go on looking.
SCAN_MESSAGES: Final = 1000
SCAN_SECONDS: Final = 0.2


class AckState(Protocol):
    """The acknowledged messages, as :class:`~local.acklog.AckLog` has them; a seek replaces the set."""

    acked: SeqSet


class LogReader:
    """A cursor over a topic's log that passes over what is acknowledged or filtered out.

    Messages that the filter refuses count as acknowledged when they are passed; their place on disk follows with
    the next entry of the ack log.
    """

    def __init__(self, log: MessageLog, acks: AckState, message_filter: Filter) -> None:
        self._log = log
        self._acks = acks
        self._filter = message_filter
        self.reset()

    def reset(self) -> None:
        """Begin again at the first message that is not acknowledged; what is missing on disk is."""
        self._log.fill_missing(self._acks.acked)
        self.cursor = self._scanned = self._acks.acked.floor

    @property
    def has_more(self) -> bool:
        """Whether there are messages after the cursor."""
        return self.cursor < self._log.answered_seq

    def read(self, count: int) -> Seqs:
        """Move on over at most ``count`` deliverable messages and return their numbers, ascending.

        Fewer, or none, may come back when a filter refuses a long stretch; ask again while ``has_more``.
        """
        self.cursor = max(self.cursor, self._acks.acked.floor)
        end = self._log.answered_seq
        if self._filter.keys:
            end = self._scan(count, end)
        runs: list[Run] = []
        for gap_start, gap_end in self._acks.acked.gaps(self.cursor, end):
            taken_end = min(gap_end, gap_start + count)
            runs.append((gap_start, taken_end))
            count -= taken_end - gap_start
            if not count:
                self.cursor = taken_end
                break
        else:
            self.cursor = max(self.cursor, end)
        if not runs:
            return NOTHING
        return np.concatenate([np.arange(start, stop, dtype=np.int64) for start, stop in runs])

    def _scan(self, count: int, end: int) -> int:
        """Run the filter ahead of the cursor until ``count`` messages are known to pass; return how far it got."""
        self._scanned = max(self._scanned, self.cursor)
        enough = self.cursor + count
        refused = 0
        give_up = time.monotonic() + SCAN_SECONDS
        while self._scanned < min(end, enough + refused) and time.monotonic() < give_up:
            start, stop = next(self._acks.acked.gaps(self._scanned, end), (end, end))
            stop = min(stop, start + SCAN_MESSAGES)
            refused += start - self._scanned
            for run_start, run_end in self._refused_runs(start, stop):
                self._acks.acked.add(run_start, run_end)
                refused += run_end - run_start
            self._scanned = stop
        return min(self._scanned, end)

    def _refused_runs(self, start: int, stop: int) -> list[Run]:
        start = max(start, self._log.first_seq)
        if start >= stop:
            return []
        seqs = np.arange(start, stop, dtype=np.int64)
        lengths = self._log.read_lengths(seqs)
        raw = self._log.read(seqs, lengths).tobytes()
        keys, without_keys = self._filter.keys, self._filter.matches_without_keys
        if not any(key in raw for key in keys):
            return [] if without_keys else [(start, stop)]
        runs: list[Run] = []
        position = 0
        for seq, length in zip(range(start, stop), lengths.tolist(), strict=True):
            record = raw[position : position + length]
            position += length
            passes = (
                self._filter.matches(read_attributes(record))
                if any(key in record for key in keys)
                else without_keys
            )
            if not passes:
                runs.append((seq, seq + 1))
        return runs


class WaitingMessages:
    """Undelivered messages of a subscription without message ordering."""

    def __init__(self, log: MessageLog, acks: AckState, message_filter: Filter) -> None:
        self._log = log
        self._acks = acks
        self._reader = LogReader(log, acks, message_filter)
        # Delivered before and come back: ascending numbers, all below the cursor.
        self._waiting: Seqs = NOTHING

    def reset(self) -> None:
        """Forget what was delivered: everything that is not acknowledged is undelivered again."""
        self._waiting = NOTHING
        self._reader.reset()

    @property
    def has_some(self) -> bool:
        """Whether a take may find something."""
        return len(self._waiting) > 0 or self._reader.has_more

    def take(self, max_messages: int, max_bytes: int) -> tuple[Seqs, Seqs]:
        """Return messages to deliver now, ascending, and their record lengths; one at least when there is any.

        Raises:
            StatusError: the log can't be read; nothing is taken.
        """
        waiting = self._waiting[self._waiting >= self._acks.acked.floor]
        seqs = waiting[:max_messages]
        returned = len(seqs)
        cursor = self._reader.cursor
        try:
            if returned < max_messages:
                seqs = np.concatenate((seqs, self._reader.read(max_messages - returned)))
            lengths = self._log.read_lengths(seqs)
        except BaseException:
            self._reader.cursor = cursor
            raise
        fits = max(1, int(np.searchsorted(np.cumsum(lengths), max_bytes, side="right")))
        if fits < len(seqs):
            if len(seqs) > returned:
                self._reader.cursor = int(seqs[max(fits, returned)])
            seqs, lengths = seqs[:fits], lengths[:fits]
        self._waiting = waiting[min(fits, returned) :]
        return seqs, lengths

    def acknowledge(self, held: Seqs, late: Seqs) -> Seqs:
        """Return which messages are done: the ``held``, and of the ``late`` those that wait for a delivery."""
        if not len(late):
            return np.sort(held)
        late = np.unique(late)
        unread = (late >= self._reader.cursor) & (late < self._log.next_seq)
        waits = late == self._waiting[self._waiting_places(late)] if len(self._waiting) else unread
        return np.union1d(held, late[unread | waits])

    def confirm(self, done: Seqs, late: Seqs) -> None:
        """Note that ``done`` is acknowledged on disk; only of the ``late`` ones some can be waiting."""
        if len(late) and len(self._waiting):
            gone = np.intersect1d(late, done)
            places = self._waiting_places(gone)
            self._waiting = np.delete(self._waiting, places[self._waiting[places] == gone])

    def _waiting_places(self, seqs: Seqs) -> Seqs:
        """Return where each of ``seqs`` is among the waiting, if it is there at all; there is one at least."""
        return np.minimum(np.searchsorted(self._waiting, seqs), len(self._waiting) - 1).astype(np.int64)

    def come_back(self, seqs: Seqs) -> Seqs:
        """Take messages whose lease ended for another delivery; return what else must be taken from consumers."""
        # The stable sort merges runs that are in order already: a million that wait cost milliseconds.
        self._waiting = np.sort(np.concatenate((self._waiting, np.sort(seqs))), kind="stable")
        return NOTHING
