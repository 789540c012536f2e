"""What the demo compares: what was published, what the archive holds, what a replay brought."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from model.message import (
    BACKFILL_ID_ATTRIBUTE,
    MESSAGE_ID_ATTRIBUTE,
    PUBLISH_TIME_ATTRIBUTE,
    REPLAY_ATTRIBUTE,
    REPLAY_TAGS,
    ROW_ATTRIBUTE,
    TOPIC_ATTRIBUTE,
    Message,
)

# A message's identity: its id is unique within its topic only.
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ArchivedMessage:
    """One row of the archive: a message and its topic; attributes as stored, so that a key twice shows."""

    topic: str
    message_id: str
    data: bytes
    attributes: tuple[tuple[str, str], ...]
    publish_time: str


@dataclass(frozen=True, slots=True)
class ArchiveFigures:
    """How the archive compares with what was published; ``foreign`` counts rows that nobody published."""

    archived: int
    lost: int
    duplicates: int
    payload_mismatches: int
    foreign: int


@dataclass(frozen=True, slots=True)
class ReplayFigures:
    """How a replay compares with its selection; ``republished`` counts rows that came whole, each once."""

    republished: int
    repeated: int
    payload_mismatches: int
    untagged: int


@dataclass(slots=True)
class Verdict:
    """All of the demo's figures; ``seconds`` has one entry a step."""

    published: int = 0
    archived: int = 0
    lost: int = 0
    duplicates: int = 0
    payload_mismatches: int = 0
    selected: int = 0
    republished: int = 0
    rearchived: int = 0
    expected_selected: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        """Whether every message is where it belongs, once, bit for bit, and the replay was whole."""
        return (
            self.published > 0
            and self.archived == self.published
            and self.selected == self.expected_selected == self.republished > 0
            and not (self.lost or self.duplicates or self.payload_mismatches or self.rearchived)
        )

    def as_json(self) -> dict[str, Any]:
        """Return the figures under the names that scripts rely on."""
        figures = asdict(self)
        del figures["expected_selected"]
        return {**figures, "ok": self.is_clean}


def compare_archive(
    published: Mapping[Key, Message], rows: Iterable[ArchivedMessage], markers: frozenset[Key]
) -> ArchiveFigures:
    """Compare every row of the archive with what was published under its id; ``markers`` are left out."""
    seen: Counter[Key] = Counter()
    mismatches = foreign = 0
    for row in rows:
        key = (row.topic, row.message_id)
        if key in markers:
            continue
        message = published.get(key)
        if message is None:
            foreign += 1
            continue
        seen[key] += 1
        same = row.data == message.data and sorted(row.attributes) == sorted(message.attributes.items())
        mismatches += not same
    return ArchiveFigures(
        archived=len(seen),
        lost=len(published) - len(seen),
        duplicates=seen.total() - len(seen),
        payload_mismatches=mismatches,
        foreign=foreign,
    )


def compare_replay(
    selected: Mapping[Key, ArchivedMessage], replayed: Sequence[Message], *, token: str, backfill_id: str
) -> ReplayFigures:
    """Compare what a subscription got of a backfill with the rows it was to publish.

    A message that was replayed carries every tag of :data:`model.message.REPLAY_TAGS`; without them its payload
    and attributes are those in the archive, but for attributes of the same names, which the tags replace.
    """
    rows: set[str] = set()
    sources: set[Key] = set()
    repeated = mismatches = untagged = 0
    for message in replayed:
        tags = {name: message.attributes.get(name) for name in REPLAY_TAGS}
        source = selected.get((tags[TOPIC_ATTRIBUTE] or "", tags[MESSAGE_ID_ATTRIBUTE] or ""))
        row = tags[ROW_ATTRIBUTE]
        told = (tags[REPLAY_ATTRIBUTE], tags[BACKFILL_ID_ATTRIBUTE], tags[PUBLISH_TIME_ATTRIBUTE])
        if source is None or row is None or told != (token, backfill_id, source.publish_time):
            untagged += 1
            continue
        if row in rows:
            repeated += 1
            continue
        rows.add(row)
        own = {name: value for name, value in message.attributes.items() if name not in REPLAY_TAGS}
        original = {name: value for name, value in source.attributes if name not in REPLAY_TAGS}
        if message.data != source.data or own != original:
            mismatches += 1
            continue
        sources.add((source.topic, source.message_id))
    return ReplayFigures(len(sources), repeated, mismatches, untagged)
