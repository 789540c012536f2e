"""What is broken when: drawn from a seed, for each part of the system a list of its own."""

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from model.failpoint import FAILPOINTS

# Part by part: its share of a run's kills, so that all parts take about as long and three runs come to each of
# its failpoints, and what can be done to it beside these.
_STREAM: Final = ("kill:driver", "kill:jvm", "kill:worker", "suspend:driver", "suspend:all")
_HARMS: Final[dict[str, tuple[int, tuple[str, ...]]]] = {
    "backup": (7, (*_STREAM, "disk:journal", "move:home")),
    "pipeline": (5, _STREAM),
    "backfill": (3, ("kill:driver", "kill:spark", "kill:worker", "kill:api", "suspend:driver", "suspend:api")),
    "tables": (6, ("kill:merge", "kill:compact")),
    "server": (2, ("kill:server", "suspend:server", "outage:server")),
    "warehouse": (2, ("fault:lost", "fault:refused", "fault:error", "fault:busy", "kill:warehouse")),
}
_SKEWED: Final[dict[str, tuple[str, ...]]] = {
    "backup": ("clock:+5h", "clock:-5h"),
    "pipeline": ("clock:+5h", "clock:-5h"),
    "backfill": ("clock:+5h", "clock:-5h"),
}
_TABLE_PLACES: Final = ("merge.", "compact.", "bigquery.merge.")
# BigQuery's engine merges rows and small files by itself.
_LAKE_ONLY: Final = {"merge.rewritten", "merge.indexed", "compact.before", "compact.after"}
_ABSENT: Final[dict[str, set[str]]] = {"lake": {"warehouse"}, "bigquery": set()}
_BACKFILL_PLACES: Final = ("backfill.", "bigquery.selection.")
# Agents pass these: tests/acceptance/test_rollback_kills.py kills there.
AGENT_PLACES: Final = ("snapshot.", "restore.")


@dataclass(frozen=True)
class Schedule:
    """What happens to each part, in its order; parts go on beside each other."""

    seed: int
    harms: dict[str, list[str]]

    def __str__(self) -> str:
        return f"schedule of seed {self.seed}: {self.harms}"


def places_of(part: str, warehouse: str) -> tuple[str, ...]:
    """Return the failpoints that a part passes with this warehouse."""
    if part in {"server", "warehouse"}:
        return ()
    if part == "backup":
        # Its rows are in PENDING streams.
        return tuple(name for name in places_of("pipeline", warehouse) if name != "bigquery.flushed")
    places = [name for name in FAILPOINTS if name.startswith("bigquery.") <= (warehouse == "bigquery")]
    if part == "tables":
        found = [name for name in places if name.startswith(_TABLE_PLACES)]
        return tuple(name for name in found if warehouse == "lake" or name not in _LAKE_ONLY)
    if part == "backfill":
        return tuple(name for name in places if name.startswith(_BACKFILL_PLACES))
    others = (*_TABLE_PLACES, *_BACKFILL_PLACES, *AGENT_PLACES)
    return tuple(name for name in places if not name.startswith(others))


def parts_of(warehouse: str) -> tuple[str, ...]:
    """Return the parts that there are with this warehouse."""
    return tuple(part for part in _HARMS if part not in _ABSENT[warehouse])


def draw(seed: int, kills: int, warehouse: str, hit: Collection[tuple[str, str]], *, can_skew: bool) -> Schedule:
    """Return about ``kills`` harms, at least one for each part.

    Two of three are failpoints, those first that no run of this warehouse has hit yet, as ``hit`` (part, name)
    says; every other harm is of another kind.
    """
    dice = random.Random(f"{seed} {warehouse}")
    parts = parts_of(warehouse)
    shares = sum(_HARMS[part][0] for part in parts)
    harms = {}
    for part in parts:
        share, kinds = _HARMS[part]
        if can_skew:
            kinds += _SKEWED.get(part, ())
        places = places_of(part, warehouse)
        missing = [name for name in places if (part, name) not in hit]
        failpoints = _deal(dice, places, first=missing)
        others = _deal(dice, [kind for kind in kinds if warehouse == "lake" or kind != "kill:compact"])
        harms[part] = [
            f"failpoint:{next(failpoints)}" if places and number % 3 != 2 else next(others)
            for number in range(max(1, round(kills * share / shares)))
        ]
    return Schedule(seed, harms)


def _deal(dice: random.Random, cards: Sequence[str], *, first: Sequence[str] = ()) -> Iterator[str]:
    """Yield ``first``, then all cards, then all again: shuffled, and none twice before every other one."""
    yield from dice.sample(first, len(first))
    while cards:
        yield from dice.sample(cards, len(cards))
