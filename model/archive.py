"""What every archive knows of a commit: the attempt that makes it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to add messages: its stream, its number in the stream, and the lease it is made under."""

    stream: str
    number: int
    lease: str
    lease_epoch: int


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between a table and what it should be, and whether it can be changed in place."""

    resource: str
    field: str
    found: str
    wanted: str
    is_compatible: bool = True
