"""How long the oldest message has waited for a stream."""

from collections.abc import Callable, Mapping
from typing import Any

from connectors.pubsub.client import PubSub
from connectors.pubsub.stats import read_stats
from inventory.retention import parse_sample, subscriptions_of
from model.errors import RefeedError
from model.stream_record import StreamRecord


def read_lag(open_pubsub: Callable[[], PubSub], record: StreamRecord, status: Mapping[str, Any]) -> float | None:
    """Return the age of the oldest message that waits for a stream, None where nobody knows."""
    try:
        pubsub = open_pubsub()
        stats = read_stats(pubsub.channel, pubsub.project)
    except RefeedError:
        return None
    if stats is None:
        sample = parse_sample(status)
        return None if sample is None else sample.oldest_unacked_seconds
    own = subscriptions_of(record.kind, status, stats)
    return max((stats[name].oldest_unacked_seconds for name in own), default=None)
