"""The formats of what outlives a process: a number for each, and which numbers a Refeed can read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Format:
    """One format: ``writes`` is the number of what this Refeed writes, ``reads`` are the numbers that it can read.

    It stands beside the code that writes and reads it. A change that an older Refeed can't read takes the next
    number; ``reads`` keeps an old number for as long as the code can read it.

    Example:
        >>> old, new = Format(1), Format(2, reads=(1, 2))
        >>> new.can_read(old), old.can_read(new)
        (True, False)
    """

    writes: int
    reads: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Let a format without ``reads`` read what it writes."""
        if not self.reads:
            object.__setattr__(self, "reads", (self.writes,))

    def can_read(self, other: "Format") -> bool:
        """Whether the owner of this format can read what the owner of ``other`` writes."""
        return other.writes in self.reads

    def to_json(self) -> dict[str, Any]:
        """Return what :meth:`from_json` takes."""
        return {"writes": self.writes, "reads": sorted(self.reads)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Return the format that :meth:`to_json` described."""
        return cls(int(fields["writes"]), tuple(int(number) for number in fields["reads"]))
