"""What should be there, in plain Python, and where it differs from what is."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from tests.chaos.messages import ORDERS, Entity, Key, Taken

_NAMED: Final = 20


@dataclass(frozen=True)
class Difference:
    """What one table or backfill and the oracle do not agree on, by id."""

    where: str
    lost: tuple[Any, ...] = ()
    duplicated: tuple[Any, ...] = ()
    changed: tuple[Any, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.lost or self.duplicated or self.changed)

    def __str__(self) -> str:
        parts = [self.where]
        for kind in ("lost", "duplicated", "changed"):
            ids = getattr(self, kind)
            if ids:
                more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
                parts.append(f"{len(ids)} {kind}: {list(ids[:_NAMED])}{more}")
        return "; ".join(parts)


@dataclass(frozen=True)
class Replay:
    """A backfill that ended: what it was to select, and what it says of itself.

    ``known`` are the messages that were archived for sure when it began, ``possible`` those that may have been.
    """

    backfill_id: str
    known: frozenset[Key]
    possible: frozenset[Key]
    selected: int
    published: int
    failed: int
    repeated_at_most: int


def compare_archive(taken: Mapping[Key, Taken], archived: Iterable[tuple[Key, bytes]]) -> Difference:
    """Compare: every message that is no replay once, bit for bit, and nothing else."""
    wanted = {key: one.digest for key, one in taken.items() if one.backfill_id is None}
    counts: Counter[Key] = Counter()
    changed = set()
    for key, found in archived:
        counts[key] += 1
        if wanted.get(key) != found:
            changed.add(key)
    return Difference(
        "archive",
        tuple(sorted(wanted.keys() - counts.keys())),
        tuple(sorted(key for key, count in counts.items() if count > 1)),
        tuple(sorted(changed)),
    )


def select(
    taken: Mapping[Key, Taken], topics: Iterable[str], until: datetime, *, smaller_than_bytes: int
) -> frozenset[Key]:
    """Return what a backfill of so much of these topics selects."""
    wanted = set(topics)
    return frozenset(
        key
        for key, one in taken.items()
        if one.backfill_id is None
        and key[0] in wanted
        and one.publish_time < until
        and one.size_bytes < smaller_than_bytes
    )


def settled(
    taken: Mapping[Key, Taken], wanted: frozenset[Key], archived: Collection[Key], until: datetime
) -> tuple[datetime, frozenset[Key]]:
    """Return the latest time up to ``until`` before which all of ``wanted`` is archived, and what that is.

    What a killed backup had leased is archived a minute late: the time is that of the first of those.
    """
    until = min((taken[key].publish_time for key in wanted if key not in archived), default=until)
    return until, frozenset(key for key in wanted if taken[key].publish_time < until)


def compare_replay(replay: Replay, taken: Mapping[Key, Taken], digests: Mapping[Key, bytes]) -> Difference:
    """Compare: every selected message that has room for its tags at least once, and no more often than was said.

    ``digests`` are those that a replay of a message has to have.
    """
    arrived = [one for one in taken.values() if one.backfill_id == replay.backfill_id]
    rows: dict[int | None, Key | None] = {}
    changed: set[Any] = set()
    for one in arrived:
        if rows.setdefault(one.row, one.original) != one.original:
            changed.add(("row", one.row))
        if one.original not in replay.possible or digests.get(one.original) != one.digest:
            changed.add(one.original)
    sendable = {key for key in replay.known if taken[key].has_room_for_tags}
    found = Counter(rows.values())
    if (replay.published, replay.published + replay.failed) != (len(rows), replay.selected):
        changed.add(("says", replay.selected, replay.published, replay.failed, "arrived", len(rows)))
    repeated = Counter(one.row for one in arrived)
    duplicated: set[Any] = {key for key, count in found.items() if count > 1}
    if repeated.total() - len(repeated) > replay.repeated_at_most:
        duplicated |= {("row", row) for row, count in repeated.items() if count > 1}
        duplicated.add(("repeated_at_most", replay.repeated_at_most))
    return Difference(
        replay.backfill_id,
        tuple(sorted(sendable - found.keys())),
        tuple(sorted(duplicated, key=str)),
        tuple(sorted(changed, key=str)),
    )


# What tells a row of staging from all others: the message that it comes from, and the replay that brought it.
Identity = tuple[Key, str | None, int | None]


def compare_staging(
    topic: str,
    taken: Mapping[Key, Taken],
    rows: Iterable[tuple[Identity, Entity | None]],
    dead: Iterable[Identity],
) -> Difference:
    """Compare: every message of ``topic`` is one row or one dead letter, and an entity is a row as it was sent.

    A row that a backfill published twice is there once or twice: a stream that has moved knows it for one replay.
    ``dead`` are the dead letters as their untouched tags have them; those that a producer made up say nothing.
    """
    wanted: Counter[Identity] = Counter()
    entities: dict[Identity, Entity] = {}
    for key, one in taken.items():
        if key[0] == topic:
            identity = (one.original or key, one.backfill_id, one.row)
            wanted[identity] += 1
            if one.entity is not None:
                entities[identity] = one.entity
    found: Counter[Identity] = Counter()
    changed = set()
    for identity, entity in rows:
        found[identity] += 1
        if entities.get(identity, entity) != entity:
            changed.add(identity)
    for letter in dead:
        identity = letter if letter in wanted else (letter[0], None, None)
        found[identity] += 1
        if identity in entities:
            changed.add(identity)
    lost = [identity for identity in wanted - found if identity[1] is None or not found[identity]]
    return Difference(
        f"staging of {topic}",
        tuple(sorted(lost, key=str)),
        tuple(sorted((found - wanted).keys(), key=str)),
        tuple(sorted(changed, key=str)),
    )


def compare_published(staged: Iterable[Identity], published: Iterable[Identity]) -> Difference:
    """Compare: every row of staging came out of its topic too.

    A kill repeats what a batch held, and a source that is rolled back publishes its rows again: there may be
    repeats, but no more of them than rows.
    """
    wanted, found = Counter(staged), Counter(published)
    repeated = found.total() - len(found)
    return Difference(
        "published rows",
        tuple(sorted(wanted.keys() - found.keys(), key=str)),
        ("repeated", repeated) if repeated > len(wanted) else (),
    )


def compare_reporting(taken: Mapping[Key, Taken], rows: Iterable[Entity]) -> Difference:
    """Compare: every entity once, in its newest version; messages without an id are all the entity 0."""
    newest: dict[int, Entity] = {}
    for key, one in taken.items():
        if key[0] == ORDERS and one.entity is not None:
            identity = one.entity[0]
            newest[identity] = max(newest.get(identity, one.entity), one.entity, key=lambda entity: entity[1])
    found = list(rows)
    counts = Counter(row[0] for row in found)
    return Difference(
        "reporting",
        tuple(sorted(newest.keys() - counts.keys())),
        tuple(sorted(key for key, count in counts.items() if count > 1)),
        tuple(sorted((row for row in found if row[0] and newest.get(row[0]) != row), key=str)),
    )
