"""What the catalog says of topics, their past and the streams, over a small archive and a local Pub/Sub."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from connectors.lake.archive import LakeArchive
from connectors.lake.query import QueryLimits
from connectors.pubsub.client import SubscriptionInfo
from connectors.pubsub.stats import SubscriptionStats
from inventory.catalog import Catalog
from inventory.streams import StreamAlert, StreamOwner
from model.message import backup_subscription_id, replay_filter, replay_token
from model.volume import HourVolumes, hour_key
from model.window import Window
from streams.status import StatusFile
from tests.archive import messages, write_commits
from tests.waiting import wait_until
from warehouse.counts import floor
from warehouse.lake.counts import LakeCounts
from warehouse.lake.warehouse import LakeWarehouse

PUBLISHED = datetime(2024, 3, 1, 10, tzinfo=UTC)


def rows(count):
    return messages(
        count, data=[b"x"] * count, publish_time=[PUBLISHED + timedelta(seconds=n) for n in range(count)]
    )


@pytest.fixture
def catalog(tmp_path, processes):
    limits = QueryLimits("500MB", tmp_path / "spill", seconds=60)
    place = LakeWarehouse(str(tmp_path / "lake"), "backup.messages", "backup.dead_letters", "day", "500MB")
    return Catalog(LakeCounts(place, processes, limits), home=tmp_path, secret="s3cret")


def fill(tmp_path, *commits):
    archive = LakeArchive(str(tmp_path / "lake"), "backup.messages")
    return write_commits(archive, *({t: rows(n) for t, n in topics.items()} for topics in commits))


def backup_of(topic, secret="s3cret"):
    return SubscriptionInfo(
        backup_subscription_id(topic), topic, replay_filter(replay_token(secret, topic)), ack_deadline_seconds=60
    )


def test_topics_say_what_is_backed_up_and_what_came_in(tmp_path, catalog):
    archive = fill(tmp_path, {"orders": 3}, {"members": 2, "orders": 6})
    stats = {backup_subscription_id("orders"): SubscriptionStats(7, 1.5)}
    members, orders, quiet = catalog.list_topics(["quiet", "orders"], [backup_of("orders")], stats)
    assert (orders.topic, orders.is_attached, orders.excludes_replays) == ("orders", True, True)
    assert (orders.messages, orders.backlog_messages, orders.lag_seconds) == (9, 7, 1.5)
    assert orders.last_publish_time == datetime(2024, 3, 1, 10, 0, 5, tzinfo=UTC)
    assert 0 <= orders.freshness_seconds < 600
    assert (members.topic, members.is_attached) == ("members", False)
    assert (members.messages, members.lag_seconds) == (2, None)
    assert orders.stored_bytes + members.stored_bytes == sum(file.size_bytes for file in archive.data_files())
    assert (quiet.messages, quiet.last_ingest_time, quiet.freshness_seconds) == (0, None, None)


def test_topics_say_who_subscribes_and_whom_a_replay_reaches(catalog):
    mine = SubscriptionInfo("mine", "orders", 'attributes.region = "eu"', ack_deadline_seconds=60)
    gone = SubscriptionInfo("gone", "orders", 'attributes.a = "b"', ack_deadline_seconds=60, detached=True)
    deaf = SubscriptionInfo("deaf", "orders", "NOT attributes:refeed_replay", ack_deadline_seconds=60)
    stats = {"mine": SubscriptionStats(7, 1.5)}
    orders, quiet = catalog.list_topics(["quiet", "orders"], [deaf, gone, mine, backup_of("orders")], stats)
    assert {
        each.name: each.backlog_messages for each in orders.subscriptions if each.name in {"mine", "deaf"}
    } == {
        "mine": 7,
        "deaf": None,
    }
    assert [each.model_dump(exclude={"backlog_messages"}) for each in orders.subscriptions] == [
        {
            "name": "deaf",
            "filter": "NOT attributes:refeed_replay",
            "receives_replay": False,
            "excluded_by": "filter",
        },
        {"name": "gone", "filter": 'attributes.a = "b"', "receives_replay": False, "excluded_by": "detached"},
        {"name": "mine", "filter": 'attributes.region = "eu"', "receives_replay": True, "excluded_by": None},
        {
            "name": "refeed-backup.orders",
            "filter": 'NOT attributes.refeed_replay = "<token>"',
            "receives_replay": False,
            "excluded_by": "backup",
        },
    ]
    assert quiet.subscriptions == []


def test_a_backup_that_pubsub_has_detached_backs_nothing_up(catalog):
    (orders,) = catalog.list_topics(["orders"], [replace(backup_of("orders"), detached=True)], None)
    assert (orders.is_attached, orders.subscription, orders.messages_per_second) == (False, None, None)
    assert orders.subscriptions[0].excluded_by == "detached"


def test_a_topic_s_rate_is_of_what_was_archived_since_the_hour_before(tmp_path, catalog, monkeypatch):
    fill(tmp_path, {"orders": 90, "rare": 1})
    began = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
    orders, quiet, rare = catalog.list_topics(["quiet"], [backup_of("quiet")], None)
    seconds = (datetime.now(UTC) - began).total_seconds()
    assert orders.messages_per_second == pytest.approx(90 / seconds, rel=0.05)
    assert rare.messages_per_second == pytest.approx(1 / seconds, rel=0.05)
    assert quiet.messages_per_second == 0
    # Of a topic without a backup nobody knows how much is published.
    assert [each.messages_per_second for each in catalog.list_topics(["quiet"], [], None)][1] is None
    unknown = HourVolumes({}, (Window(began, began + timedelta(hours=1)),))
    monkeypatch.setattr(LakeCounts, "hours", lambda *_: unknown)
    assert [each.messages_per_second for each in catalog.list_topics(["quiet"], [], None)] == [None] * 3


def test_hours_that_are_over_are_counted_without_a_query(tmp_path, catalog, monkeypatch):
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    came = (now - timedelta(days=1)).replace(hour=12)

    class Yesterday(datetime):
        @classmethod
        def now(cls, tz=None):
            return came

    # In one partition, whatever time it is now.
    with monkeypatch.context() as patch:
        patch.setattr("connectors.lake.files.datetime", Yesterday)
        fill(tmp_path, {"orders": 3, "members": 2})
    over = Window(now - timedelta(days=30), now - timedelta(hours=2))
    later = Window(came, now + timedelta(hours=2))
    asked = []
    query = LakeCounts.histogram

    def histogram(self, topic, window, step):
        asked.append(window)
        return query(self, topic, window, step)

    monkeypatch.setattr(LakeCounts, "histogram", histogram)
    monkeypatch.setattr("connectors.lake.volumes._read_end", lambda *_: count_of(came + timedelta(hours=1)))
    assert catalog.histogram("orders", over, "hour").messages == 30
    assert catalog.histogram("orders", over, "day").messages == 30
    assert catalog.histogram("members", over, "day").messages == 20
    assert asked == []
    assert catalog.histogram("orders", later, "hour").messages == 3
    assert catalog.histogram("orders", Window(over.start + timedelta(minutes=1), over.end), "hour").messages == 3
    assert len(asked) == 2


def count_of(hour):
    return {hour_key(hour): {"orders": (30, 30), "members": (20, 20)}}


def test_a_backup_whose_filter_lets_replays_through_is_told_apart(catalog):
    (other,) = catalog.list_topics(["orders"], [backup_of("orders", secret="another")], None)
    assert (other.is_attached, other.excludes_replays, other.backlog_messages) == (True, False, None)


def test_a_histogram_counts_one_topic_with_its_empty_buckets(tmp_path, catalog):
    fill(tmp_path, {"orders": 3, "members": 2}, {"orders": 4})
    now = datetime.now(UTC)
    window = Window(now - timedelta(hours=5), now + timedelta(minutes=1))
    by_hour = catalog.histogram("orders", window, "hour")
    by_day = catalog.histogram("orders", Window(now - timedelta(days=3), now + timedelta(minutes=1)), "day")
    assert (by_hour.messages, by_day.messages) == (7, 7)
    assert len(by_hour.buckets) in {6, 7}
    assert sum(bucket.messages for bucket in by_hour.buckets[:-2]) == 0
    assert by_hour.buckets[0].start == floor(now - timedelta(hours=5), "hour")
    assert sum(bucket.messages for bucket in by_day.buckets) == 7
    assert (
        catalog.histogram("orders", Window(now - timedelta(days=2), now - timedelta(days=1)), "hour").messages == 0
    )


def report(home, name="backup", *, note=None, **fields):
    path = home / "streams" / name / "status.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    status = StatusFile(path)
    status.note(**note or {})
    status.write(**fields)
    return status


def alter(home, **changes):
    """Change what the backup reports, and add seconds to when it did."""
    path = home / "streams" / "backup" / "status.json"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({**fields, "at": fields["at"] + changes.pop("later", 0), **changes}))


def test_a_stream_tells_its_state_rates_and_lag(tmp_path, catalog):
    status = report(tmp_path, state="running", totals={"messages": 0})
    time.sleep(0.01)
    status.write(state="running", totals={"messages": 500})
    report(tmp_path, "pipeline-orders", state="stopped")
    stats = {"refeed-backup.orders": SubscriptionStats(3, 2.0), "refeed-backup.members": SubscriptionStats(1, 9.0)}
    backup, pipeline = catalog.list_streams({**stats, "listener": SubscriptionStats(100, 100.0)})
    assert (backup.name, backup.state) == ("backup", "RUNNING")
    assert backup.owner == StreamOwner(host=socket.gethostname(), pid=os.getpid())
    assert backup.rates["messages"] == pytest.approx(500 / backup.over_seconds, rel=0.1)
    assert backup.seconds_since_report < 15
    assert (backup.backlog_messages, backup.lag_seconds, backup.error) == (4, 9.0, None)
    assert (pipeline.state, pipeline.rates, pipeline.over_seconds) == ("DRAINED", None, None)
    assert (pipeline.backlog_messages, pipeline.lag_seconds) == (None, None), "nobody measured them"
    assert catalog.list_streams(None)[0].lag_seconds is None
    assert json.loads(backup.model_dump_json())["started_at"] is not None


@pytest.mark.parametrize(
    ("state", "changes", "shown"),
    [
        *((state, {"later": -16}, "NOT_REPORTING") for state in ("starting", "running", "waiting", "draining")),
        # A clock that was set back would have a dead stream run until it is past the report again.
        ("running", {"later": 100}, "RUNNING"),
        ("running", {"later": 3600}, "NOT_REPORTING"),
        # In another pod, whatever its process number means here.
        ("running", {"pid": 2**22 + 1}, "RUNNING"),
        ("stopped", {"at": 1.0}, "DRAINED"),
    ],
)
def test_a_report_counts_for_fifteen_seconds_and_an_end_for_ever(tmp_path, catalog, state, changes, shown):
    report(tmp_path, state=state, totals={"messages": 5})
    alter(tmp_path, **changes)
    (stream,) = catalog.list_streams(None)
    assert (stream.state, stream.totals) == (shown, {"messages": 5})
    if changes.get("later", 0) < 0:
        assert stream.rates is None
        assert 16 <= stream.seconds_since_report < 60


def test_a_stream_whose_process_is_stopped_does_not_report_until_it_goes_on(tmp_path, catalog, monkeypatch):
    monkeypatch.setattr("inventory.streams.SILENT_SECONDS", 1.0)
    path = tmp_path / "streams" / "backup" / "status.json"
    path.parent.mkdir(parents=True)
    writes = (
        "import pathlib, sys, time\n"
        "from streams.status import StatusFile\n"
        "status = StatusFile(pathlib.Path(sys.argv[1]))\n"
        "for number in range(10_000): status.write(state='running', totals={'messages': number}); time.sleep(0.05)"
    )

    def wait_for(state):
        wait_until(lambda: [stream.state for stream in catalog.list_streams(None)] == [state], f"it is {state}")

    with subprocess.Popen([sys.executable, "-c", writes, str(path)]) as process:
        try:
            wait_for("RUNNING")
            process.send_signal(signal.SIGSTOP)
            wait_for("NOT_REPORTING")
            (stopped,) = catalog.list_streams(None)
            assert (stopped.rates, stopped.over_seconds) == (None, None)
            assert stopped.seconds_since_report >= 1
            process.send_signal(signal.SIGCONT)
            wait_for("RUNNING")
        finally:
            process.kill()


def test_a_pipeline_has_the_lag_of_its_own_subscriptions_and_its_alerts(tmp_path, catalog):
    alert = {"about": "orders", "code": "registry_invalid", "message": "No.", "since": 1.0, "details": {"x": 1}}
    subscriptions = ["refeed-pipeline.orders", "gone"]
    report(tmp_path, "pipeline-a", state="running", subscriptions=subscriptions, alerts=[alert])
    stats = {"refeed-pipeline.orders": SubscriptionStats(3, 2.0), "refeed-pipeline.b": SubscriptionStats(9, 9.0)}
    (stream,) = catalog.list_streams(stats)
    assert (stream.backlog_messages, stream.lag_seconds) == (3, 2.0)
    assert stream.alerts == [StreamAlert(about="orders", code="registry_invalid", message="No.")]


def test_at_google_the_lag_is_the_streams_own_sample_with_its_time_and_nobody_s_guess(tmp_path, catalog):
    backlog = {"oldest_unacked_seconds": 31.0, "messages": 7, "sampled_at": 1_767_225_600.0}
    status = report(tmp_path, note={"backlog": backlog}, state="running")
    (stream,) = catalog.list_streams(None)
    assert (stream.lag_seconds, stream.backlog_messages) == (31.0, 7)
    assert stream.lag_measured_at == datetime(2026, 1, 1, tzinfo=UTC)
    (local,) = catalog.list_streams({"refeed-backup.orders": SubscriptionStats(1, 2.0)})
    assert (local.lag_seconds, local.backlog_messages) == (2.0, 1), "a server that knows is asked"
    alter(tmp_path, at=1.0)
    (silent,) = catalog.list_streams(None)
    assert (silent.state, silent.lag_seconds, silent.lag_measured_at) == ("NOT_REPORTING", None, None)
    status.note(backlog=None)
    status.write(state="running")
    (unknown,) = catalog.list_streams(None)
    assert (unknown.state, unknown.lag_seconds, unknown.backlog_messages) == ("RUNNING", None, None)


def test_a_home_without_streams_or_archive_has_none(catalog):
    assert catalog.list_streams(None) == []
    assert catalog.list_topics([], [], None) == []
