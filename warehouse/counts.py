"""An archive's messages, counted by topic and by the time of their ingestion."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, Protocol

from model.volume import HourVolumes
from model.window import Window

Step = Literal["minute", "hour", "day"]
STEPS: Final[Mapping[Step, timedelta]] = {
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
}


@dataclass(frozen=True, slots=True)
class TopicVolume:
    """What came in of one topic: ``stored_bytes`` is None where they are not known for free."""

    messages: int = 0
    stored_bytes: int | None = None
    last_publish_time: datetime | None = None
    last_ingest_time: datetime | None = None

    def plus(
        self, messages: int, size: int, published: datetime | None, ingested: datetime | None
    ) -> "TopicVolume":
        """Return it with more messages."""
        return TopicVolume(
            self.messages + messages,
            (self.stored_bytes or 0) + size,
            max(filter(None, (self.last_publish_time, published)), default=None),
            max(filter(None, (self.last_ingest_time, ingested)), default=None),
        )


class Counts(Protocol):
    """Counts an archive's messages by their ingestion; safe to use from many threads."""

    def volumes(self, window: Window) -> dict[str, TopicVolume]:
        """Return what came in by topic."""

    def hours(self, window: Window) -> HourVolumes:
        """Return what came in by hour and topic, for the hours that begin in ``window``; no row is read."""

    def histogram(self, topic: str, window: Window, step: Step) -> dict[datetime, int]:
        """Return the topic's messages by the starts of the window's steps; empty ones may be left out."""


def floor(moment: datetime, step: Step) -> datetime:
    """Return the start, in UTC, of the step that ``moment`` is in.

    Example:
        >>> floor(datetime(2026, 1, 1, 10, 30, 15, tzinfo=UTC), "hour")
        datetime.datetime(2026, 1, 1, 10, 0, tzinfo=datetime.timezone.utc)
    """
    found = moment.astimezone(UTC).replace(second=0, microsecond=0)
    if step != "minute":
        found = found.replace(minute=0)
    return found.replace(hour=0) if step == "day" else found
