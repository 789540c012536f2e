"""Volumes: how many messages, with how many payload bytes, came in of each topic in each hour."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeAlias

from model.window import Window

# By hour ("2026-01-31T22", UTC) and topic: messages and payload bytes. It is kept as JSON beside what it counts.
HourCounts: TypeAlias = Mapping[str, Mapping[str, tuple[int, int]]]

_HOUR = timedelta(hours=1)


class Volume(NamedTuple):
    """Messages, and the bytes of their payloads as they were published."""

    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class HourVolumes:
    """Volumes by hour of ingestion and topic; an hour in ``unknown`` has messages that nobody has counted.

    An hour or a topic that is missing had none.
    """

    by_hour: Mapping[datetime, Mapping[str, Volume]] = field(default_factory=dict)
    unknown: tuple[Window, ...] = ()


def hour_key(moment: datetime) -> str:
    """Return the hour of ``moment`` as :data:`HourCounts` name it.

    Example:
        >>> hour_key(datetime(2026, 1, 31, 22, 59, tzinfo=UTC))
        '2026-01-31T22'
    """
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H}"


def parse_hour(key: str) -> datetime:
    """Return the start of an hour of :data:`HourCounts`.

    Example:
        >>> parse_hour("2026-01-31T22")
        datetime.datetime(2026, 1, 31, 22, 0, tzinfo=datetime.timezone.utc)
    """
    return datetime.strptime(key, "%Y-%m-%dT%H").replace(tzinfo=UTC)


def hours_of(window: Window) -> Window:
    """Return the smallest window of whole hours that holds ``window`` and its end too."""
    first = window.start.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    last = window.end.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return Window(first, last + _HOUR)


def add_counts(total: dict[str, dict[str, tuple[int, int]]], counts: HourCounts) -> None:
    """Add ``counts`` to ``total``.

    Example:
        >>> total = {"2026-01-31T22": {"orders": (1, 10)}}
        >>> add_counts(total, {"2026-01-31T22": {"orders": (2, 5)}})
        >>> total
        {'2026-01-31T22': {'orders': (3, 15)}}
    """
    for hour, topics in counts.items():
        into = total.setdefault(hour, {})
        for topic, (messages, size) in topics.items():
            known = into.get(topic)
            into[topic] = (messages, size) if known is None else (known[0] + messages, known[1] + size)


def volumes_of(counts: Iterable[HourCounts], window: Window, unknown: Iterable[Window] = ()) -> HourVolumes:
    """Return the sum of ``counts`` for the hours that begin in ``window``."""
    total: dict[str, dict[str, tuple[int, int]]] = {}
    first, last = hour_key(window.start), window.end
    for one in counts:
        add_counts(total, {hour: topics for hour, topics in one.items() if hour >= first})
    by_hour = {
        hour: dict(zip(topics, map(Volume._make, topics.values()), strict=True))
        for hour, topics in ((parse_hour(key), topics) for key, topics in total.items())
        if window.start <= hour < last
    }
    return HourVolumes(by_hour, tuple(one for one in unknown if one.overlaps(window)))
