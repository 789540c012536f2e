"""What an agent reports of itself: its machine, its home, and the releases that it can start streams of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class AgentReport:
    """One agent; ``agent`` is the owner of its leases, ``releases`` are those of its home, in JSON.

    ``version`` is the installed one, which streams without a release are of.
    """

    agent: str
    host: str
    home: str
    version: str
    releases: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class StoredAgentReport:
    """A report, and when the store got it, by the store's clock."""

    report: AgentReport
    reported_at: datetime
