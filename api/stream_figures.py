"""The streams' figures for Prometheus; one that nobody knows is absent, never 0."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from inventory.streams import ENDED, StreamOut
from model.stream_record import StreamState

# A caller that asks more often gets the same figures: anybody may ask, and each answer counts every job there is,
# and asks Pub/Sub about every stream.
_KEEP_SECONDS: Final = 5.0
_DOWN: Final = ENDED | {StreamState.NOT_REPORTING}
_ENDED_ON_PURPOSE: Final = ENDED - {StreamState.FAILED}
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class _Figure:
    """One figure of a stream; ``read`` returns None where it is unknown."""

    name: str
    help: str
    read: Callable[[StreamOut], float | None]
    is_counter: bool = False

    def family(self, streams: Sequence[StreamOut]) -> Metric:
        """Return the figure of every stream of which it is known."""
        make = CounterMetricFamily if self.is_counter else GaugeMetricFamily
        family = make(self.name, self.help, labels=["stream"])
        for stream in streams:
            value = self.read(stream)
            if value is not None:
                family.add_metric([stream.name], value)
        return family


def _total(name: str, text: str) -> _Figure:
    """Return the figure of one of the stream's totals, which begin at 0 with its process."""
    return _Figure(f"refeed_stream_{name}", text, lambda stream: stream.totals.get(name), is_counter=True)


FIGURES: Final = (
    _Figure(
        "refeed_stream_up",
        "The value is 1 while the stream reports and has not ended. Otherwise, it is 0.",
        lambda stream: float(stream.state not in _DOWN),
    ),
    _Figure(
        "refeed_stream_wanted",
        "The value is 0 after somebody has drained or cancelled the stream. Otherwise, it is 1.",
        lambda stream: float(stream.state not in _ENDED_ON_PURPOSE),
    ),
    _Figure(
        "refeed_stream_report_age_seconds",
        "Number of seconds since the stream's last report. A stream reports every five seconds.",
        lambda stream: stream.seconds_since_report,
    ),
    _Figure(
        "refeed_stream_messages_per_second",
        "Number of messages that the stream archives or stages per second.",
        lambda stream: (stream.rates or {}).get("messages"),
    ),
    _Figure(
        "refeed_stream_rate_window_seconds",
        "The period, in seconds, over which refeed_stream_messages_per_second was measured.",
        lambda stream: stream.over_seconds,
    ),
    _Figure(
        "refeed_stream_lag_seconds",
        "Age of the oldest pending message in the stream's subscriptions, in seconds.",
        lambda stream: stream.lag_seconds,
    ),
    _Figure(
        "refeed_stream_lag_measured_timestamp_seconds",
        "The time at which refeed_stream_lag_seconds was measured.",
        lambda stream: None if stream.lag_measured_at is None else stream.lag_measured_at.timestamp(),
    ),
    _Figure(
        "refeed_stream_backlog_messages",
        "Number of pending messages in the stream's subscriptions.",
        lambda stream: stream.backlog_messages,
    ),
    _Figure(
        "refeed_stream_batch_seconds",
        "How long the stream's latest batch with messages took, up to its commit and acknowledgement, in seconds.",
        lambda stream: stream.batch_seconds,
    ),
    _total("messages", "Number of messages that the stream has archived or staged, including dead letters."),
    _total("dead_letters", "Number of the stream's messages that became dead letters."),
    _total(
        "replays",
        "Number of replayed messages that the backup received. The backup did not archive them.",
    ),
    _total("forged_replays", "Number of messages with a replay token that no backfill published."),
    _total(
        "redelivered", "Number of messages that Pub/Sub delivered again, and that the stream did not write again."
    ),
    _total("unknown_fields", "Number of fields in messages that are not in the source's schema."),
    _total("faults", "Number of failed Pulls and acknowledgements. The stream tries these calls again."),
)


class ScrapedCollector(Collector, Generic[Read]):
    """Reads what its figures are made of at each scrape, at most every few seconds."""

    def __init__(self, read: Callable[[], Read]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._found: tuple[float, Read] | None = None

    def describe(self) -> list[Metric]:
        """Return nothing: the service is not open yet when this is called."""
        return []

    def read(self) -> Read:
        """Return what was read, five seconds ago at most."""
        with self._lock:
            now = time.monotonic()
            if self._found is None or now - self._found[0] >= _KEEP_SECONDS:
                self._found = (now, self._read())
            return self._found[1]


class StreamFigures(ScrapedCollector[Sequence[StreamOut]]):
    """The figures of all streams but those that are over."""

    def collect(self) -> Iterator[Metric]:
        """Yield the figures."""
        # A group that left the registry must not keep an alarm ringing for ever.
        streams = [stream for stream in self.read() if not stream.is_over]
        yield from (figure.family(streams) for figure in FIGURES)
