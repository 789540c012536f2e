"""Half-open intervals of ingestion time: what a query may read."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta


@dataclass(frozen=True, order=True, slots=True)
class Window:
    """A half-open interval [start, end) of aware UTC times.

    Raises:
        ValueError: ``start`` or ``end`` is naive, or ``end`` is before ``start``.

    Example:
        >>> w = Window(datetime(2024, 3, 1, tzinfo=UTC), datetime(2024, 3, 3, tzinfo=UTC))
        >>> w.contains(datetime(2024, 3, 3, tzinfo=UTC))
        False
    """

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        if self.start.tzinfo is None or self.end.tzinfo is None:
            raise ValueError("a window's ends must be aware times; add tzinfo=UTC")
        if self.end < self.start:
            raise ValueError(f"a window can't end ({self.end}) before it starts ({self.start})")

    @property
    def is_empty(self) -> bool:
        """Whether no instant lies inside."""
        return self.start == self.end

    @property
    def width(self) -> timedelta:
        """How long it is."""
        return self.end - self.start

    def contains(self, moment: datetime) -> bool:
        """Whether ``moment`` lies inside; the end does not."""
        return self.start <= moment < self.end

    def overlaps(self, other: "Window") -> bool:
        """Whether an instant lies in both.

        Example:
            >>> day = timedelta(days=1)
            >>> monday = Window(datetime(2024, 3, 4, tzinfo=UTC), datetime(2024, 3, 5, tzinfo=UTC))
            >>> monday.overlaps(Window(monday.end, monday.end + day))
            False
        """
        return max(self.start, other.start) < min(self.end, other.end)

    def days(self) -> list[date]:
        """Return every UTC partition day the window touches, oldest first.

        A day is listed once even when the window covers part of it, so a caller
        that reads these partitions must still filter on the ingestion time.

        Example:
            >>> start = datetime(2024, 3, 1, 22, tzinfo=UTC)
            >>> Window(start, start + timedelta(hours=3)).days()
            [datetime.date(2024, 3, 1), datetime.date(2024, 3, 2)]
        """
        if self.is_empty:
            return []
        first = self.start.astimezone(UTC).date()
        last = (self.end.astimezone(UTC) - timedelta(microseconds=1)).date()
        return [first + timedelta(days=n) for n in range((last - first).days + 1)]

    @staticmethod
    def hull(windows: Iterable["Window"]) -> "Window":
        """Return the smallest window that holds all of ``windows``, of which there is one at least."""
        all_windows = list(windows)
        return Window(min(w.start for w in all_windows), max(w.end for w in all_windows))
