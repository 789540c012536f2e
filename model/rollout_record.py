"""The rollout of a stream as a record: from one release and its options to another, step by step."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from model.fault import FaultRecord

# The kind of a manifest that is one rollout; a schedule may begin rollouts too.
ROLLOUT_KIND: Final = "Rollout"


class RolloutState(StrEnum):
    """The current step of a rollout, or its result.

    In PENDING nothing has happened. A restart goes on with DRAINING, STARTING and WATCHING, an update with
    UPDATING. ROLLING_BACK and STARTING_BACK take a restart back to the old release. HALTED leaves the new release
    for a person to look at, or the old one where the shadow differs.
    """

    PENDING = "PENDING"
    DRAINING = "DRAINING"
    STARTING = "STARTING"
    WATCHING = "WATCHING"
    UPDATING = "UPDATING"
    ROLLING_BACK = "ROLLING_BACK"
    STARTING_BACK = "STARTING_BACK"
    STABLE = "STABLE"
    REFUSED = "REFUSED"
    CANCELLED = "CANCELLED"
    ROLLED_BACK = "ROLLED_BACK"
    HALTED = "HALTED"
    FAILED = "FAILED"

    @property
    def is_ended(self) -> bool:
        """Whether nothing happens to the rollout any more."""
        return self in ENDED_ROLLOUTS


ENDED_ROLLOUTS: Final = frozenset(
    {
        RolloutState.STABLE,
        RolloutState.REFUSED,
        RolloutState.CANCELLED,
        RolloutState.ROLLED_BACK,
        RolloutState.HALTED,
        RolloutState.FAILED,
    }
)


@dataclass(frozen=True, slots=True)
class RolloutSide:
    """A release of a stream, None the installed one, with all its options in JSON, without those that are null."""

    release: str | None
    options: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the side by its names."""
        return {"release": self.release, "options": dict(self.options)}

    def differences(self, other: "RolloutSide") -> dict[str, tuple[Any, Any]]:
        """Return the values that ``other`` has otherwise, by their names: first those of this side.

        Example:
            >>> RolloutSide("1.2", {"slots": 4}).differences(RolloutSide("1.3", {"slots": 4}))
            {'release': ('1.2', '1.3')}
        """
        mine = {"release": self.release, **{f"options.{name}": value for name, value in self.options.items()}}
        others = {"release": other.release, **{f"options.{name}": value for name, value in other.options.items()}}
        names = [*mine, *(name for name in others if name not in mine)]
        return {name: (mine.get(name), others.get(name)) for name in names if mine.get(name) != others.get(name)}


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """A step that a rollout has begun, and why."""

    state: RolloutState
    at: datetime
    why: str | None


@dataclass(frozen=True, slots=True)
class NewRollout:
    """A rollout that is to begin; ``document`` is its manifest, from and to exchanged where it ``reverses`` one.

    ``is_trusted`` is of one to a release that was STABLE before: nothing is compared and nothing validated.
    """

    manifest: str
    digest: str
    document: Mapping[str, Any]
    stream: str
    strategy: str
    from_side: RolloutSide
    to_side: RolloutSide
    reverses: str | None = None
    is_trusted: bool = False


@dataclass(frozen=True, slots=True)
class Rollout:
    """One rollout, as the job store has it.

    ``compared`` is what it was judged by: figures before and after, and the rest in JSON. ``generation`` is the
    launch of the stream that a restart made last, and ``update_id`` the update that carries it out. ``error`` is
    the first reason why it did not go on. ``unwanted_by`` cancelled it. ``version`` counts its changes.
    """

    id: str
    manifest: str
    digest: str
    document: Mapping[str, Any]
    stream: str
    strategy: str
    state: RolloutState
    from_side: RolloutSide
    to_side: RolloutSide
    created_by: str
    created_at: datetime
    changed_at: datetime
    version: int
    steps: tuple[RolloutStep, ...]
    reverses: str | None = None
    is_trusted: bool = False
    unwanted_by: str | None = None
    generation: int | None = None
    update_id: str | None = None
    compared: Mapping[str, Any] | None = None
    error: FaultRecord | None = None
    finished_at: datetime | None = None

    @property
    def actor(self) -> str:
        """The name by which it changes its stream."""
        return f"rollout:{self.manifest}"
