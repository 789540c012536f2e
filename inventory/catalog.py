"""What there is to replay: topics, how much of them lies where, and the streams that bring it."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from backfill.plan.plan import TimeWindow
from backfill.plan.reach import PlanSubscription, render_subscriptions
from connectors.pubsub.client import SubscriptionInfo
from connectors.pubsub.stats import SubscriptionStats
from inventory.failures import COUNTED_WITHIN
from inventory.streams import InstanceTotal, StreamOut, read_instance_totals, read_streams
from model.errors import RequestInvalidError
from model.event import HistoryEvent
from model.message import (
    REPLAY_ATTRIBUTE,
    backup_subscription_id,
    parse_resource_id,
    replay_token,
)
from model.stream import StoredReport
from model.stream_record import StreamRecord
from model.window import Window
from warehouse.counts import STEPS, Counts, Step, TopicVolume, floor

MAX_BUCKETS: Final = 10_000
# The longest window that is counted by the hours that are kept, and not by a query.
_MOST_HOURS: Final = timedelta(days=31)
# Volumes of hours that ended this long ago no longer change.
_SETTLED: Final = timedelta(hours=2)
# A subscription keeps messages for seven days: what came in before shows nothing about the backup's state.
VOLUME_DAYS: Final = 7


class TopicSubscription(PlanSubscription):
    """A subscription of a topic, whether replayed messages reach it, and what waits for it."""

    backlog_messages: int | None = Field(
        default=None, description="Number of pending messages in the subscription. Null means unknown."
    )


class TopicOut(BaseModel):
    """A topic: whether it is backed up, the backup's lag, and the volume of the last seven days.

    Null is unknown.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "topic": "orders",
                    "is_attached": True,
                    "subscription": "refeed-backup.orders",
                    "excludes_replays": True,
                    "backlog_messages": 12,
                    "lag_seconds": 0.8,
                    "last_publish_time": "2026-01-03T03:00:00.000000Z",
                    "last_ingest_time": "2026-01-03T03:00:01.000000Z",
                    "freshness_seconds": 2.5,
                    "messages": 840_000,
                    "stored_bytes": 310_000_000,
                    "messages_per_second": 1.4,
                    "subscriptions": [
                        {
                            "name": "refeed-backup.orders",
                            "filter": 'NOT attributes.refeed_replay = "<token>"',
                            "receives_replay": False,
                            "excluded_by": "backup",
                            "backlog_messages": 12,
                        },
                        {
                            "name": "pipeline-orders",
                            "filter": "",
                            "receives_replay": True,
                            "excluded_by": None,
                            "backlog_messages": 0,
                        },
                    ],
                }
            ]
        }
    )

    topic: str = Field(description="The topic.")
    is_attached: bool = Field(description="Whether the topic is backed up.")
    subscription: str | None = Field(description="The backup subscription of the topic.")
    excludes_replays: bool | None = Field(
        description="Whether the filter of the backup subscription excludes replays."
    )
    backlog_messages: int | None = Field(description="Number of pending messages in the backup subscription.")
    lag_seconds: float | None = Field(description="Age of the oldest message that is not archived yet.")
    last_publish_time: datetime | None = Field(description="The newest `publish_time` in the archive.")
    last_ingest_time: datetime | None = Field(description="The newest `ingest_time` in the archive.")
    freshness_seconds: float | None = Field(description="Age of the newest archived message.")
    messages: int | None = Field(description="Number of messages that were archived in the last seven days.")
    stored_bytes: int | None = Field(
        description="Compressed bytes of the topic in the archive. If a file contains several topics, its "
        "bytes are divided in proportion to their messages. Null on BigQuery."
    )
    messages_per_second: float | None = Field(
        description="Mean number of messages archived per second since the beginning of the previous hour."
    )
    subscriptions: list[TopicSubscription] = Field(
        description="The topic's subscriptions in its own project, sorted by name."
    )


class HistogramBucket(BaseModel):
    """The messages that were archived in one interval of the histogram."""

    start: datetime = Field(description="Start of the step.")
    messages: int = Field(description="Number of messages.")


class HistogramOut(BaseModel):
    """The archived messages of a topic by minute, hour or day of ingestion."""

    topic: str = Field(description="The topic.")
    step: Step = Field(description="The length of a bucket.")
    window: TimeWindow = Field(description="The window in which messages are counted.")
    messages: int = Field(description="Number of all messages in the window.")
    buckets: list[HistogramBucket] = Field(
        description="One bucket for each minute, hour or day of the window, also without messages. If the window "
        "begins or ends within a bucket, the bucket counts only the messages in the window."
    )


class Catalog:
    """Reads what is there; ``secret`` is the deployment's, by which replays are known.

    ``reports`` are those that streams have sent to the store, ``groups`` the registry's, None where they are
    unknown. ``records`` are the streams that were launched, ``events`` their histories since a time, the newest
    first.
    """

    def __init__(
        self,
        counts: Counts,
        *,
        home: Path,
        secret: str,
        reports: Callable[[], Sequence[StoredReport]] = tuple,
        groups: Callable[[], frozenset[str] | None] = lambda: None,
        records: Callable[[], Sequence[StreamRecord]] = tuple,
        events: Callable[[datetime], Sequence[HistoryEvent]] = lambda _: (),
    ) -> None:
        self._counts = counts
        self._home = home
        self._secret = secret
        self._reports = reports
        self._groups = groups
        self._records = records
        self._events = events

    def list_topics(
        self,
        topics: Sequence[str],
        subscriptions: Sequence[SubscriptionInfo],
        stats: Mapping[str, SubscriptionStats] | None,
    ) -> list[TopicOut]:
        """Return every topic that Pub/Sub has or the archive has lately heard of, by name.

        Raises:
            WarehouseError, QueryError: the archive can't be read.
        """
        now = datetime.now(UTC)
        window = Window(now - timedelta(days=VOLUME_DAYS), now + timedelta(days=1))
        volumes = self._counts.volumes(window)
        lately = Window(floor(now, "hour") - STEPS["hour"], now)
        hours = self._counts.hours(lately)
        by_topic: dict[str, list[SubscriptionInfo]] = {}
        for subscription in subscriptions:
            by_topic.setdefault(subscription.topic, []).append(subscription)
        found = []
        for topic in sorted({*topics, *volumes}):
            counted = sum(each[topic].messages for each in hours.by_hour.values() if topic in each)
            rate = None if hours.unknown else round(counted / lately.width.total_seconds(), 6)
            found.append(self._topic(topic, by_topic.get(topic, []), volumes.get(topic), stats, now, rate=rate))
        return found

    def histogram(self, topic: str, window: Window, step: Step) -> HistogramOut:
        """Count the topic's messages by their ingestion, with one query that never reads a payload.

        Raises:
            InvalidNameError: that is no topic's id.
            RequestInvalidError: the window has more than 10,000 buckets.
            WarehouseError, QueryError: the archive can't be read.
        """
        parse_resource_id(topic)
        starts = _starts(window, step)
        found = self._read_hours(topic, window, step)
        if found is None:
            found = self._counts.histogram(topic, window, step)
        return HistogramOut(
            topic=topic,
            step=step,
            window=TimeWindow.of(window),
            messages=sum(found.values()),
            buckets=[HistogramBucket(start=start, messages=found.get(start, 0)) for start in starts],
        )

    def _read_hours(self, topic: str, window: Window, step: Step) -> dict[datetime, int] | None:
        """Return the histogram without a query; None where that would not be exact, or not be cheaper."""
        is_over = window.end <= datetime.now(UTC) - _SETTLED
        is_whole = all(floor(one, "hour") == one for one in (window.start, window.end))
        if step == "minute" or not (is_over and is_whole) or window.width > _MOST_HOURS:
            return None
        hours = self._counts.hours(window)
        if hours.unknown:
            return None
        found: dict[datetime, int] = {}
        for hour, topics in hours.by_hour.items():
            if topic in topics:
                found[floor(hour, step)] = found.get(floor(hour, step), 0) + topics[topic].messages
        return found

    def list_streams(
        self, stats: Mapping[str, SubscriptionStats] | None, retentions: Mapping[str, int] | None = None
    ) -> list[StreamOut]:
        """Return every stream that was launched, or has reported to this home or to the store, by name.

        ``retentions`` are the seconds that each subscription keeps messages for. None is unknown, as of ``stats``.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        return self._read_streams(self._records(), stats, retentions)

    def show_stream(
        self,
        record: StreamRecord,
        stats: Mapping[str, SubscriptionStats] | None,
        retentions: Mapping[str, int] | None = None,
    ) -> StreamOut:
        """Return a stream that was launched as :meth:`list_streams` would, but as this record has it.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        found = self._read_streams([record], stats, retentions)
        return next(stream for stream in found if stream.name == record.name)

    def _read_streams(
        self,
        records: Sequence[StreamRecord],
        stats: Mapping[str, SubscriptionStats] | None,
        retentions: Mapping[str, int] | None,
    ) -> list[StreamOut]:
        events = self._events(datetime.now(UTC) - COUNTED_WITHIN)
        places = (self._home, stats, self._reports(), self._groups(), records)
        return read_streams(*places, retentions=retentions, events=events)

    def read_instance_totals(self) -> dict[str, list[InstanceTotal]]:
        """Return the totals of each instance that has reported to this home or to the store, by stream.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        return read_instance_totals(self._home, self._reports())

    def _topic(
        self,
        topic: str,
        subscriptions: Sequence[SubscriptionInfo],
        volume: TopicVolume | None,
        stats: Mapping[str, SubscriptionStats] | None,
        now: datetime,
        *,
        rate: float | None,
    ) -> TopicOut:
        token = {REPLAY_ATTRIBUTE: replay_token(self._secret, topic)}
        shown = {each["name"]: each for each in render_subscriptions(subscriptions, token)}
        subscription = shown.get(backup_subscription_id(topic))
        if subscription is not None and subscription["excluded_by"] == "detached":
            # It gets no messages any more, so it backs nothing up.
            subscription = None
        waiting = None if subscription is None else (stats or {}).get(subscription["name"])
        seen = volume or TopicVolume(stored_bytes=0)
        age = None if seen.last_ingest_time is None else (now - seen.last_ingest_time).total_seconds()
        return TopicOut(
            topic=topic,
            is_attached=subscription is not None,
            subscription=None if subscription is None else subscription["name"],
            excludes_replays=None if subscription is None else not subscription["receives_replay"],
            backlog_messages=None if waiting is None else waiting.messages,
            lag_seconds=None if waiting is None else waiting.oldest_unacked_seconds,
            last_publish_time=seen.last_publish_time,
            last_ingest_time=seen.last_ingest_time,
            freshness_seconds=None if age is None else round(max(0.0, age), 3),
            messages=seen.messages,
            stored_bytes=seen.stored_bytes,
            messages_per_second=rate if rate or subscription is not None else None,
            subscriptions=[
                TopicSubscription(**each, backlog_messages=None if own is None else own.messages)
                for each in shown.values()
                for own in [(stats or {}).get(each["name"])]
            ],
        )


def _starts(window: Window, step: Step) -> list[datetime]:
    width = STEPS[step]
    start = floor(window.start, step)
    count = -(-(window.end - start) // width)
    if count > MAX_BUCKETS:
        message = f"The window has {count:,} steps of one {step}, but at most {MAX_BUCKETS:,} are allowed."
        raise RequestInvalidError.of("too_many_buckets", message, "/step")
    return [start + width * number for number in range(count)]
