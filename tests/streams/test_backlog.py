"""A stream's lag at Google, and how old its oldest message may be: what Cloud Monitoring has, or nothing."""

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from connectors.pubsub.backlog import BacklogSample, MonitoredBacklogs
from connectors.pubsub.client import SubscriptionInfo
from model.errors import MonitoringMissingError, PubSubError, RefeedError
from streams import backlog as backlog_module
from streams.backlog import find_oldest, measuring, read_monitored_ages
from streams.status import StatusFile
from tests.waiting import wait_until

LOCAL = "127.0.0.1:1"
SAMPLE = BacklogSample(12.0, 40, 1_700_000_000.0)


@pytest.fixture
def logged(monkeypatch):
    said = []

    class Log:
        def warning(self, _event, *, code, **_):
            said.append(code)

    monkeypatch.setattr(backlog_module, "_log", Log())
    monkeypatch.setattr(MonitoredBacklogs, "every_seconds", 0.01)
    monkeypatch.setattr(MonitoredBacklogs, "open", lambda project: object.__new__(MonitoredBacklogs))
    monkeypatch.setattr(MonitoredBacklogs, "close", lambda _: None)
    yield said
    assert "lag" not in {thread.name for thread in threading.enumerate()}


def test_the_latest_sample_goes_with_the_next_status_and_is_no_sign_of_life(tmp_path, logged):
    status = StatusFile(tmp_path / "status.json")
    status.write(state="running")
    written = status.fields()["at"]
    with measuring(status, "shop", None, lambda _: SAMPLE):
        wait_until(lambda: status.fields().get("backlog") is not None, "the backlog is measured")
    assert status.fields()["at"] == written
    status.write()
    found = StatusFile.read(tmp_path / "status.json")
    assert found["backlog"] == {"oldest_unacked_seconds": 12.0, "messages": 40, "sampled_at": 1_700_000_000.0}


def test_what_can_t_be_measured_any_more_is_unknown_and_the_reason_is_said_once(tmp_path, logged):
    status = StatusFile(tmp_path / "status.json")
    reads = []

    def read(_):
        reads.append(1)
        if len(reads) > 2:
            raise PubSubError("Cloud Monitoring refused: 403")
        return SAMPLE

    with measuring(status, "shop", None, read):
        wait_until(lambda: len(reads) > 5, "the backlog is measured")
    assert status.fields()["backlog"] is None
    assert logged == [PubSubError.code]


def test_a_client_that_is_not_installed_leaves_the_lag_unknown(tmp_path, logged, monkeypatch):
    tried = []

    def fail(_project):
        tried.append(1)
        raise MonitoringMissingError

    monkeypatch.setattr(MonitoredBacklogs, "open", fail)
    status = StatusFile(tmp_path / "status.json")
    with measuring(status, "shop", None, lambda _: SAMPLE):
        wait_until(lambda: len(tried) > 2, "the backlog is measured")
    assert status.fields()["backlog"] is None
    assert logged == ["monitoring_missing"]
    assert issubclass(MonitoringMissingError, RefeedError)


def test_a_local_server_is_not_sampled_because_the_api_asks_it_itself(tmp_path, logged):
    status = StatusFile(tmp_path / "status.json")
    with measuring(status, "shop", "127.0.0.1:8085", lambda _: SAMPLE):
        assert "lag" not in {thread.name for thread in threading.enumerate()}
    assert "backlog" not in status.fields()


def subscription(name: str, *, retention_seconds: int = 3600) -> SubscriptionInfo:
    return SubscriptionInfo(name, "orders", "", 10, retention_seconds=retention_seconds)


@pytest.fixture
def age(monkeypatch):
    """Return how old the oldest message is, where Pub/Sub tells ``stats`` and Cloud Monitoring ``monitored``."""

    def find(subscriptions, *, stats, monitored=None, address=LOCAL):
        monkeypatch.setattr(backlog_module, "read_stats", lambda *_: stats)
        monkeypatch.setattr(backlog_module, "read_monitored_ages", lambda *_: monitored or {})
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


def test_a_topic_may_keep_the_messages_of_its_subscriptions_for_longer(age):
    kept = replace(subscription("a"), topic_retention_seconds=86_400)
    assert age([kept], stats=None) == 86_400
    assert age([replace(kept, topic_retention_seconds=60)], stats=None) == 3600


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
