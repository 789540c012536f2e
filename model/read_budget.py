"""How many bytes a series of reads may be billed for."""

from dataclasses import dataclass


@dataclass(slots=True)
class ReadBudget:
    """The bytes that reads may be billed for together; a warehouse that bills nobody spends nothing.

    Example:
        >>> budget = ReadBudget(100)
        >>> budget.spend(30)
        >>> budget.left_bytes
        70
    """

    max_bytes: int
    spent_bytes: int = 0

    @property
    def left_bytes(self) -> int:
        """What the next read may be billed for."""
        return max(0, self.max_bytes - self.spent_bytes)

    def spend(self, size_bytes: int) -> None:
        """Count what a read was billed for."""
        self.spent_bytes += size_bytes
