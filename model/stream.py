"""What a stream reports about itself, in its home or in the job store."""

from collections.abc import Mapping
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
