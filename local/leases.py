"""Messages in the hands of consumers: one lease a delivery, its state in arrays."""

import heapq
import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from local.seqset import NOTHING, Seqs
from local.wire import AckIds


@dataclass(slots=True)
class Lease:
    """One delivery: ``seqs`` ascending, and for each whether it is held and until when (monotonic seconds)."""

    number: int
    stream: int
    seqs: Seqs
    lengths: Seqs
    deadlines: npt.NDArray[np.float64]
    held: npt.NDArray[np.bool_]


@dataclass(slots=True)
class Outstanding:
    """What a stream's consumer holds, for its flow control; ``bell`` rings when that gets less."""

    messages: int = 0
    size_bytes: int = 0
    bell: threading.Event | None = None


class LeaseBook:
    """Every lease of one subscription. Not thread-safe: the subscription calls it under its lock."""

    def __init__(self, first_number: int) -> None:
        self._next_number = first_number
        self._leases: dict[int, Lease] = {}
        # (deadline, lease): the earliest deadline of each lease, perhaps out of date; looked at again when due.
        self._due: list[tuple[float, int]] = []
        self._outstanding: dict[int, Outstanding] = {}
        self.held_messages = 0

    @property
    def next_number(self) -> int:
        """The number of the next lease."""
        return self._next_number

    def outstanding(self, stream: int) -> Outstanding:
        """Return what the consumer of ``stream`` holds."""
        return self._outstanding.setdefault(stream, Outstanding())

    def ring(self) -> None:
        """Ring for every stream that waits for room."""
        for counter in self._outstanding.values():
            if counter.bell is not None:
                counter.bell.set()

    def forget_stream(self, stream: int) -> None:
        """Stop counting for a stream that has ended; its messages stay leased until their deadline."""
        self._outstanding.pop(stream, None)

    def add(self, seqs: Seqs, lengths: Seqs, deadline: float, stream: int = 0) -> int:
        """Lease ``seqs`` (ascending) until ``deadline`` and return the lease's number."""
        number = self._next_number
        self._next_number += 1
        count = len(seqs)
        self._leases[number] = Lease(
            number, stream, seqs, lengths, np.full(count, deadline), np.ones(count, dtype=np.bool_)
        )
        heapq.heappush(self._due, (deadline, number))
        self.held_messages += count
        if stream:
            counter = self.outstanding(stream)
            counter.messages += count
            counter.size_bytes += int(lengths.sum())
        return number

    def holds(self, ids: AckIds) -> npt.NDArray[np.bool_]:
        """Return for each of ``ids`` whether its lease still holds its message."""
        live = np.zeros(len(ids), dtype=np.bool_)
        for number in np.unique(ids.leases).tolist():
            at = np.flatnonzero(ids.leases == number)
            lease, places = self._find(number, ids.seqs[at])
            if lease is not None:
                live[at] = lease.held[places]
        return live

    def release(self, ids: AckIds) -> tuple[Seqs, Seqs]:
        """Take back what ``ids`` hold; return (messages held, messages whose lease had ended), unsorted."""
        held: list[Seqs] = []
        late: list[Seqs] = []
        for number, seqs in _by_lease(ids):
            lease, places = self._find(number, seqs)
            if lease is None:
                late.append(seqs)
                continue
            known = lease.held[places]
            late.append(seqs[~known])
            places = np.unique(places[known])
            held.append(lease.seqs[places])
            self._drop(lease, places)
        return _join(held), _join(late)

    def extend(self, ids: AckIds, deadline: float) -> None:
        """Move the deadline of what ``ids`` hold; ids of ended leases are passed over."""
        for number, seqs in _by_lease(ids):
            lease, places = self._find(number, seqs)
            if lease is not None and len(places := places[lease.held[places]]):
                if deadline < lease.deadlines[places].min():
                    heapq.heappush(self._due, (deadline, number))
                lease.deadlines[places] = deadline

    def take_back(self, seqs: Seqs) -> Seqs:
        """End the lease of each of ``seqs``, whichever it is, and return those that somebody held, unsorted."""
        taken: list[Seqs] = []
        if len(seqs):
            for lease in list(self._leases.values()):
                places = np.flatnonzero(np.isin(lease.seqs, seqs) & lease.held)
                if len(places):
                    taken.append(lease.seqs[places])
                    self._drop(lease, places)
        return _join(taken)

    def expire(self, now: float) -> Seqs:
        """End what is past its deadline and return those messages, unsorted."""
        expired: list[Seqs] = []
        while self._due and self._due[0][0] <= now:
            _, number = heapq.heappop(self._due)
            lease = self._leases.get(number)
            if lease is None:
                continue
            places = np.flatnonzero(lease.held & (lease.deadlines <= now))
            expired.append(lease.seqs[places])
            self._drop(lease, places)
            if number in self._leases:
                heapq.heappush(self._due, (float(lease.deadlines[lease.held].min()), number))
        return _join(expired)

    def is_due(self, now: float) -> bool:
        """Whether some lease may be over; may be called without the subscription's lock."""
        # A copy, since another thread may take the only element away.
        return any(deadline <= now for deadline, _ in self._due[:1])

    def clear(self) -> None:
        """End every lease."""
        for lease in list(self._leases.values()):
            self._drop(lease, np.flatnonzero(lease.held))
        self._due.clear()

    def _find(self, number: int, seqs: Seqs) -> tuple[Lease | None, Seqs]:
        lease = self._leases.get(number)
        if lease is None:
            return None, NOTHING
        places = np.searchsorted(lease.seqs, seqs).astype(np.int64)
        np.minimum(places, len(lease.seqs) - 1, out=places)
        if not (lease.seqs[places] == seqs).all():
            # A made-up id: the lease never held that message.
            return None, NOTHING
        return lease, places

    def _drop(self, lease: Lease, places: Seqs) -> None:
        lease.held[places] = False
        self.held_messages -= len(places)
        if lease.stream and lease.stream in self._outstanding:
            counter = self._outstanding[lease.stream]
            counter.messages -= len(places)
            counter.size_bytes -= int(lease.lengths[places].sum())
            if counter.bell is not None:
                counter.bell.set()
        if not lease.held.any():
            del self._leases[lease.number]


def _by_lease(ids: AckIds) -> list[tuple[int, Seqs]]:
    if not len(ids):
        return []
    leases = ids.leases
    if (leases == leases[0]).all():
        return [(int(leases[0]), ids.seqs)]
    order = np.argsort(leases, kind="stable")
    cuts = np.flatnonzero(np.diff(leases[order])) + 1
    groups = np.split(order, cuts)
    return [(int(leases[group[0]]), ids.seqs[group]) for group in groups]


def _join(parts: list[Seqs]) -> Seqs:
    return np.concatenate(parts) if parts else NOTHING
