"""What is broken when: drawn from a seed, for each part of the system a list of its own."""

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from model.failpoint import FAILPOINTS

# Part by part: its share of a run's kills, so that all parts take about as long and three runs come to each of
# its failpoints, and what can be done to it beside these.
_STREAM: Final = ("kill:driver", "kill:jvm", "kill:worker", "suspend:driver", "suspend:all")
_HARMS: Final[dict[str, tuple[int, tuple[str, ...]]]] = {
    "backup": (7, _STREAM),
    "pipeline": (7, _STREAM),
    "backfill": (3, ("kill:driver", "kill:spark", "kill:worker", "kill:api", "suspend:driver", "suspend:api")),
    "tables": (6, ("kill:merge", "kill:compact")),
    "server": (2, ("kill:server", "suspend:server", "outage:server")),
    "warehouse": (2, ("fault:lost", "fault:refused", "fault:error", "fault:busy", "kill:warehouse")),
}
# The same where the streams are records of agents, in a run with a third of the harms; these come in each.
_FIRST: Final = {"agents": ("move:home", "rollback:source", "kill:update", "kill:rollout")}
_AGENTS: Final = (
    "kill:agent", "kill:machine", "kill:stream", "kill:snapshot", "kill:rollback", "kill:update",
    "kill:rollout", "suspend:agent", "move:home", "snapshot:source", "rollback:source", "update:same",
    "rollout:restart", "rollout:update", "rollout:rolling", "end:drain", "end:cancel", "change:pace",
)  # fmt: skip
_UNDER_AGENTS: Final[dict[str, tuple[int, tuple[str, ...]]]] = {
    "agents": (14, _AGENTS),
    **{part: harms for part, harms in _HARMS.items() if part not in {"backup", "pipeline"}},
    # No outage: it takes as long as four harms.
    "server": (2, ("kill:server", "suspend:server")),
}
_TABLE_PLACES: Final = ("merge.", "compact.", "bigquery.merge.")
# BigQuery's engine merges rows and small files by itself.
_LAKE_ONLY: Final = {"merge.rewritten", "merge.indexed", "compact.before", "compact.after"}
_ABSENT: Final[dict[str, set[str]]] = {"lake": {"warehouse"}, "bigquery": set()}
_BACKFILL_PLACES: Final = ("backfill.", "bigquery.selection.")
# Agents and the service that steers them pass these: runs under agents kill there, one after the other, as do
# tests/acceptance/test_rollback_kills.py and test_uploads.py.
_ROLLOUT_PLACES: Final = ("shadow.", "upload.")
AGENT_PLACES: Final = ("snapshot.", "deletion.", "restore.", "update.", *_ROLLOUT_PLACES)


@dataclass(frozen=True)
class Schedule:
    """What happens to each part, in its order; parts go on beside each other."""

    seed: int
    harms: dict[str, list[str]]

    @property
    def has_agents(self) -> bool:
        """Whether the streams are records that agents keep."""
        return "agents" in self.harms

    def __str__(self) -> str:
        return f"schedule of seed {self.seed}: {self.harms}"


def places_of(part: str, warehouse: str) -> tuple[str, ...]:
    if part in {"server", "warehouse"}:
        return ()
    if part == "agents":
        return tuple(name for name in FAILPOINTS if name.startswith(AGENT_PLACES))
    if part == "backup":
        # It decodes nothing, its rows are in PENDING streams, and no topic gets them.
        others = {"decode.begun", "bigquery.flushed", "publish.before", "publish.after"}
        return tuple(name for name in places_of("pipeline", warehouse) if name not in others)
    places = [name for name in FAILPOINTS if name.startswith("bigquery.") <= (warehouse == "bigquery")]
    if part == "tables":
        found = [name for name in places if name.startswith(_TABLE_PLACES)]
        return tuple(name for name in found if warehouse == "lake" or name not in _LAKE_ONLY)
    if part == "backfill":
        return tuple(name for name in places if name.startswith(_BACKFILL_PLACES))
    others = (*_TABLE_PLACES, *_BACKFILL_PLACES, *AGENT_PLACES)
    return tuple(name for name in places if not name.startswith(others))


def parts_of(warehouse: str) -> tuple[str, ...]:
    return tuple(part for part in _HARMS if part not in _ABSENT[warehouse])


def draw(seed: int, kills: int, warehouse: str, hit: Collection[tuple[str, str]]) -> Schedule:
    """Return about ``kills`` harms, at least one for each part.

    Two of three are failpoints, those first that no run of this warehouse has hit yet, as ``hit`` (part, name)
    says; every other harm is of another kind.
    """
    return _draw(seed, kills, warehouse, hit, _HARMS)


def draw_under_agents(seed: int, kills: int, warehouse: str, hit: Collection[tuple[str, str]]) -> Schedule:
    """Return about a third of ``kills`` harms for a run whose streams are records that agents keep.

    Every other harm of the agents is a failpoint, those first that no run of this warehouse has hit yet.
    """
    return _draw(seed, kills // 3, warehouse, hit, _UNDER_AGENTS)


def _draw(
    seed: int,
    kills: int,
    warehouse: str,
    hit: Collection[tuple[str, str]],
    possible: Mapping[str, tuple[int, tuple[str, ...]]],
) -> Schedule:
    dice = random.Random(f"{seed} {warehouse}")
    parts = [part for part in possible if part not in _ABSENT[warehouse]]
    shares = sum(possible[part][0] for part in parts)
    harms = {}
    for part in parts:
        share, kinds = possible[part]
        places = places_of(part, warehouse)
        missing = [name for name in places if (part, name) not in hit]
        if part == "agents":
            # Acceptance tests kill at each of the others.
            missing = [name for name in missing if name.startswith(_ROLLOUT_PLACES)] or missing
        failpoints = _deal(dice, places, first=missing)
        kinds = tuple(kind for kind in kinds if warehouse == "lake" or kind != "kill:compact")
        others = _deal(dice, kinds, first=_FIRST.get(part, ()))
        harms[part] = [
            f"failpoint:{next(failpoints)}" if places and _is_failpoint(part, number) else next(others)
            for number in range(max(1, round(kills * share / shares)))
        ]
    return Schedule(seed, harms)


def _is_failpoint(part: str, number: int) -> bool:
    """Whether this harm of a part is a failpoint: two of three are, of agents every other one."""
    return number % 2 == 1 if part == "agents" else number % 3 != 2


def _deal(dice: random.Random, cards: Sequence[str], *, first: Sequence[str] = ()) -> Iterator[str]:
    """Yield ``first``, then all cards, then all again: shuffled, and none twice before every other one."""
    yield from dice.sample(first, len(first))
    while cards:
        yield from dice.sample(cards, len(cards))
