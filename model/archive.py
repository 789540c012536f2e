"""What every archive knows of a commit: the attempt that makes it, and which of its messages may come again."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

# What names a message, in the archive, and the time by which it is found.
ID_COLUMNS: Final = ("topic", "message_id", "publish_time")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to add messages: its stream, its number in the stream, and the lease it is made under.

    Where a home was copied, two owners are one stream and give one number to different messages. ``commit_id``,
    below 2**63 and random, tells their commits apart; without one the number does.
    """

    stream: str
    number: int
    lease: str
    lease_epoch: int
    commit_id: int | None = None


@dataclass(frozen=True, slots=True)
class IdSpan:
    """Which rows have messages that may come again: those that were published or ingested since a time.

    The first are those of messages that nobody acknowledged, the second those of messages that were acknowledged a
    moment ago, however old they are.
    """

    published_since: datetime
    ingested_since: datetime


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between a table and what it should be, and whether it can be changed in place."""

    resource: str
    field: str
    found: str
    wanted: str
    is_compatible: bool = True
