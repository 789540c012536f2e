"""Message ordering: one delivery a key at a time, and what follows a message that comes back, comes back too.

The rule is Google's "Order messages": messages of one ordering key go out in the order of publishing; when one is
delivered again, every later one of its key is as well, also those acknowledged meanwhile.
"""

import heapq
from collections import deque
from typing import Final

import numpy as np

from local.acklog import AckLog
from local.backlog import NOTHING, LogReader
from local.filters import Filter
from local.segments import MessageLog
from local.seqset import Seqs
from local.wire import read_ordering_key

# How far the reader runs ahead, so that a key that waits for its consumer does not hold up the others.
MAX_AHEAD_MESSAGES: Final = 20_000
_READ_MESSAGES: Final = 1000


class _Key:
    """One ordering key: what waits, what consumers hold, and what of that they have acknowledged out of turn."""

    __slots__ = ("acked", "held", "pending")

    def __init__(self) -> None:
        self.pending: deque[int] = deque()
        self.held: deque[int] = deque()
        self.acked: set[int] = set()


class OrderedBacklog:
    """Undelivered messages of a subscription with message ordering; the same contract as ``Backlog``.

    An acknowledgement counts when all earlier messages of the key's delivery are acknowledged; until then it is
    kept in memory only, since a redelivery of an earlier one takes it back.
    """

    def __init__(self, log: MessageLog, acks: AckLog, message_filter: Filter) -> None:
        self._log = log
        self._acks = acks
        self._reader = LogReader(log, acks, message_filter)
        self._keys: dict[str, _Key] = {}
        self._key_of: dict[int, str] = {}
        # (number, key): the first waiting message of each key that nobody holds, and every message without a key.
        self._ready: list[tuple[int, str]] = []
        self._ahead = 0

    def reset(self) -> None:
        """Forget what was delivered: everything that is not acknowledged is undelivered again."""
        self._keys.clear()
        self._key_of.clear()
        self._ready.clear()
        self._ahead = 0
        self._reader.reset()

    @property
    def has_some(self) -> bool:
        """Whether a take may find something."""
        return bool(self._ready) or (self._reader.has_more and self._ahead < MAX_AHEAD_MESSAGES)

    def take(self, max_messages: int, max_bytes: int) -> tuple[Seqs, Seqs]:
        """Return messages to deliver now, ascending within each key, and their record lengths.

        Raises:
            StatusError: the log can't be read; nothing is taken.
        """
        while len(self._ready) < max_messages and self._reader.has_more and self._ahead < MAX_AHEAD_MESSAGES:
            if not self._read_ahead():
                break
        taken: list[int] = []
        lengths: list[int] = []
        size = 0
        touched: set[str] = set()
        while self._ready and len(taken) < max_messages:
            seq, key = self._ready[0]
            if seq < self._acks.acked.floor:
                # Dropped by its retention while it waited.
                self._drop_first(seq, key)
                continue
            length = int(self._log.read_lengths(np.array([seq]))[0])
            if taken and size + length > max_bytes:
                break
            heapq.heappop(self._ready)
            taken.append(seq)
            lengths.append(length)
            size += length
            self._ahead -= 1
            if key:
                touched.add(key)
                state = self._keys[key]
                state.held.append(state.pending.popleft())
                if state.pending:
                    heapq.heappush(self._ready, (state.pending[0], key))
        if touched:
            # What is left of a key waits until this delivery of it is done.
            self._ready = [entry for entry in self._ready if entry[1] not in touched]
            heapq.heapify(self._ready)
        order = np.argsort(np.array(taken, dtype=np.int64))
        return np.array(taken, dtype=np.int64)[order], np.array(lengths, dtype=np.int64)[order]

    def _read_ahead(self) -> bool:
        seqs = self._reader.read(_READ_MESSAGES)
        if not len(seqs):
            return False
        lengths = self._log.read_lengths(seqs)
        raw = self._log.read(seqs, lengths).tobytes()
        position = 0
        for seq, length in zip(seqs.tolist(), lengths.tolist(), strict=True):
            key = read_ordering_key(raw[position : position + length])
            position += length
            self._ahead += 1
            if not key:
                heapq.heappush(self._ready, (seq, ""))
                continue
            self._key_of[seq] = key
            state = self._keys.setdefault(key, _Key())
            state.pending.append(seq)
            if len(state.pending) == 1 and not state.held:
                heapq.heappush(self._ready, (seq, key))
        return True

    def _drop_first(self, seq: int, key: str) -> None:
        heapq.heappop(self._ready)
        self._ahead -= 1
        if key:
            self._keys[key].pending.popleft()
            del self._key_of[seq]
            self._settle(key)

    def _settle(self, key: str) -> None:
        """Make a key whose delivery is done ready for the next one, or forget it."""
        state = self._keys[key]
        if state.held:
            return
        state.acked.clear()
        if state.pending:
            heapq.heappush(self._ready, (state.pending[0], key))
        else:
            del self._keys[key]

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
            state = self._keys[key]
            for seq in state.held:
                if seq not in state.acked:
                    break
                done.append(seq)
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
        if any(seq in finished for seq, _ in self._ready):
            self._ahead -= sum(1 for seq, _ in self._ready if seq in finished)
            self._ready = [entry for entry in self._ready if entry[0] not in finished]
            heapq.heapify(self._ready)
        touched: set[str] = set()
        for seq in finished:
            key = self._key_of.pop(seq, None)
            if key is None:
                continue
            state = self._keys[key]
            state.acked.discard(seq)
            for waiting in (state.held, state.pending):
                if waiting and waiting[0] <= seq and seq in waiting:
                    waiting.remove(seq)
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
                self._ahead += 1
            else:
                first_of.setdefault(key, seq)
        followers: list[int] = []
        for key, first in first_of.items():
            state = self._keys[key]
            while state.held and state.held[-1] >= first:
                seq = state.held.pop()
                state.pending.appendleft(seq)
                state.acked.discard(seq)
                followers.append(seq)
                self._ahead += 1
            self._settle(key)
        return np.array(followers, dtype=np.int64) if followers else NOTHING
