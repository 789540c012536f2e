import threading
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import grpc
import pytest
from google.api_core import exceptions
from google.protobuf import duration_pb2, field_mask_pb2
from google.pubsub_v1 import types

from local.server import PubSubServer
from local.subscriber import SubscriberService
from tests.waiting import wait_until

PROJECT = "projects/p"


def duration(seconds: int) -> duration_pb2.Duration:
    return duration_pb2.Duration(seconds=seconds)


def test_a_new_subscription_has_the_real_services_defaults(shop):
    found = shop.subscriber.get_subscription(subscription=shop.subscribe())
    assert found.ack_deadline_seconds == 10
    assert found.message_retention_duration == timedelta(days=7)
    assert found.expiration_policy.ttl == timedelta(days=31)
    assert found.topic == shop.topic
    assert not found.filter


def test_a_subscription_tells_its_topics_retention_as_it_is_now(shop):
    path, days = shop.subscribe(), timedelta(days=10)
    shop.publisher.update_topic(
        topic={"name": shop.topic, "message_retention_duration": days},
        update_mask={"paths": ["message_retention_duration"]},
    )
    found = [
        shop.subscriber.get_subscription(subscription=path),
        *shop.subscriber.list_subscriptions(project=PROJECT),
        shop.subscriber.update_subscription(
            subscription={"name": path, "ack_deadline_seconds": 20},
            update_mask={"paths": ["ack_deadline_seconds"]},
        ),
        shop.subscriber.create_subscription(name=f"{PROJECT}/subscriptions/another", topic=shop.topic),
    ]
    assert [each.topic_message_retention_duration for each in found] == [days] * 4
    shop.publisher.delete_topic(topic=shop.topic)
    assert not shop.subscriber.get_subscription(subscription=path).topic_message_retention_duration


def test_subscriptions_are_listed_in_pages_and_deleted(shop):
    paths = [shop.subscribe(name) for name in ("aaa", "bbb", "ccc")]
    listed = shop.subscriber.list_subscriptions(request={"project": PROJECT, "page_size": 1})
    assert [subscription.name for subscription in listed] == paths
    shop.subscriber.delete_subscription(subscription=paths[1])
    assert [s.name for s in shop.subscriber.list_subscriptions(project=PROJECT)] == [paths[0], paths[2]]
    with pytest.raises(exceptions.NotFound, match=r"Resource not found \(resource=bbb\)\."):
        shop.pull(paths[1])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ack_deadline_seconds": 9}, "between 10 and 600"),
        ({"ack_deadline_seconds": 601}, "between 10 and 600"),
        ({"message_retention_duration": duration(599)}, "message_retention_duration"),
        ({"message_retention_duration": duration(31 * 86400 + 1)}, "message_retention_duration"),
        ({"expiration_policy": {"ttl": duration(3600)}}, r"expiration_policy\.ttl"),
        ({"expiration_policy": {"ttl": duration(2 * 86400)}}, "at least as long"),
        ({"filter": "attributes.a"}, "Invalid filter"),
        ({"filter": "attributes:" + "a" * 250}, "256 bytes"),
        ({"topic": "orders"}, "Invalid"),
    ],
)
def test_a_wrong_setting_is_refused(shop, settings, words):
    with pytest.raises(exceptions.InvalidArgument, match=words):
        shop.subscribe(**settings)
    assert not list(shop.subscriber.list_subscriptions(project=PROJECT))


@pytest.mark.parametrize(
    "settings",
    [
        {"push_config": {"push_endpoint": "https://example.com"}},
        {"cloud_storage_config": {"bucket": "b"}},
        {"bigquery_config": {"table": "p.d.t"}},
    ],
)
def test_a_setting_that_a_local_server_can_not_keep_is_not_taken_silently(shop, settings):
    with pytest.raises(exceptions.MethodNotImplemented):
        shop.subscribe(**settings)


def test_a_subscription_is_updated_by_mask_and_its_filter_never(shop):
    path = shop.subscribe(filter="attributes:a")
    updated = shop.subscriber.update_subscription(
        subscription={"name": path, "ack_deadline_seconds": 30, "labels": {"x": "y"}, "filter": "attributes:b"},
        update_mask=field_mask_pb2.FieldMask(paths=["ack_deadline_seconds"]),
    )
    assert (updated.ack_deadline_seconds, dict(updated.labels), updated.filter) == (30, {}, "attributes:a")
    for path_name in ("filter", "topic", "enable_message_ordering"):
        with pytest.raises(exceptions.InvalidArgument, match=path_name):
            shop.subscriber.update_subscription(
                subscription={"name": path, "filter": "attributes:b"},
                update_mask=field_mask_pb2.FieldMask(paths=[path_name]),
            )
    with pytest.raises(exceptions.InvalidArgument, match="between 10 and 600"):
        shop.subscriber.update_subscription(
            subscription={"name": path, "ack_deadline_seconds": 5},
            update_mask=field_mask_pb2.FieldMask(paths=["ack_deadline_seconds"]),
        )
    assert shop.subscriber.get_subscription(subscription=path).ack_deadline_seconds == 30


def test_a_subscription_of_no_topic_is_not_made(shop):
    with pytest.raises(exceptions.NotFound, match="resource=missing"):
        shop.subscriber.create_subscription(name=f"{PROJECT}/subscriptions/all", topic=f"{PROJECT}/topics/missing")


def test_only_what_is_published_after_its_creation_is_received(shop):
    shop.publish(b"before")
    path = shop.subscribe()
    shop.publish(b"after")
    assert shop.pull_now(path) == [b"after"]


def test_an_empty_pull_answers_before_the_clients_deadline(shop):
    path = shop.subscribe()
    for seconds in (0.3, 1.5):
        started = time.monotonic()
        assert shop.pull(path, seconds=seconds) == []
        assert time.monotonic() - started < seconds


def test_return_immediately_does_not_wait(shop):
    path = shop.subscribe()
    started = time.monotonic()
    with pytest.warns(DeprecationWarning, match="return_immediately"):
        response = shop.subscriber.pull(
            request={"subscription": path, "max_messages": 1, "return_immediately": True}, timeout=10
        )
    assert not response.received_messages
    assert time.monotonic() - started < 2


def test_a_waiting_pull_gets_a_message_as_soon_as_it_is_published(shop):
    path = shop.subscribe()
    published = threading.Timer(0.3, lambda: shop.publish(b"fresh"))
    published.start()
    started = time.monotonic()
    assert [m.data for m in shop.pull(path, seconds=20)] == [b"fresh"]
    assert time.monotonic() - started < 3
    published.join()


def test_a_pull_wants_at_least_one_message(shop):
    path = shop.subscribe()
    for count in (0, -1):
        with pytest.raises(exceptions.InvalidArgument, match="max_messages"):
            shop.pull(path, count)


def test_a_pull_fits_a_client_with_grpcs_own_limit(server, shop):
    path = shop.subscribe()
    for _ in range(3):
        shop.publish(*[b"x" * 4000] * 1000)
    with grpc.insecure_channel(server.emulator_host) as plain:
        small = type(shop.subscriber)(transport=type(shop.subscriber.transport)(channel=plain))
        counts = [
            len(small.pull(subscription=path, max_messages=10_000, timeout=20).received_messages) for _ in range(2)
        ]
    assert all(900 < count < 1050 for count in counts)


def test_acknowledging_needs_ids_and_a_subscription(shop):
    path = shop.subscribe()
    with pytest.raises(exceptions.InvalidArgument, match="No ack ids"):
        shop.subscriber.acknowledge(subscription=path, ack_ids=[])
    with pytest.raises(exceptions.InvalidArgument, match="invalid ack ID"):
        shop.subscriber.acknowledge(subscription=path, ack_ids=["made up"])
    with pytest.raises(exceptions.NotFound):
        shop.subscriber.acknowledge(subscription=path + "x", ack_ids=["0" * 32])
    with pytest.raises(exceptions.InvalidArgument, match="between 0 and 600"):
        shop.subscriber.modify_ack_deadline(subscription=path, ack_ids=["0" * 32], ack_deadline_seconds=601)


def test_a_snapshot_brings_back_what_was_not_acknowledged_when_it_was_made(shop):
    path, other = shop.subscribe(), shop.subscribe("other")
    shop.publish(b"done", b"open")
    got = shop.pull(path)
    shop.ack(path, got[:1])
    snapshot = f"{PROJECT}/snapshots/mine"
    made = shop.subscriber.create_snapshot(name=snapshot, subscription=path)
    assert made.topic == shop.topic
    assert timedelta(days=6) < made.expire_time - datetime.now(UTC) <= timedelta(days=7)
    shop.publish(b"later")
    shop.ack(path, got[1:])
    shop.ack(path, shop.pull(path))
    assert shop.pull_now(path) == []
    for seeking in (path, other):
        shop.subscriber.seek(request={"subscription": seeking, "snapshot": snapshot})
        assert shop.pull_now(seeking) == [b"open", b"later"]
    with pytest.raises(exceptions.AlreadyExists):
        shop.subscriber.create_snapshot(name=snapshot, subscription=path)
    updated = shop.subscriber.update_snapshot(
        snapshot={"name": snapshot, "labels": {"a": "b"}}, update_mask=field_mask_pb2.FieldMask(paths=["labels"])
    )
    assert shop.subscriber.get_snapshot(snapshot=snapshot) == updated
    assert [s.name for s in shop.subscriber.list_snapshots(project=PROJECT)] == [snapshot]
    shop.subscriber.delete_snapshot(snapshot=snapshot)
    with pytest.raises(exceptions.NotFound):
        shop.subscriber.seek(request={"subscription": path, "snapshot": snapshot})


def test_a_snapshot_of_another_topic_does_not_fit(shop):
    path = shop.subscribe()
    shop.publisher.create_topic(name=f"{PROJECT}/topics/members")
    other = f"{PROJECT}/subscriptions/members"
    shop.subscriber.create_subscription(name=other, topic=f"{PROJECT}/topics/members")
    snapshot = f"{PROJECT}/snapshots/members"
    shop.subscriber.create_snapshot(name=snapshot, subscription=other)
    with pytest.raises(exceptions.FailedPrecondition):
        shop.subscriber.seek(request={"subscription": path, "snapshot": snapshot})


def test_in_the_test_mode_a_seek_takes_effect_late(shop, tmp_path):
    with (
        PubSubServer(tmp_path / "late", seek_seconds=1.0) as server,
        grpc.insecure_channel(server.emulator_host) as channel,
    ):
        shop = type(shop)(channel)
        path, snapshot = shop.subscribe(), f"{PROJECT}/snapshots/before"
        shop.publish(b"first")
        shop.subscriber.create_snapshot(name=snapshot, subscription=path)
        shop.ack(path, shop.pull(path))
        shop.subscriber.seek(request={"subscription": path, "snapshot": snapshot})
        assert shop.pull_now(path) == []
        wait_until(lambda: shop.pull_now(path) == [b"first"], "the seek takes effect")


def test_a_seek_to_a_time_replays_what_is_retained_and_purges_what_is_not_wanted(shop):
    plain, keeping = shop.subscribe("plain"), shop.subscribe("keeping", retain_acked_messages=True)
    shop.publish(b"first")
    middle = shop.pull(plain)[0].message.publish_time + timedelta(microseconds=1)
    time.sleep(0.002)
    shop.publish(b"second")
    for path in (plain, keeping):
        shop.ack(path, shop.pull(path))
        shop.ack(path, shop.pull(path)) if path == keeping and shop.pull_now(path) else None
        shop.subscriber.seek(request={"subscription": path, "time": middle})
    assert shop.pull_now(keeping) == [b"second"]
    assert shop.pull_now(plain) == []
    shop.subscriber.seek(request={"subscription": keeping, "time": datetime(2020, 1, 1, tzinfo=UTC)})
    assert shop.pull_now(keeping) == [b"first", b"second"]
    shop.subscriber.seek(request={"subscription": keeping, "time": datetime.now(UTC) + timedelta(days=1)})
    assert shop.pull_now(keeping) == []
    with pytest.raises(exceptions.InvalidArgument, match="time or a snapshot"):
        shop.subscriber.seek(request={"subscription": keeping})


def test_a_topics_retention_lets_a_new_subscription_look_back(shop):
    shop.publisher.update_topic(
        topic={"name": shop.topic, "message_retention_duration": duration(3600)},
        update_mask=field_mask_pb2.FieldMask(paths=["message_retention_duration"]),
    )
    shop.publish(b"before")
    path = shop.subscribe()
    assert shop.pull_now(path) == []
    shop.subscriber.seek(request={"subscription": path, "time": datetime(2020, 1, 1, tzinfo=UTC)})
    assert shop.pull_now(path) == [b"before"]


def test_a_deleted_topic_leaves_its_subscription_with_what_it_had(shop):
    path = shop.subscribe()
    shop.publish(b"left")
    shop.publisher.delete_topic(topic=shop.topic)
    assert shop.subscriber.get_subscription(subscription=path).topic == "_deleted-topic_"
    assert shop.pull_now(path) == [b"left"]
    with pytest.raises(exceptions.FailedPrecondition):
        shop.subscriber.create_snapshot(name=f"{PROJECT}/snapshots/late", subscription=path)
    shop.subscriber.delete_subscription(subscription=path)


def test_an_empty_push_configuration_is_pulling_and_another_one_is_unimplemented(shop):
    path = shop.subscribe()
    shop.subscriber.modify_push_config(subscription=path, push_config={})
    shop.publish(b"a")
    assert shop.pull_now(path) == [b"a"]
    with pytest.raises(exceptions.MethodNotImplemented, match="push"):
        shop.subscriber.modify_push_config(subscription=path, push_config={"push_endpoint": "https://x.example"})
    with pytest.raises(exceptions.NotFound):
        shop.subscriber.modify_push_config(subscription=f"{PROJECT}/subscriptions/none", push_config={})


def test_in_the_test_mode_a_pull_brings_few_or_none_at_random_and_in_the_end_all(shop, server):
    path = shop.subscribe()
    shop.publish(*(b"%d" % n for n in range(200)))
    service = SubscriberService(server._resources, server._slots, partial_pulls=True)
    request = types.PullRequest.serialize(types.PullRequest(subscription=path, max_messages=10))
    context = SimpleNamespace(is_active=lambda: True, time_remaining=lambda: 0.1)
    counts = []
    got = set()
    for _ in range(300):
        messages = types.PullResponse.pb().FromString(service.pull(request, context)).received_messages
        counts.append(len(messages))
        got |= {m.message.data for m in messages}
    assert len(got) == 200
    while_some_waited = counts[: max(at for at, count in enumerate(counts) if count)]
    assert {0, 1, 10} <= set(while_some_waited)
