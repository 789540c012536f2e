"""What Refeed relies on of any Pub/Sub: the same client code against our local server and Google's emulator."""

import time
from typing import Any

import pyarrow as pa
import pytest
from google.pubsub_v1 import PublisherClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from connectors.pubsub.acks import acknowledge, extend_each
from connectors.pubsub.client import PubSub
from connectors.pubsub.publish import Publisher
from connectors.pubsub.pull import PULLED_SCHEMA, Puller, PullLimits, PullTarget
from connectors.pubsub.replays import find_replays
from local.server import PubSubServer
from model.errors import PubSubError, SubscriptionMismatchError, SubscriptionNotFoundError, TopicNotFoundError
from model.message import Message, replay_token
from tests.contract.official_pubsub import HOW_TO_GET_IT, find_official_emulator, running_official_emulator


@pytest.fixture(scope="module", params=["local", "official"])
def host(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pubsub")
    if request.param == "local":
        with PubSubServer(folder) as server:
            yield server.emulator_host
        return
    command = find_official_emulator()
    if command is None:
        pytest.skip(HOW_TO_GET_IT)
    with running_official_emulator(command, folder) as host:
        yield host


@pytest.fixture
def is_official(request, host):
    return "official" in request.node.callspec.id


@pytest.fixture
def pubsub(host, request):
    """A project of the test's own."""
    with PubSub(f"p-{abs(hash(request.node.nodeid)):x}", host) as pubsub:
        yield pubsub


@pytest.fixture
def publish(pubsub):
    def send(*messages, topic="orders"):
        return Publisher(pubsub.channel, pubsub.topic_path(topic)).publish(messages)

    return send


@pytest.fixture
def pull(pubsub):
    """Return what pulls as the backup stream does, until ``count`` are there or ``seconds`` are over."""
    # One for all batches of a subscription, as a stream's slot has: what comes late goes into the next batch.
    pullers = {}

    def take(subscription, count, *, seconds=60.0, acks=True):
        path = pubsub.subscription_path(subscription)
        puller = pullers.setdefault(subscription, Puller(lambda: pubsub.channel))
        limits = PullLimits(
            idle_seconds=min(seconds, 2.0), linger_seconds=0.1, backlog_seconds=1.0, max_bytes=10**9
        )
        rows = []
        deadline = time.monotonic() + seconds
        while len(rows) < count and time.monotonic() < deadline:
            batch = puller.start_batch([PullTarget(path, subscription, "orders", 10)])
            table = pa.Table.from_batches([got.rows for got in batch.pull(limits, lambda: False)], PULLED_SCHEMA)
            for fault in batch.faults.values():
                raise fault
            if table.num_rows and acks:
                acknowledge(pubsub.channel, path, table.column("ack_id").combine_chunks())
            rows += table.to_pylist()
        return rows

    yield take
    for puller in pullers.values():
        puller.give_back()


def test_topics_are_created_and_found_by_name_and_label(pubsub):
    assert not pubsub.topic_exists("orders")
    for name in ("orders", "orders"):
        pubsub.create_topic(name)
    publisher = PublisherClient(transport=PublisherGrpcTransport(channel=pubsub.channel))
    publisher.create_topic({"name": pubsub.topic_path("members"), "labels": {"backup": "yes"}})
    assert pubsub.topic_exists("orders")
    assert pubsub.list_topics() == ["members", "orders"]
    assert pubsub.list_topics(label=("backup", "yes")) == ["members"]


def test_a_backup_subscription_is_what_was_asked_for_and_never_expires(pubsub):
    pubsub.create_topic("orders")
    made = pubsub.attach_backup("orders", token="t1", ack_deadline_seconds=30)
    assert pubsub.attach_backup("orders", token="t1", ack_deadline_seconds=30) == made
    assert pubsub.list_subscriptions("orders") == [made]
    found = pubsub.get_subscription(made.id)
    assert (found.topic, found.filter) == ("orders", 'NOT attributes.refeed_replay = "t1"')
    assert found.ack_deadline_seconds == 30
    assert (found.retention_seconds, found.expires) == (7 * 86400, False)
    with pytest.raises(SubscriptionMismatchError, match="filter"):
        pubsub.attach_backup("orders", token="another", ack_deadline_seconds=30)
    with pytest.raises(TopicNotFoundError):
        pubsub.attach_backup("none", token="t1", ack_deadline_seconds=30)


def test_what_can_be_changed_of_a_subscription_is(pubsub):
    pubsub.create_topic("orders")
    made = pubsub.create_subscription("held", "orders", ack_deadline_seconds=10)
    wanted = pubsub.create_subscription("wanted", "orders", ack_deadline_seconds=60, retention_seconds=3600)
    changed = pubsub.update_subscription(type(wanted)(**{**as_fields(wanted), "id": made.id}))
    assert (changed.ack_deadline_seconds, changed.retention_seconds) == (60, 3600)
    pubsub.delete_subscription("held")
    for call in (pubsub.delete_subscription, pubsub.get_subscription):
        with pytest.raises(SubscriptionNotFoundError):
            call("held")


def as_fields(info: Any) -> dict[str, Any]:
    return {name: getattr(info, name) for name in info.__dataclass_fields__}


def test_what_was_published_is_pulled_bit_for_bit(pubsub, publish, pull):
    pubsub.create_topic("orders")
    pubsub.create_subscription("all", "orders")
    messages = [
        Message(b"", {"a": "b"}),
        Message(bytes(range(256)), {"ключ": "🙂", "z": "", "a": "1"}),
        Message(b"x" * 3_000_000, {}),
        Message(b"many", {f"k{n}": "v" * 100 for n in range(100)}),
    ]
    ids = publish(*messages)
    rows = {row["message_id"]: row for row in pull("all", len(messages))}
    assert set(rows) == set(ids)
    assert len(set(ids)) == len(ids)
    for message_id, message in zip(ids, messages, strict=True):
        row = rows[message_id]
        assert row["data"] == message.data
        assert {pair["key"]: pair["value"] for pair in row["attributes"]} == message.attributes
        assert row["publish_time"] is not None
    assert pull("all", 1, seconds=2.0) == []


def test_many_messages_are_published_and_pulled_once_each(pubsub, publish, pull):
    pubsub.create_topic("orders")
    pubsub.create_subscription("all", "orders")
    ids = publish(*(Message(b"%d" % n, {"n": str(n)}) for n in range(5000)))
    rows = pull("all", 5000, seconds=60.0)
    assert sorted(row["message_id"] for row in rows) == sorted(ids)


def test_a_replay_goes_past_the_backup_and_all_else_does_not(pubsub, publish, pull, is_official):
    token = replay_token("secret", "orders")
    pubsub.create_topic("orders")
    backup = pubsub.attach_backup("orders", token=token, ack_deadline_seconds=10)
    pubsub.create_subscription("everything", "orders")
    publish(
        Message(b"plain", {}),
        Message(b"replay", {"refeed_replay": token, "refeed_row": "1"}),
        Message(b"of another topic", {"refeed_replay": replay_token("secret", "members")}),
        Message(b"a producer's own", {"refeed_backfill_id": "mine"}),
    )
    assert len(pull("everything", 4)) == 4
    rows = pull(backup.id, 3) + pull(backup.id, 1, seconds=2.0)
    # Google's emulator keeps filters and applies none; the stream looks once more, for whatever slips through.
    replays = find_replays(pa.RecordBatch.from_pylist(rows, PULLED_SCHEMA), token)
    assert is_official == (replays is not None)
    slipped = [False] * len(rows) if replays is None else replays.to_pylist()
    kept = {row["data"] for row, is_replay in zip(rows, slipped, strict=True) if not is_replay}
    assert kept == {b"plain", b"of another topic", b"a producer's own"}


def test_what_is_not_acknowledged_comes_again_after_its_deadline(pubsub, publish, pull):
    pubsub.create_topic("orders")
    pubsub.create_subscription("held", "orders", ack_deadline_seconds=10)
    (message_id,) = publish(Message(b"1", {}))
    (first,) = pull("held", 1, acks=False)
    path = pubsub.subscription_path("held")
    assert list(extend_each(pubsub.channel, [(path, pa.array([first["ack_id"]]), 600)])) == [(path, None)]
    assert pull("held", 1, seconds=1.5) == []
    # A deadline of nothing is how a lease is given back.
    assert list(extend_each(pubsub.channel, [(path, pa.array([first["ack_id"]]), 0)])) == [(path, None)]
    (again,) = pull("held", 1)
    assert (first["message_id"], again["message_id"]) == (message_id, message_id)


def test_messages_of_a_key_come_in_their_order(pubsub, publish, pull):
    pubsub.create_topic("orders")
    pubsub.create_subscription("ordered", "orders", ordering=True)
    publish(*(Message(b"%d" % n, {}, ordering_key=f"key{n % 3}") for n in range(300)))
    rows = pull("ordered", 300, seconds=60.0)
    for key in ("key0", "key1", "key2"):
        numbers = [int(row["data"]) for row in rows if row["ordering_key"] == key]
        assert list(dict.fromkeys(numbers)) == [n for n in range(300) if f"key{n % 3}" == key]


def test_a_snapshot_brings_back_what_was_open_when_it_was_made(pubsub, publish, pull):
    pubsub.create_topic("orders")
    pubsub.create_subscription("all", "orders")
    publish(Message(b"before", {}))
    assert [row["data"] for row in pull("all", 1)] == [b"before"]
    pubsub.create_snapshot("kept", "all")
    publish(Message(b"after", {}))
    assert [row["data"] for row in pull("all", 1)] == [b"after"]
    pubsub.seek_to_snapshot("all", "kept")
    assert [row["data"] for row in pull("all", 1)] == [b"after"]
    assert [snapshot.id for snapshot in pubsub.list_snapshots()] == ["kept"]
    pubsub.delete_snapshot("kept")
    pubsub.delete_snapshot("kept")
    assert pubsub.list_snapshots() == []


def test_what_is_not_there_is_said_in_our_words(pubsub, publish, pull):
    with pytest.raises(TopicNotFoundError):
        publish(Message(b"1", {}), topic="none")
    with pytest.raises(SubscriptionNotFoundError):
        pull("none", 1)
    with pytest.raises(PubSubError):
        pubsub.create_snapshot("s", "none")
