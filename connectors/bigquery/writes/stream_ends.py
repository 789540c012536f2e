"""The driver's view of the streams that tasks keep: how far each is committed, how many may be created."""

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from connectors.bigquery.writes.part_writer import PendingRows

# Of an hour's streams this many may be created at once; the rest is spread over the hour.
_AT_ONCE: Final = 0.25


class StreamEnds:
    """Up to where each kept stream is committed; used by one thread.

    Rows of a BUFFERED stream become visible in their order. So a part is committed only where its rows begin at
    the end of those that were committed before; else there are rows before it that were given up, and flushing it
    would show them. The end of a stream that is not known is 0, where no part after given-up rows begins.
    """

    def __init__(self) -> None:
        self._ends: dict[str, int] = {}

    def which_follow(self, parts: Sequence[Sequence[PendingRows]]) -> list[bool]:
        """Return of each of ``parts`` whether it can be committed with the others of which that holds."""
        ends: dict[str, int] = {}
        found = []
        for tables in parts:
            own: dict[str, int] = {}
            is_next = True
            for stream, first, end in _kept(tables):
                is_next &= first == own.get(stream, ends.get(stream, self._ends.get(stream, 0)))
                own[stream] = end
            found.append(is_next)
            if is_next:
                ends |= own
        return found

    def commit(self, tables: Iterable[PendingRows]) -> None:
        """Note that the rows of a part's ``tables`` are committed."""
        for stream, _, end in _kept(tables):
            self._ends[stream] = max(end, self._ends.get(stream, 0))

    def give_up(self, stream: str) -> None:
        """Let no part of ``stream`` be committed any more."""
        self._ends.pop(stream, None)


class StreamBudget:
    """How many streams may be created within ``per_hour``: some at once, for a start, the rest over the hour."""

    def __init__(self, per_hour: int) -> None:
        self._most = per_hour * _AT_ONCE
        self._per_second = per_hour * (1 - _AT_ONCE) / 3600
        self._left = self._most
        self._at = time.monotonic()
        self._lock = threading.Lock()

    def spend(self, streams: int) -> float:
        """Count ``streams`` that were created, and return how long to wait before others are, in seconds."""
        with self._lock:
            now = time.monotonic()
            self._left = min(self._most, self._left + (now - self._at) * self._per_second) - streams
            self._at = now
            return max(0.0, -self._left / self._per_second)


def _kept(tables: Iterable[PendingRows]) -> Iterator[tuple[str, int, int]]:
    for table in tables:
        if table.stream is not None and table.first is not None and table.end is not None:
            yield table.stream, table.first, table.end


def created_streams(tables: Iterable[PendingRows]) -> int:
    """Return how many streams were created for ``tables``: the PENDING ones, and kept ones at their first rows."""
    return sum(table.stream is not None and not table.first for table in tables)


def flushes_of(tables: Iterable[tuple[PendingRows, str]]) -> list[dict[str, Any]]:
    """Return what a note keeps of kept streams, of parts and their ``ingest_time``: how far each is flushed."""
    found: dict[str, dict[str, Any]] = {}
    for table, ingest_time in tables:
        if table.stream is not None and table.end is not None:
            entry = found.setdefault(table.stream, {"stream": table.stream, "end": 0, "ingest_times": []})
            entry["end"] = max(entry["end"], table.end)
            entry["ingest_times"].append(ingest_time)
    return list(found.values())
