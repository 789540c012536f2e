"""A collector's figures for Prometheus: events and bytes taken, answers by topic and status."""

from collections import defaultdict
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest


class Figures:
    """The figures of one collector; a topic that is on no list, or not there, counts as ``none``."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._answers = self._counter("answers", "Number of HTTP answers, by topic and status.", "topic", "status")
        self._events = self._counter(
            "events",
            "Number of accepted events. The collector stores each event safely before it answers.",
            "topic",
        )
        self._bytes = self._counter(
            "bytes", "Number of bytes in the accepted events, including their attributes.", "topic"
        )
        self._unread = self._counter(
            "unread_requests",
            "Number of requests for a topic without a subscription. The collector refuses these requests, "
            "except with --allow-unread.",
            "topic",
        )
        self._waiting = Gauge(
            "refeed_collector_waiting_events",
            "Number of events in the queue that are not published yet.",
            ["topic"],
            registry=self._registry,
        )
        # Counted here and handed to Prometheus' counters when they are rendered: each of them takes a lock.
        self._tally: dict[tuple[Counter, tuple[str, ...]], int] = defaultdict(int)

    def count_unread(self, topic: str) -> None:
        """Count a request for a topic that nothing subscribes to."""
        self._tally[self._unread, (topic,)] += 1

    def count_answer(self, topic: str, status: int) -> None:
        """Count one answer."""
        self._tally[self._answers, (topic, str(status))] += 1

    def count_events(self, topic: str, events: int, size: int) -> None:
        """Count events that are durable."""
        self._tally[self._events, (topic,)] += events
        self._tally[self._bytes, (topic,)] += size

    def render(self, waiting: Mapping[str, int]) -> bytes:
        """Return all figures in Prometheus' text format; ``waiting`` are a queue's events, by topic."""
        for (counter, labels), number in self._tally.items():
            counter.labels(*labels).inc(number)
        self._tally.clear()
        for topic, events in waiting.items():
            self._waiting.labels(topic).set(events)
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"refeed_collector_{name}", text, labels, registry=self._registry)
