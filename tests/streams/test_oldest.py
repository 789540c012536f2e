from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from connectors.pubsub.client import SubscriptionInfo
from model.errors import MonitoringMissingError
from streams import oldest as oldest_module
from streams.oldest import find_oldest, read_monitored_ages

LOCAL = "127.0.0.1:1"


def subscription(name: str, *, retention_seconds: int = 3600) -> SubscriptionInfo:
    return SubscriptionInfo(name, "orders", "", 10, retention_seconds=retention_seconds)


@pytest.fixture
def age(monkeypatch):
    """Return how old the oldest message is, where Pub/Sub tells ``stats`` and Cloud Monitoring ``monitored``."""

    def find(subscriptions, *, stats, monitored=None, address=LOCAL) -> float:
        monkeypatch.setattr(oldest_module, "read_stats", lambda _: stats)
        monkeypatch.setattr(oldest_module, "read_monitored_ages", lambda *_: monitored or {})
        found = find_oldest(SimpleNamespace(channel=None, project="p"), subscriptions, address)
        return round((datetime.now(UTC) - found).total_seconds())

    return find


def local(**seconds: float):
    return {name: SimpleNamespace(messages=1, oldest_unacked_seconds=found) for name, found in seconds.items()}


def test_a_local_server_tells_the_oldest_of_the_subscriptions_that_are_asked_for(age):
    assert age([subscription("a"), subscription("b")], stats=local(a=30.0, b=90.0, other=5000.0)) == 90


def test_nothing_is_old_where_nothing_waits_or_nothing_is_read(age):
    assert age([subscription("a")], stats=local(a=0.0)) == 0
    assert age([], stats=local(other=50.0)) == 0


def test_google_tells_it_by_monitoring_and_a_subscription_without_a_sample_counts_as_it_keeps_messages(age):
    monitored = {"a": timedelta(seconds=700)}
    assert age([subscription("a")], stats=None, monitored=monitored, address=None) == 700
    both = [subscription("a"), subscription("b", retention_seconds=86_400)]
    assert age(both, stats=None, monitored=monitored, address=None) == 86_400


def test_an_emulator_that_tells_nothing_is_not_asked_of_monitoring(age):
    assert age([subscription("a")], stats=None, monitored={"a": timedelta(0)}) == 3600


class Backlogs:
    def __init__(self, ages: dict[str, float]) -> None:
        self.ages = ages
        self.is_closed = False

    def read_ages(self, names):
        return {name: age for name, age in self.ages.items() if name in names}

    def close(self) -> None:
        self.is_closed = True


def test_a_sample_may_be_minutes_old_and_what_came_back_since_then_is_not_in_it():
    backlogs = Backlogs({"a": 50.0, "other": 1.0})
    assert read_monitored_ages(["a", "b"], lambda: backlogs) == {"a": timedelta(minutes=10, seconds=50)}
    assert backlogs.is_closed


def test_where_monitoring_refuses_nothing_is_known():
    def refuse():
        raise MonitoringMissingError

    assert read_monitored_ages(["a"], refuse) == {}
