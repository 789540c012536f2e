"""How long the oldest message has waited, as updates and rollouts compare it."""

import time
from datetime import UTC, datetime
from types import SimpleNamespace

from app import lag
from connectors.pubsub.stats import SubscriptionStats
from model.stream_options import StreamKind
from model.stream_record import StreamRecord, StreamState, Wanted

STATS = {"refeed-backup.orders": SubscriptionStats(3, 4.0), "orders-reader": SubscriptionStats(9, 90.0)}


def record_of(kind):
    now = datetime.now(UTC)
    return StreamRecord(
        "stream", kind, None, {}, Wanted.RUNNING, 60.0, StreamState.RUNNING,
        1, 1, "in_1", "a", True, None, None, None, "ann", now, "ann", now, now,
    )  # fmt: skip


def status_of(*, seconds_ago=0.0):
    at = time.time() - seconds_ago
    return {"at": at, "backlog": {"oldest_unacked_seconds": 7.0, "sampled_at": at, "messages": None}}


def read(monkeypatch, kind, stats, **age):
    pubsub = SimpleNamespace(channel=object(), project="shop")
    monkeypatch.setattr(
        lag, "read_stats", lambda channel, project: {(pubsub.channel, "shop"): stats}[channel, project]
    )
    return lag.read_lag(lambda: pubsub, record_of(kind), status_of(**age))


def test_the_figures_of_a_server_that_tells_count(monkeypatch):
    assert read(monkeypatch, StreamKind.BACKUP, STATS, seconds_ago=100.0) == 4.0


def test_the_lag_of_a_kinesis_stream_is_what_it_measured_itself(monkeypatch):
    assert read(monkeypatch, StreamKind.KINESIS, STATS) == 7.0


def test_what_a_silent_process_measured_once_is_no_lag(monkeypatch):
    assert read(monkeypatch, StreamKind.BACKUP, None) == 7.0
    assert read(monkeypatch, StreamKind.BACKUP, None, seconds_ago=16.0) is None
