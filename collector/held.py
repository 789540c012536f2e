"""Bounds the bytes that all requests of a collector hold together."""

from typing import Self

from model.errors import QueueFullError


class HeldBytes:
    """Counts the bytes that requests hold until they are answered, ``most`` of them at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0

    def hold(self, size: int) -> "Hold":
        """Return a context in which ``size`` bytes are held.

        Raises:
            QueueFullError: all requests together hold too much.
        """
        return Hold(self, size)

    def take(self, size: int) -> None:
        """Count more bytes, or fewer when ``size`` is negative.

        Raises:
            QueueFullError: they would be too many; none is counted.
        """
        if size > 0 and self._held + size > self._most:
            raise QueueFullError(
                "The collector's memory for events is full. No event of this request was accepted."
            )
        self._held += size


class Hold:
    """What one request holds; a class, since a generator's context manager costs several times as much."""

    __slots__ = ("_all", "_size")

    def __init__(self, every: HeldBytes, size: int) -> None:
        self._all = every
        self._size = 0
        self.add(size)

    def add(self, size: int) -> None:
        """Hold more, or less when ``size`` is negative.

        Raises:
            QueueFullError: all requests together hold too much.
        """
        self._all.take(size)
        self._size += size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._all.take(-self._size)
