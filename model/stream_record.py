"""A stream as a record: what people want of it, who keeps it in step, and where it stands."""

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final

from model.declaration import FieldSpec
from model.fault import FaultRecord
from model.job import new_job_id
from model.stream_options import StreamKind, StreamOptions, parse_options

_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,62}")
DRAIN_TIMEOUT_SECONDS: Final = 120.0
# A drain that may last longer than this is a stream that should be left running.
MAX_DRAIN_TIMEOUT_SECONDS: Final = 86_400.0
# The actions that a deployment may have wait for a second person.
APPROVABLE_ACTIONS: Final = ("drain", "cancel", "rollback", "update")


class StreamState(StrEnum):
    """The state of a stream.

    NOT_REPORTING is shown, never kept: it is what a report becomes that is too old. DRAINING is also that of a
    stream that was cancelled and whose process has not ended yet.
    """

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    WAITING = "WAITING"
    UPDATING = "UPDATING"
    DRAINING = "DRAINING"
    DRAINED = "DRAINED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    NOT_REPORTING = "NOT_REPORTING"

    @property
    def is_ended(self) -> bool:
        """Whether the stream ended because somebody wanted it; a FAILED one is started again and has not."""
        return self in ENDED_STATES


ENDED_STATES: Final = frozenset({StreamState.DRAINED, StreamState.CANCELLED})


class Wanted(StrEnum):
    """The wanted state of a stream. It survives restarts of everything."""

    RUNNING = "RUNNING"
    DRAINED = "DRAINED"
    CANCELLED = "CANCELLED"


@dataclass(frozen=True, slots=True)
class StreamHome:
    """The folder of a stream's state on the machine that last ran the stream."""

    host: str
    path: Annotated[str, FieldSpec(description="The folder's path.")]


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """One stream as the job store has it.

    ``release`` None is the installed one. ``options`` are those of its kind, in JSON. ``generation`` counts the
    launches under the name, ``version`` everything that people asked for; what its agent reports makes no new
    version. ``instance_id`` is that of its newest process. ``agent`` looks after it, or did last where its lease
    has gone and ``is_held`` is false. ``home`` is where its last process kept its state, and ``snapshot_id`` what
    this generation starts from, None its own state. ``created_*`` is of the first generation, ``launched_*`` of
    this one.
    """

    name: str
    kind: StreamKind
    release: str | None
    options: dict[str, Any]
    wanted: Wanted
    drain_timeout_seconds: float
    state: StreamState
    generation: int
    version: int
    instance_id: str | None
    agent: str | None
    is_held: bool
    home: StreamHome | None
    snapshot_id: str | None
    error: FaultRecord | None
    created_by: str
    created_at: datetime
    launched_by: str
    launched_at: datetime
    changed_at: datetime

    @property
    def is_living(self) -> bool:
        """Whether it runs or is to run; its name is taken as long."""
        return not self.state.is_ended

    def parsed_options(self) -> StreamOptions:
        """Return the options with their types."""
        return parse_options(self.kind, self.options)


def is_stream_name(text: str) -> bool:
    """Whether a stream can have this name: up to 63 lower-case letters, digits and -, a letter first.

    Example:
        >>> is_stream_name("pipeline-orders"), is_stream_name("../backup")
        (True, False)
    """
    return _NAME.fullmatch(text) is not None


def new_instance_id() -> str:
    """Return an id for one start of a stream's process: unique, and sorted by the time it was made.

    Example:
        >>> new_instance_id()[:3]
        'in_'
    """
    return new_job_id("in")
