"""Lines of histories: what happened to jobs, streams, manifests and keys, who did it, and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from model.job import JobState


class HistoryEventType(StrEnum):
    """The type of an entry in a history; each may have ``options``, the names of those that it changed."""

    CREATED = "created"
    """Somebody created the job or the key."""
    LAUNCHED = "launched"
    """Somebody launched the stream, or launched it again."""
    APPLIED = "applied"
    """Somebody applied the manifest. ``version`` is the version that it has since then."""
    MOVED = "moved"
    """The state of the job or of the stream changed from ``from`` to ``to``."""
    CHANGED = "changed"
    """Somebody changed options of the job or of the stream. ``options`` lists the names of these options."""
    WANTED = "wanted"
    """Somebody drained or cancelled the stream. ``wanted`` contains the wanted state."""
    PAUSED = "paused"
    """The schedule was paused by a person, or because a run failed."""
    RESUMED = "resumed"
    """Somebody resumed the schedule."""
    REMOVED = "removed"
    """Somebody removed the manifest."""
    REVOKED = "revoked"
    """Somebody revoked the key."""
    APPROVED = "approved"
    """A second person approved the job."""
    FOUND = "found"
    """The driver reported a result. If it is the result of a verification, ``state`` contains the verdict."""
    DRIVER_ENDED = "driver_ended"
    """The driver's process ended before the job had ended."""
    STEP = "step"
    """The job began an attempt of the step in ``step``. ``attempt`` is the number of the attempt."""
    STARTED = "started"
    """The agent started a process for the stream. ``instance_id`` contains the process's id."""
    NOTED = "noted"
    """Another entry, such as a snapshot or a step of an update of a stream, or a requested run of a schedule."""


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One line of a history; numbers of one history only grow, with gaps.

    ``resource`` is the kind of a job, or ``stream``, ``manifest`` or ``key``; ``id`` is the job's id, or a name.
    ``generation`` is the stream's. ``actor`` is None where nobody wrote down who it was. ``what`` and ``why`` are
    for people alone: nothing may be concluded from them.
    """

    number: int
    resource: str
    id: str
    at: datetime
    actor: str | None
    type: HistoryEventType
    what: str
    why: str | None
    generation: int | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    def is_move(self, *, to: JobState, before: JobState | None = None) -> bool:
        """Whether a job went to the state ``to``, from ``before`` if that is given."""
        is_from = before is None or self.fields.get("from") == before
        return self.type is HistoryEventType.MOVED and self.fields.get("to") == to and is_from

    def has_changed(self, option: str) -> bool:
        """Whether an option was changed."""
        return option in self.fields.get("options", ())
