"""Sets of message numbers kept as runs: what a subscription has acknowledged."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

Seqs = npt.NDArray[np.int64]
Run = tuple[int, int]
NOTHING: Final[Seqs] = np.empty(0, dtype=np.int64)


def read_runs(seqs: Seqs) -> list[Run]:
    """Return the runs [start, end) of consecutive numbers in ``seqs``, in their order.

    Example:
        >>> read_runs(np.array([3, 4, 5, 9, 1]))
        [(3, 6), (9, 10), (1, 2)]
    """
    if not len(seqs):
        return []
    breaks = np.flatnonzero(np.diff(seqs) != 1)
    starts = seqs[np.concatenate(([0], breaks + 1))]
    ends = seqs[np.concatenate((breaks, [len(seqs) - 1]))] + 1
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


class SeqSet:
    """A set of numbers in which everything below ``floor`` is, and runs above it.

    Memory is two numbers a run, so a consumer that acknowledges in about the order of delivery costs nothing.

    Example:
        >>> acked = SeqSet(10)
        >>> acked.add(12, 14)
        >>> list(acked.gaps(10, 20))
        [(10, 12), (14, 20)]
        >>> acked.add(10, 12); acked.floor
        14
    """

    def __init__(self, floor: int, runs: Iterable[Run] = ()) -> None:
        self.floor = floor
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in runs:
            self.add(start, end)

    def add(self, start: int, end: int) -> None:
        """Put [start, end) in; what is in already stays."""
        start = max(start, self.floor)
        if start >= end:
            return
        if start == self.floor:
            self._raise_floor(end)
            return
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def _raise_floor(self, end: int) -> None:
        passed = bisect_right(self._starts, end)
        if passed:
            end = max(end, self._ends[passed - 1])
            del self._starts[:passed], self._ends[:passed]
        self.floor = end

    def __contains__(self, seq: int) -> bool:
        if seq < self.floor:
            return True
        at = bisect_right(self._starts, seq) - 1
        return at >= 0 and seq < self._ends[at]

    @property
    def run_count(self) -> int:
        """How many runs there are above the floor."""
        return len(self._starts)

    def runs(self) -> list[Run]:
        """Return the runs above the floor, lowest first."""
        return list(zip(self._starts, self._ends, strict=True))

    @property
    def end(self) -> int:
        """The number after the last one in the set."""
        return self._ends[-1] if self._ends else self.floor

    def gaps(self, start: int, end: int) -> Iterator[Run]:
        """Yield the runs of [start, end) that are not in the set, lowest first."""
        start = max(start, self.floor)
        at = bisect_right(self._ends, start)
        while start < end:
            if at == len(self._starts) or self._starts[at] >= end:
                yield start, end
                return
            if self._starts[at] > start:
                yield start, self._starts[at]
            start = self._ends[at]
            at += 1

    def count_missing(self, end: int) -> int:
        """Return how many numbers below ``end`` are not in the set."""
        return sum(stop - start for start, stop in self.gaps(self.floor, end))
