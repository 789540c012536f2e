"""Message ordering: one delivery a key at a time, and what follows a message that comes back, comes back too.

The rule is Google's "Order messages": messages of one ordering key go out in the order of publishing; when one is
delivered again, every later one of its key is as well, also those acknowledged meanwhile.
"""

import heapq
import time
from array import array
from bisect import bisect_left
from typing import Final

import numpy as np

from local.backlog import SCAN_SECONDS, AckState, LogReader
from local.damage import DamagedError
from local.segments import MessageLog
from local.seqset import NOTHING, Seqs
from local.wire import read_ordering_key
from model.filters import Filter

_READ_MESSAGES: Final = 1000
_TRIM_MESSAGES: Final = 1024


class _Key:
    """One ordering key: the messages that consumers hold, then those that wait, in one ascending array.

    8 bytes a message: a key whose consumer is stuck may have millions.
    """

    __slots__ = ("_first", "_seqs", "acked", "held")

    def __init__(self) -> None:
        self._seqs = array("q")
        self._first = 0
        # How many of the first consumers hold, and which of these they have acknowledged out of turn.
        self.held = 0
        self.acked: set[int] = set()

    @property
    def waiting(self) -> int:
        """How many messages nobody holds."""
        return len(self._seqs) - self._first - self.held

    def append(self, seq: int) -> None:
        self._seqs.append(seq)

    def first_waiting(self) -> int:
        return self._seqs[self._first + self.held]

    def read_done(self) -> list[int]:
        """Return the messages that are held and acknowledged with everything before them."""
        done: list[int] = []
        for at in range(self._first, self._first + self.held):
            if self._seqs[at] not in self.acked:
                break
            done.append(self._seqs[at])
        return done

    def give_back(self, seq: int) -> list[int]:
        """Let ``seq`` and every later message that is held wait again, and return these."""
        end = self._first + self.held
        start = bisect_left(self._seqs, seq, lo=self._first, hi=end)
        back = self._seqs[start:end].tolist()
        self.held -= len(back)
        self.acked.difference_update(back)
        return back

    def remove(self, seq: int) -> None:
        """Forget a message, nearly always the first one."""
        at = bisect_left(self._seqs, seq, lo=self._first)
        if at < self._first + self.held:
            self.held -= 1
        self.acked.discard(seq)
        if at > self._first:
            del self._seqs[at]
            return
        self._first += 1
        if self._first >= _TRIM_MESSAGES and 2 * self._first >= len(self._seqs):
            del self._seqs[: self._first]
            self._first = 0


class OrderedBacklog:
    """Undelivered messages of a subscription with message ordering; the same contract as ``Backlog``.

    An acknowledgement counts when all earlier messages of the key's delivery are acknowledged; until then it is
    kept in memory only, since a redelivery of an earlier one takes it back. What is read of the log ahead of a key
    that waits for its consumer is kept in memory, so that the key does not hold up the others.
    """

    def __init__(self, log: MessageLog, acks: AckState, message_filter: Filter) -> None:
        self._log = log
        self._acks = acks
        self._reader = LogReader(log, acks, message_filter)
        self._keys: dict[str, _Key] = {}
        # The key of each message that is held.
        self._key_of: dict[int, str] = {}
        # (number, key): the first waiting message of each key that nobody holds, and every message without a key.
        self._ready: list[tuple[int, str]] = []

    def reset(self) -> None:
        """Forget what was delivered: everything that is not acknowledged is undelivered again."""
        self._keys.clear()
        self._key_of.clear()
        self._ready.clear()
        self._reader.reset()

    @property
    def has_some(self) -> bool:
        """Whether a take may find something."""
        return bool(self._ready) or self._reader.has_more

    def take(self, max_messages: int, max_bytes: int) -> tuple[Seqs, Seqs]:
        """Return messages to deliver now, ascending within each key, and their record lengths.

        Raises:
            StatusError: the log can't be read; nothing is taken.
        """
        give_up = time.monotonic() + SCAN_SECONDS
        while self._has_less_than(max_messages) and self._reader.has_more and time.monotonic() < give_up:
            if not self._read_ahead():
                break
        taken: list[int] = []
        lengths: list[int] = []
        size = 0
        touched: set[str] = set()
        while self._ready and len(taken) < max_messages:
            seq, key = self._ready[0]
            if seq in self._acks.acked:
                # Dropped by its retention while it waited, or damaged.
                heapq.heappop(self._ready)
                if key:
                    self._keys[key].remove(seq)
                    if key in touched:
                        self._offer(key)
                    else:
                        self._settle(key)
                continue
            length = self._read_length(seq)
            if taken and size + length > max_bytes:
                break
            heapq.heappop(self._ready)
            taken.append(seq)
            lengths.append(length)
            size += length
            if key:
                touched.add(key)
                self._key_of[seq] = key
                self._keys[key].held += 1
                self._offer(key)
        if touched:
            # What is left of a key waits until this delivery of it is done.
            self._ready = [entry for entry in self._ready if entry[1] not in touched]
            heapq.heapify(self._ready)
        order = np.argsort(np.array(taken, dtype=np.int64))
        return np.array(taken, dtype=np.int64)[order], np.array(lengths, dtype=np.int64)[order]

    def _read_length(self, seq: int) -> int:
        try:
            return int(self._log.read_lengths(np.array([seq]))[0])
        except DamagedError:
            # The next read of the taken messages finds it again.
            return 0

    def _has_less_than(self, messages: int) -> bool:
        """Whether fewer than ``messages`` can be delivered of what was read."""
        count = 0
        for _, key in self._ready:
            count += self._keys[key].waiting if key else 1
            if count >= messages:
                return False
        return True

    def _read_ahead(self) -> bool:
        cursor = self._reader.cursor
        try:
            seqs = self._reader.read(_READ_MESSAGES)
            lengths = self._log.read_lengths(seqs)
            raw = self._log.read(seqs, lengths).tobytes()
        except BaseException:
            self._reader.cursor = cursor
            raise
        position = 0
        for seq, length in zip(seqs.tolist(), lengths.tolist(), strict=True):
            key = read_ordering_key(raw[position : position + length])
            position += length
            if not key:
                heapq.heappush(self._ready, (seq, ""))
                continue
            state = self._keys.setdefault(key, _Key())
            state.append(seq)
            if state.waiting == 1 and not state.held:
                heapq.heappush(self._ready, (seq, key))
        return len(seqs) > 0

    def _settle(self, key: str) -> None:
        """Make a key whose delivery is done ready for the next one, or forget it."""
        state = self._keys[key]
        if state.held:
            return
        state.acked.clear()
        self._offer(key)
        if not state.waiting:
            del self._keys[key]

    def _offer(self, key: str) -> None:
        """Make the first waiting message of a key, if there is one, ready to be taken."""
        state = self._keys[key]
        if state.waiting:
            heapq.heappush(self._ready, (state.first_waiting(), key))

    def acknowledge(self, held: Seqs, late: Seqs) -> Seqs:
        """Return which messages are done: acknowledged, and every earlier one of their key's delivery as well."""
        done: list[int] = []
        touched: set[str] = set()
        for seq in np.sort(held).tolist():
            key = self._key_of.get(seq)
            if key is None:
                done.append(seq)
                continue
            self._keys[key].acked.add(seq)
            touched.add(key)
        for key in touched:
            done += self._keys[key].read_done()
        return np.sort(np.concatenate((np.array(done, dtype=np.int64), self._late(late))))

    def _late(self, late: Seqs) -> Seqs:
        """Return those of ``late`` that wait for another delivery, nothing of their key before them."""
        waiting = {seq for seq, _ in self._ready}
        unread = range(self._reader.cursor, self._log.next_seq)
        fresh = [
            seq for seq in set(late.tolist()) if seq in waiting or (seq in unread and not self._read_key(seq))
        ]
        return np.array(fresh, dtype=np.int64)

    def _read_key(self, seq: int) -> str:
        seqs = np.array([seq], dtype=np.int64)
        return read_ordering_key(self._log.read(seqs, self._log.read_lengths(seqs)).tobytes())

    def confirm(self, done: Seqs, late: Seqs) -> None:  # noqa: ARG002 - the contract of Backlog
        """Note that ``done`` is acknowledged on disk."""
        finished = set(done.tolist())
        late_keys = {seq: key for seq, key in self._ready if seq in finished}
        if late_keys:
            self._ready = [entry for entry in self._ready if entry[0] not in finished]
            heapq.heapify(self._ready)
        touched: set[str] = set()
        for seq in done.tolist():
            key = self._key_of.pop(seq, "") or late_keys.get(seq)
            if key:
                self._keys[key].remove(seq)
                touched.add(key)
        for key in touched:
            self._settle(key)

    def come_back(self, seqs: Seqs) -> Seqs:
        """Take messages whose lease ended for another delivery; return what else must be taken from consumers."""
        first_of: dict[str, int] = {}
        for seq in np.sort(seqs).tolist():
            key = self._key_of.get(seq)
            if key is None:
                heapq.heappush(self._ready, (seq, ""))
            else:
                first_of.setdefault(key, seq)
        followers: list[int] = []
        for key, first in first_of.items():
            back = self._keys[key].give_back(first)
            for seq in back:
                del self._key_of[seq]
            followers += back
            self._settle(key)
        return np.array(followers, dtype=np.int64) if followers else NOTHING
