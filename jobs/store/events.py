"""Lines of a job's history: a type and fields for programs, words for people."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from model.job import JobState

_MOVE: Final = re.compile(rf"({'|'.join(JobState)}) -> ({'|'.join(JobState)})")
_VERDICT: Final = re.compile(r"verification (\w+)")
_CHANGE: Final = re.compile(r"changed (\w+(?:, \w+)*)")


class JobEventType(StrEnum):
    """What a line of a job's history is about; each may have ``options``, the names of those that it changed."""

    CREATED = "created"
    """The job was created."""
    MOVED = "moved"
    """The job's state changed from ``from`` to ``to``."""
    CHANGED = "changed"
    """Somebody changed options of the job. ``options`` lists the names of these options."""
    APPROVED = "approved"
    """A second person approved the job."""
    FOUND = "found"
    """The driver reported a result. If it is the result of a verification, ``state`` contains the verdict."""
    DRIVER_ENDED = "driver_ended"
    """The driver's process ended before the job had ended."""
    STEP = "step"
    """The job began an attempt of the step in ``step``. ``attempt`` is the number of the attempt."""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One line of a job's history; numbers of one job only grow, with gaps.

    ``what`` and ``why`` are for people alone: nothing may be concluded from them.
    """

    number: int
    job_id: str
    at: datetime
    actor: str
    what: str
    why: str | None
    type: JobEventType
    fields: Mapping[str, Any]

    def is_move(self, *, to: JobState, before: JobState | None = None) -> bool:
        """Whether the job went to the state ``to``, from ``before`` if that is given."""
        is_from = before is None or self.fields.get("from") == before
        return self.type is JobEventType.MOVED and self.fields.get("to") == to and is_from

    def has_changed(self, option: str) -> bool:
        """Whether the job's option was changed."""
        return option in self.fields.get("options", ())


def parse_words(what: str) -> tuple[JobEventType, dict[str, Any]] | None:
    """Return the type and the fields of a line that was written before lines had any; None where nobody knows.

    For the migration of histories only.

    Example:
        >>> parse_words("RUNNING -> PAUSED")
        (<JobEventType.MOVED: 'moved'>, {'from': 'RUNNING', 'to': 'PAUSED'})
    """
    if move := _MOVE.fullmatch(what):
        return JobEventType.MOVED, {"from": move[1], "to": move[2]}
    if verdict := _VERDICT.fullmatch(what):
        return JobEventType.FOUND, {"state": verdict[1]}
    if change := _CHANGE.fullmatch(what):
        return JobEventType.CHANGED, {"options": change[1].split(", ")}
    known = {
        "created": (JobEventType.CREATED, {}),
        "approved": (JobEventType.APPROVED, {}),
        "driver ended": (JobEventType.DRIVER_ENDED, {}),
        "reverted": (JobEventType.CHANGED, {"options": ["reverted"]}),
    }
    return known.get(what)
