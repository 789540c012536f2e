"""The rollout of a stream: an update that a manifest describes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from model.stream_update import UpdateRequest

# The kind of a manifest that is one rollout; a schedule may begin rollouts too.
ROLLOUT_KIND: Final = "Rollout"


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
class NewRollout:
    """A rollout that is to begin: the update of a stream that has to run as ``from_side``."""

    stream: str
    from_side: RolloutSide
    update: UpdateRequest
