"""What there is to replay: topics, how much of them lies where, and the streams that bring it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from backfill.reach import receives_replay
from backfill.selection import render_time
from connectors.pubsub.client import SubscriptionInfo
from connectors.pubsub.stats import SubscriptionStats
from jobs.stream.status import StatusFile
from model.errors import RequestInvalidError
from model.message import (
    BACKUP_SUBSCRIPTION_PREFIX,
    REPLAY_ATTRIBUTE,
    backup_subscription_id,
    parse_resource_id,
    replay_token,
)
from model.window import Window
from warehouse.counts import STEPS, Counts, Step, TopicVolume, floor

MAX_BUCKETS: Final = 10_000
# A subscription keeps messages for seven days: what came in before says nothing of how a backup is doing.
VOLUME_DAYS: Final = 7
# A stream writes its status every five seconds, also when nothing comes.
_SILENT_SECONDS: Final = 15.0
# A stream's own words, and the states that the API shows.
_STATES: Final = {
    "starting": "STARTING",
    "running": "RUNNING",
    "waiting": "WAITING",
    "draining": "DRAINING",
    "stopped": "DRAINED",
}
# What the backup's folder among the home's streams is called.
BACKUP_STREAM: Final = "backup"
_NOT_REPORTING: Final = "NOT_REPORTING"


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic: whether it is backed up, the backup's lag, and its recent volume.

    ``messages`` and ``stored_bytes`` are those of the last seven days, bytes as compressed and shared out by rows
    where a file holds several topics; BigQuery does not tell them. ``freshness_seconds`` is the age of the newest
    archived message by its ingestion. None is unknown.
    """

    topic: str
    is_attached: bool
    subscription: str | None
    excludes_replays: bool | None
    backlog_messages: int | None
    lag_seconds: float | None
    last_publish_time: str | None
    last_ingest_time: str | None
    freshness_seconds: float | None
    messages: int | None
    stored_bytes: int | None

    def to_json(self) -> dict[str, Any]:
        """Return it in the API's shape."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many messages of a topic came in, by minute, hour or day of ingestion; empty buckets are there too.

    A bucket that the window cuts counts what is inside of the window only.
    """

    topic: str
    step: Step
    window: dict[str, str | None]
    messages: int
    buckets: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """Return it in the API's shape."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream of this home, as it last reported; ``state`` is NOT_REPORTING 15 s after a stream's last report.

    ``rates`` are the totals' growth a second over the last ``over_seconds``, and None unless it runs; lag is that
    of its worst subscription, and ``batch_seconds`` what its latest batch with messages took to be committed and
    acknowledged. ``alerts`` are a pipeline's, of sources that wait for a person. None is unknown.
    """

    name: str
    state: str
    pid: int | None
    started_at: str | None
    reported_at: str | None
    seconds_since_report: float | None
    totals: dict[str, float]
    rates: dict[str, float] | None
    over_seconds: float | None
    batch_seconds: float | None
    backlog_messages: int | None
    lag_seconds: float | None
    alerts: list[dict[str, str]] | None
    error: dict[str, str] | None

    def to_json(self) -> dict[str, Any]:
        """Return it in the API's shape."""
        return asdict(self)


class Catalog:
    """Tells what is there; ``secret`` is the deployment's, by which replays are known."""

    def __init__(self, counts: Counts, *, home: Path, secret: str) -> None:
        self._counts = counts
        self._home = home
        self._secret = secret

    def list_topics(
        self,
        topics: Sequence[str],
        subscriptions: Sequence[SubscriptionInfo],
        stats: Mapping[str, SubscriptionStats] | None,
    ) -> list[TopicInfo]:
        """Return every topic that Pub/Sub has or the archive has lately heard of, by name.

        Raises:
            WarehouseError, QueryError: the archive can't be read.
        """
        now = datetime.now(UTC)
        window = Window(now - timedelta(days=VOLUME_DAYS), now + timedelta(days=1))
        volumes = self._counts.volumes(window)
        by_id = {subscription.id: subscription for subscription in subscriptions}
        return [
            self._topic(topic, by_id.get(backup_subscription_id(topic)), volumes.get(topic), stats, now)
            for topic in sorted({*topics, *volumes})
        ]

    def histogram(self, topic: str, window: Window, step: Step) -> Histogram:
        """Count the topic's messages by their ingestion, with one query that never reads a payload.

        Raises:
            InvalidNameError: that is no topic's id.
            RequestInvalidError: the window has more than 10,000 buckets.
            WarehouseError, QueryError: the archive can't be read.
        """
        parse_resource_id(topic)
        starts = _starts(window, step)
        found = self._counts.histogram(topic, window, step)
        return Histogram(
            topic=topic,
            step=step,
            window={"from": render_time(window.start), "to": render_time(window.end)},
            messages=sum(found.values()),
            buckets=[{"start": render_time(start), "messages": found.get(start, 0)} for start in starts],
        )

    def list_streams(self, stats: Mapping[str, SubscriptionStats] | None) -> list[StreamInfo]:
        """Return every stream of this home that has ever said how it is, by name."""
        return read_streams(self._home, stats)

    def _topic(
        self,
        topic: str,
        subscription: SubscriptionInfo | None,
        volume: TopicVolume | None,
        stats: Mapping[str, SubscriptionStats] | None,
        now: datetime,
    ) -> TopicInfo:
        waiting = None if subscription is None else (stats or {}).get(subscription.id)
        seen = volume or TopicVolume(stored_bytes=0)
        token = {REPLAY_ATTRIBUTE: replay_token(self._secret, topic)}
        age = None if seen.last_ingest_time is None else (now - seen.last_ingest_time).total_seconds()
        return TopicInfo(
            topic=topic,
            is_attached=subscription is not None,
            subscription=None if subscription is None else subscription.id,
            excludes_replays=None if subscription is None else not receives_replay(subscription.filter, token),
            backlog_messages=None if waiting is None else waiting.messages,
            lag_seconds=None if waiting is None else waiting.oldest_unacked_seconds,
            last_publish_time=render_time(seen.last_publish_time),
            last_ingest_time=render_time(seen.last_ingest_time),
            freshness_seconds=None if age is None else round(max(0.0, age), 3),
            messages=seen.messages,
            stored_bytes=seen.stored_bytes,
        )


def read_streams(home: Path, stats: Mapping[str, SubscriptionStats] | None) -> list[StreamInfo]:
    """Return every stream of ``home`` that has ever said how it is, by name; None for unknown lags."""
    found = []
    for path in sorted((home / "streams").glob("*/status.json")):
        status = StatusFile.read(path)
        if status is not None:
            found.append(_stream(path.parent.name, status, stats))
    return found


def _starts(window: Window, step: Step) -> list[datetime]:
    width = STEPS[step]
    start = floor(window.start, step)
    count = -(-(window.end - start) // width)
    if count > MAX_BUCKETS:
        message = f"The window has {count:,} buckets of a {step}; {MAX_BUCKETS:,} are allowed."
        raise RequestInvalidError(
            message, errors=[{"code": "too_many_buckets", "message": message, "pointer": "/step"}]
        )
    return [start + width * number for number in range(count)]


def _stream(name: str, status: Mapping[str, Any], stats: Mapping[str, SubscriptionStats] | None) -> StreamInfo:
    reported = status.get("at")
    silence = None
    if isinstance(reported, int | float):
        silence = max(0.0, datetime.now(UTC).timestamp() - reported)
    state = _STATES.get(str(status.get("state")), _NOT_REPORTING)
    # Whether its process lives can't be asked here: it may run in another pod.
    if state != _STATES["stopped"] and (silence is None or silence > _SILENT_SECONDS):
        state = _NOT_REPORTING
    # Nothing that stands still has a rate, whatever it wrote last.
    is_running, rates = state == _STATES["running"], _numbers(status.get("rates"))
    own = None if stats is None else _stats_of(name, status, stats)
    return StreamInfo(
        name=name,
        state=state,
        pid=status.get("pid"),
        started_at=_time(status.get("started_at")),
        reported_at=_time(reported),
        seconds_since_report=None if silence is None else round(silence, 3),
        totals=_numbers(status.get("totals")),
        rates=rates if is_running and rates else None,
        over_seconds=(status.get("rates_over_seconds") or None) if is_running and rates else None,
        batch_seconds=_number(status.get("batch_seconds")),
        backlog_messages=sum(one.messages for one in own) if own else None,
        lag_seconds=max(one.oldest_unacked_seconds for one in own) if own else None,
        alerts=_alerts(status.get("alerts")),
        error=status.get("error"),
    )


def _alerts(found: Any) -> list[dict[str, str]] | None:
    """Return what a pipeline's stream says is wrong with its sources, without the details."""
    if not isinstance(found, list):
        return None
    return [{name: str(alert.get(name, "")) for name in ("about", "code", "message")} for alert in found]


def _number(found: Any) -> float | None:
    return float(found) if isinstance(found, int | float) else None


def _numbers(found: Any) -> dict[str, float]:
    """Return the numbers of what a stream wrote; another version of it may have written something else."""
    return {str(k): v for k, v in found.items() if isinstance(v, int | float)} if isinstance(found, dict) else {}


def _stats_of(
    name: str, status: Mapping[str, Any], stats: Mapping[str, SubscriptionStats]
) -> list[SubscriptionStats]:
    """Return the stats of the stream's subscriptions: those it names, else every backup's for the backup."""
    named = status.get("subscriptions")
    if named is None and name == BACKUP_STREAM:
        named = [name for name in stats if name.startswith(BACKUP_SUBSCRIPTION_PREFIX)]
    return [stats[subscription] for subscription in named or () if subscription in stats]


def _time(seconds: Any) -> str | None:
    return render_time(datetime.fromtimestamp(seconds, UTC)) if isinstance(seconds, int | float) else None
