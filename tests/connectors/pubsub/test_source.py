import json
import math
import pickle
import threading
import time
from dataclasses import replace

import pytest

from connectors.pubsub import pull, source
from connectors.pubsub.publish import Publisher
from connectors.pubsub.source import PullOptions, PullStreamReader
from model.errors import DescriptorError, StorageFullError
from model.message import Message


class Collector:
    """A task that returns the payloads, or fails with ``error``."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def __call__(self, batches):
        found = [row["data"].decode() for batch in batches for row in batch.rows.to_pylist()]
        if self.error:
            raise self.error
        return json.dumps(sorted(found)).encode() if found else None


@pytest.fixture
def options(server, tmp_path):
    return PullOptions(
        project="shop",
        emulator_host=server.emulator_host,
        prefix="refeed-backup.",
        slots=2,
        idle_seconds=0.5,
        linger_seconds=0.2,
        backlog_seconds=0.5,
        max_bytes=10**9,
        stop_file=str(tmp_path / "stop"),
    )


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(source, "_PULLERS", {})
    monkeypatch.setattr(source, "DISCOVERY_SECONDS", 0.0)
    yield
    for puller in source._PULLERS.values():
        puller.give_back()


def attach(pubsub, *topics: str) -> None:
    for topic in topics:
        pubsub.create_topic(topic)
        pubsub.attach_backup(topic, token="t", ack_deadline_seconds=10)


def read(reader: PullStreamReader) -> list[tuple]:
    """Read every slot on a copy of its own that was made before the driver used it, as Spark does."""
    copy = pickle.dumps(PullStreamReader(reader._options, reader._task))
    rows = [row for slot in reader.partitions({}, {}) for row in pickle.loads(copy).read(slot)]
    reader.stop()
    return rows


def test_nothing_attached_begins_no_batch_and_a_new_topic_begins_one(options, pubsub):
    reader = PullStreamReader(options, Collector())
    assert reader.latestOffset({"batch": 3}, None) == {"batch": 3}
    attach(pubsub, "orders")
    assert reader.latestOffset({"batch": 3}, None) == {"batch": 4}
    reader.stop()


def test_a_stop_file_begins_no_batch(options, pubsub, tmp_path):
    attach(pubsub, "orders")
    reader = PullStreamReader(options, Collector())
    (tmp_path / "stop").touch()
    assert reader.latestOffset({"batch": 3}, None) == {"batch": 3}


def test_a_held_reader_plans_batches_that_pull_nothing_and_then_a_short_first_one(
    options, pubsub, tmp_path, monkeypatch
):
    monkeypatch.setattr(source, "_WARM_SECONDS", 0.0)
    # Full Pulls of messages that waited for longer are a backlog, which a batch otherwise stays with.
    monkeypatch.setattr(source, "_FIRST_SECONDS", 0.0)
    monkeypatch.setattr(pull, "_QUICK_SECONDS", 60.0)
    attach(pubsub, "orders")
    Publisher(pubsub.channel, pubsub.topic_path("orders")).publish([Message(b"a")] * pull.MAX_PULL_MESSAGES)
    hold = tmp_path / "hold"
    hold.touch()
    # A batch so long that only its being the first can end it in time.
    options = replace(options, hold_file=str(hold), slots=1, linger_seconds=20, backlog_seconds=20)
    reader = PullStreamReader(options, Collector(ZeroDivisionError()))
    assert reader.latestOffset({"batch": 0}, None) == {"batch": 1}
    held = reader.partitions({}, {})
    assert [slot.targets for slot in held] == [None]
    assert [list(reader.read(slot)) for slot in held] == [[(0, None, None, "{}", math.inf)]]
    hold.unlink()
    assert reader.latestOffset({"batch": 1}, None) == {"batch": 2}
    first, second = reader.partitions({}, {}), reader.partitions({}, {})
    assert [(slot.is_first, len(slot.targets)) for slot in (*first, *second)] == [(True, 1), (False, 1)]
    task = PullStreamReader(options, Collector())
    began = time.monotonic()
    assert set(json.loads(next(task.read(first[0]))[1])) == {"a"}
    assert time.monotonic() - began < 10
    reader.stop()


def test_a_held_reader_goes_on_at_once_when_its_hold_ends_and_needs_no_plan_until_then(
    options, tmp_path, monkeypatch
):
    monkeypatch.setattr(source, "_WARM_SECONDS", 300.0)
    hold = tmp_path / "hold"
    hold.touch()
    options = replace(options, hold_file=str(hold), plan_file=str(tmp_path / "plan.json"))
    reader = PullStreamReader(options, Collector())
    release = threading.Timer(0.1, hold.unlink)
    release.daemon = True
    release.start()
    assert reader.latestOffset({"batch": 0}, None) == {"batch": 1}
    release.join()


def test_a_task_waits_for_no_message_of_its_own_once_another_task_of_its_batch_has_some(options, pubsub):
    attach(pubsub, "orders")
    Publisher(pubsub.channel, pubsub.topic_path("orders")).publish([Message(b"a")])
    reader = PullStreamReader(replace(options, idle_seconds=20), Collector())
    first, second = reader.partitions({}, {})
    assert json.loads(next(reader.read(first))[1]) == ["a"]
    began = time.monotonic()
    assert next(reader.read(second))[1] is None
    assert time.monotonic() - began < 10
    reader.stop()
    # The next batch has none as yet.
    reader = PullStreamReader(options, Collector())
    reader.partitions({}, {})
    began = time.monotonic()
    assert next(reader.read(reader.partitions({}, {})[1]))[1] is None
    assert time.monotonic() - began >= options.idle_seconds
    reader.stop()


def test_few_subscriptions_are_shared_by_all_slots_and_many_are_dealt_out(options, pubsub):
    attach(pubsub, "orders", "members")
    reader = PullStreamReader(options, Collector())
    assert [[t.topic for t in slot.targets] for slot in reader.partitions({}, {})] == [["members", "orders"]] * 2
    attach(pubsub, *[f"topic-{n:02}" for n in range(20)])
    dealt = [{t.topic for t in slot.targets} for slot in reader.partitions({}, {})]
    assert dealt[0].isdisjoint(dealt[1])
    assert len(dealt[0] | dealt[1]) == 22
    reader.stop()


def test_only_subscriptions_with_the_prefix_are_read(options, pubsub):
    attach(pubsub, "orders")
    pubsub.create_subscription("somebody-elses", "orders")
    reader = PullStreamReader(options, Collector())
    assert [t.subscription for t in reader.partitions({}, {})[0].targets] == ["refeed-backup.orders"]
    reader.stop()


def test_a_slots_row_holds_what_the_task_made_of_the_messages(options, pubsub):
    attach(pubsub, "orders")
    Publisher(pubsub.channel, pubsub.topic_path("orders")).publish([Message(b"a"), Message(b"b")])
    rows = read(PullStreamReader(options, Collector()))
    assert [row[0] for row in rows] == [0, 1]
    assert [json.loads(row[1]) for row in rows if row[1]] == [["a", "b"]]
    assert all(row[2] is None for row in rows)
    assert all(json.loads(row[3]) == {} for row in rows)


def test_an_error_of_ours_is_a_row_and_ends_nothing(options, pubsub):
    attach(pubsub, "orders")
    rows = read(PullStreamReader(replace(options, slots=1), Collector(StorageFullError("no room"))))
    assert json.loads(rows[0][2]) == {"code": "storage_full", "message": "no room"}


def test_a_bug_in_a_task_is_not_hidden(options, pubsub):
    attach(pubsub, "orders")
    with pytest.raises(ZeroDivisionError):
        read(PullStreamReader(options, Collector(ZeroDivisionError())))


def test_the_backlog_of_a_deleted_topic_is_still_known_by_its_name(options, pubsub):
    attach(pubsub, "orders")
    pubsub._publisher.delete_topic(topic=pubsub.topic_path("orders"))
    reader = PullStreamReader(options, Collector())
    assert [t.topic for t in reader.partitions({}, {})[0].targets] == ["orders"]
    reader.stop()


def test_a_broker_that_is_away_leaves_the_known_subscriptions_standing(options, pubsub, server):
    attach(pubsub, "orders")
    reader = PullStreamReader(options, Collector())
    assert len(reader.partitions({}, {})[0].targets) == 1
    server.stop()
    assert len(reader.partitions({}, {})[0].targets) == 1
    rows = read(reader)
    assert "refeed-backup.orders" in json.loads(rows[0][3])
    reader.stop()


class Planned:
    """A task that does what the plan says: it returns the plan and the payloads."""

    def with_plan(self, plan):
        def task(batches):
            return json.dumps([json.loads(plan)["mark"], *json.loads(Collector()(batches) or "[]")]).encode()

        task.tables = 1
        return task


def test_with_a_plan_file_the_listed_subscriptions_are_read_and_each_batch_follows_the_plan_of_its_beginning(
    options, pubsub, tmp_path
):
    for topic in ("orders", "members"):
        pubsub.create_topic(topic)
        pubsub.create_subscription(f"mine-{topic}", topic)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"subscriptions": ["mine-orders"], "mark": "first"}))
    reader = PullStreamReader(replace(options, slots=1, plan_file=str(plan)), Planned())
    for topic in ("orders", "members"):
        Publisher(pubsub.channel, pubsub.topic_path(topic)).publish([Message(data=topic.encode())])
    ((_, result, *_),) = read(reader)
    assert json.loads(result) == ["first", "orders"]
    plan.write_text(json.dumps({"subscriptions": ["mine-orders", "mine-members"], "mark": "second"}))
    again = PullStreamReader(reader._options, Planned())
    ((_, result, *_),) = read(again)
    assert json.loads(result) == ["second", "members"]


def test_a_plan_that_a_task_can_t_open_is_an_error_of_its_row(options, tmp_path):
    class Refusing(Planned):
        def with_plan(self, plan):
            raise DescriptorError("No such message.")

    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"subscriptions": []}))
    reader = PullStreamReader(replace(options, slots=1, plan_file=str(plan)), Refusing())
    (slot,) = reader.partitions({}, {})
    ((_, result, error, faults, _),) = reader.read(slot)
    assert (result, faults) == (None, "{}")
    assert json.loads(error) == {"code": "descriptor_invalid", "message": "No such message."}


@pytest.mark.parametrize(("tables", "seconds"), [(0, 3.0), (100, 6.0), (300, 12.0), (100_000, 12.0)])
def test_a_batch_of_a_large_backlog_may_be_longer_with_many_tables(
    options, tmp_path, monkeypatch, tables, seconds
):
    plan, made = tmp_path / "plan.json", []

    class OfTables(Planned):
        def with_plan(self, plan):
            task = super().with_plan(plan)
            task.tables = tables
            return task

    def noted(**limits):
        made.append(limits)
        return pull.PullLimits(**{**limits, "idle_seconds": 0.0})

    monkeypatch.setattr(source, "PullLimits", noted)
    plan.write_text(json.dumps({"subscriptions": [], "mark": ""}))
    options = replace(options, slots=1, plan_file=str(plan), backlog_seconds=3.0)
    (slot,) = PullStreamReader(options, OfTables()).partitions({}, {})
    next(PullStreamReader(options, OfTables()).read(slot))
    assert [(each["backlog_seconds"], each["longest_seconds"]) for each in made] == [(3.0, seconds)]
