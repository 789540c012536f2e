"""The rollout of a stream: an update that a manifest asked for, as people see it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from model.stream_update import (
    ABANDONED,
    SHADOW_ENDS,
    UPDATE_STEPS,
    StreamUpdate,
    UpdateFault,
    UpdateRequest,
    UpdateState,
)

# The kind of a manifest that is one rollout; a schedule may begin rollouts too.
ROLLOUT_KIND: Final = "Rollout"


class RolloutState(StrEnum):
    """The current step of a rollout, or its result.

    In PENDING nothing has changed. A restart goes on with DRAINING, STARTING and WATCHING, any other update with
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


# The states of a restart, and those of any update, by those of the update; all others are UPDATING.
_OF_RESTART: Final = {
    UpdateState.STOPPING: RolloutState.DRAINING,
    UpdateState.RESTARTING: RolloutState.STARTING,
    UpdateState.WATCHING: RolloutState.WATCHING,
    UpdateState.STOPPING_BACK: RolloutState.ROLLING_BACK,
    UpdateState.RESTARTING_BACK: RolloutState.STARTING_BACK,
}
_OF_ANY: Final = {
    UpdateState.CHECKING: RolloutState.PENDING,
    UpdateState.MEASURING: RolloutState.PENDING,
    UpdateState.STABLE: RolloutState.STABLE,
    UpdateState.REFUSED: RolloutState.REFUSED,
}


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """A step that a rollout has begun, and why."""

    state: RolloutState
    at: datetime
    why: str | None


@dataclass(frozen=True, slots=True)
class NewRollout:
    """A rollout that is to begin; ``document`` is its manifest, from and to exchanged where it ``reverses`` one.

    ``update`` brings the stream from ``from_side``, which has to run, to the other side.
    """

    manifest: str
    digest: str
    document: Mapping[str, Any]
    stream: str
    from_side: RolloutSide
    update: UpdateRequest
    reverses: str | None = None


@dataclass(frozen=True, slots=True)
class Rollout:
    """One rollout: its ``update``, and the manifest that asked for it, at its ``generation``."""

    update: StreamUpdate
    manifest: str
    generation: int | None
    digest: str
    document: Mapping[str, Any]
    steps: tuple[RolloutStep, ...]
    reverses: str | None = None

    @property
    def id(self) -> str:
        """The id, which is the update's too."""
        return self.update.id

    @property
    def stream(self) -> str:
        """The stream's name."""
        return self.update.stream

    @property
    def strategy(self) -> str:
        """How the release is rolled out, in the words of the manifest."""
        return str(self.document["strategy"])

    @property
    def state(self) -> RolloutState:
        """The current step, or the result."""
        return rollout_state(self.update)

    @property
    def from_side(self) -> RolloutSide:
        """What ran before."""
        return RolloutSide(self.update.from_release, self.update.from_options)

    @property
    def to_side(self) -> RolloutSide:
        """What runs once it is STABLE."""
        return RolloutSide(self.update.request.release, self.update.to_options)

    @property
    def is_trusted(self) -> bool:
        """Whether the new release was STABLE before, so that nothing is compared."""
        return self.update.request.is_trusted

    @property
    def compared(self) -> Mapping[str, Any]:
        """What it is judged by: figures before and after, and the rest in JSON."""
        return {**(self.update.figures or {}), "paused_seconds": self.update.paused_seconds}

    @property
    def error(self) -> UpdateFault | None:
        """Why it did not go on."""
        return self.update.error

    @property
    def unwanted_by(self) -> str | None:
        """Who cancelled it."""
        return self.update.unwanted_by

    @property
    def created_by(self) -> str:
        """Who asked for it."""
        return self.update.created_by

    @property
    def created_at(self) -> datetime:
        """When somebody asked for it."""
        return self.update.created_at

    @property
    def changed_at(self) -> datetime:
        """When its present step began, or it ended."""
        return self.update.changed_at

    @property
    def finished_at(self) -> datetime | None:
        """When it ended; None before."""
        return self.update.finished_at


def rollout_state(update: StreamUpdate) -> RolloutState:
    """Return the state of the rollout that an update carries out.

    A shadow that ended touched nothing, and a person looks at the rows that differ; so does one at a new release
    that failed and is to stay.
    """
    if not update.state.is_ended:
        return _state_of(update.state, is_restart=update.request.is_restart)
    # The steps that take the stream from the old release write this down.
    is_begun, code = update.outgoing_id is not None, None if update.error is None else update.error.code
    if update.state is UpdateState.ROLLED_BACK:
        return RolloutState.ROLLED_BACK if is_begun else RolloutState.CANCELLED
    if update.state is UpdateState.FAILED:
        is_left = update.handed_over_at is not None and update.request.is_halting and code != ABANDONED
        return RolloutState.HALTED if is_left or code in SHADOW_ENDS else RolloutState.FAILED
    return _OF_ANY[update.state]


def step_state(step: str, *, is_restart: bool) -> RolloutState:
    """Return the state of a rollout while its update is at a step."""
    return _state_of(UPDATE_STEPS.get(step, UpdateState.WATCHING), is_restart=is_restart)


def _state_of(state: UpdateState, *, is_restart: bool) -> RolloutState:
    found = _OF_RESTART.get(state) if is_restart else None
    return found or _OF_ANY.get(state, RolloutState.UPDATING)
