"""Lines of histories: what happened to jobs, streams, manifests and other objects, who did it, and why."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import Any, Final

from model.job import JobState

# Histories have thousands of entries.
_MAX_CHANGES: Final = 20
_MAX_CHARACTERS: Final = 500


class HistoryEventType(StrEnum):
    """The type of an entry in a history.

    Each may have ``options``, the names of those that it changed, and ``changes``, their values by JSON pointer.
    """

    CREATED = "created"
    """Somebody created the job or the key."""
    LAUNCHED = "launched"
    """Somebody launched the stream, or launched it again."""
    APPLIED = "applied"
    """Somebody applied the manifest, or published the source. ``changes`` lists what changed, and ``version`` is
    the manifest's version since then."""
    MOVED = "moved"
    """The state of the job or of the stream changed from ``from`` to ``to``."""
    CHANGED = "changed"
    """Options of the job or of the stream, or types of the source's columns, changed. ``options`` lists the names
    of these options, and ``changes`` lists the values before and after."""
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
    """Another entry, such as a snapshot, a step of an update, a requested run, or the attachment of a topic."""


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One line of a history; numbers of one history only grow, with gaps.

    ``resource`` is a kind of job, or stream, manifest, topic, source or key; ``id`` is the id of a job, or a name.
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


@dataclass(frozen=True, slots=True)
class ValueChange:
    """A value that changes, by its JSON pointer; None where there is none."""

    pointer: str
    before: Any
    after: Any


def find_changes(before: Any, after: Any, pointer: str = "", *, tells_null: bool = False) -> Iterator[ValueChange]:
    """Yield what differs between two JSON values, within objects member by member.

    With ``tells_null``, a member that is null differs from one that is not there, and both are None.

    Example:
        >>> [*find_changes({"slots": 2, "group": "a"}, {"slots": 4, "group": "a"})]
        [ValueChange(pointer='/slots', before=2, after=4)]
    """
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in [*before, *(name for name in after if name not in before)]:
            at = f"{pointer}/" + name.replace("~", "~0").replace("/", "~1")
            if tells_null and (name in before) != (name in after):
                yield ValueChange(at, before.get(name), after.get(name))
            else:
                yield from find_changes(before.get(name), after.get(name), at, tells_null=tells_null)
    # Python takes 1 and true for the same.
    elif before != after or json.dumps(before, sort_keys=True) != json.dumps(after, sort_keys=True):
        yield ValueChange(pointer, before, after)


def render_changes(
    before: Mapping[str, Any], after: Mapping[str, Any], *, tells_null: bool = False
) -> list[dict[str, Any]] | None:
    """Return what an entry keeps of a change, None of none: the first values, and of long ones their beginning."""
    found = islice(find_changes(before, after, tells_null=tells_null), _MAX_CHANGES)
    return [
        {"pointer": each.pointer, "before": _cut(each.before), "after": _cut(each.after)} for each in found
    ] or None


def _cut(value: Any) -> Any:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return value if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."
