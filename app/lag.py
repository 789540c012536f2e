"""How long the oldest message has waited for a stream."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from connectors.pubsub.client import PubSub
from connectors.pubsub.stats import read_stats
from inventory.retention import SILENT_SECONDS, backlog_of
from model.errors import RefeedError
from model.stream_record import StreamRecord


def read_lag(open_pubsub: Callable[[], PubSub], record: StreamRecord, status: Mapping[str, Any]) -> float | None:
    """Return the age of the oldest message that waits for a stream, None where nobody knows."""
    try:
        pubsub = open_pubsub()
        stats = read_stats(pubsub.channel, pubsub.project)
    except RefeedError:
        return None
    # A process that hangs goes on showing what it measured last.
    is_heard = time.time() - float(status.get("at") or 0.0) <= SILENT_SECONDS
    found = backlog_of(record.kind, status, stats, is_heard=is_heard)
    return None if found is None else found.oldest_unacked_seconds
