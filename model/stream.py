"""What a stream, and the agent that starts it, report about themselves, in a home or in the job store."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

# The usual names of streams, which are those of their folders too.
BACKUP_STREAM: Final = "backup"
PIPELINE_PREFIX: Final = "pipeline-"
KINESIS_PREFIX: Final = "kinesis-"


@dataclass(frozen=True, slots=True)
class StreamReport:
    """A stream at the moment of a report: ``name`` is the stream's, ``instance`` that of the home that runs it.

    A name has one running instance at a time, because a lease keeps others away. ``status`` is what the stream
    wrote of itself, in the shape of its status file.
    """

    name: str
    instance: str
    host: str
    pid: int
    state: str
    status: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StoredReport:
    """The last report of an instance, and its age by the clock of the store that keeps it."""

    report: StreamReport
    reported_at: datetime
    age_seconds: float


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
