"""A collector's figures for Prometheus: events and bytes taken, answers by topic and status."""

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest


class Figures:
    """The figures of one collector; a topic that is on no list counts as ``none``."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._answers = self._counter("answers", "Answers by topic and HTTP status.", "topic", "status")
        self._events = self._counter("events", "Events that were durable when they were answered.", "topic")
        self._bytes = self._counter("bytes", "Bytes of these events, with their attributes.", "topic")
        self._waiting = Gauge(
            "refeed_collector_waiting_events",
            "Events in the queue that Pub/Sub does not have yet.",
            ["topic"],
            registry=self._registry,
        )
        # A label's counter is found once: to look it up costs as much as to count.
        self._children: dict[tuple[Any, ...], Any] = {}

    def count_answer(self, topic: str, status: int) -> None:
        """Count one answer."""
        self._child(self._answers, topic, str(status)).inc()

    def count_events(self, topic: str, events: int, size: int) -> None:
        """Count events that are durable."""
        self._child(self._events, topic).inc(events)
        self._child(self._bytes, topic).inc(size)

    def render(self, waiting: Mapping[str, int]) -> bytes:
        """Return all figures in Prometheus' text format; ``waiting`` are a queue's events, by topic."""
        for topic, events in waiting.items():
            self._waiting.labels(topic).set(events)
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"refeed_collector_{name}", text, labels, registry=self._registry)

    def _child(self, counter: Counter, *labels: str) -> Any:
        key = (counter, *labels)
        found = self._children.get(key)
        if found is None:
            found = self._children[key] = counter.labels(*labels)
        return found
