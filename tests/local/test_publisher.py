import threading

import grpc
import pytest
from google.api_core import exceptions
from google.protobuf import duration_pb2, field_mask_pb2
from google.pubsub_v1 import types

from local import publisher as publisher_module
from local import resources as resources_module
from local.wire import build_publish_response
from tests.waiting import wait_until

PROJECT = "projects/p"
PubsubMessage = types.PubsubMessage.pb()


def test_a_topic_is_created_read_listed_updated_and_deleted(shop) -> None:
    publisher = shop.publisher
    for name in ("b-topic", "a-topic", "c-topic"):
        publisher.create_topic(request={"name": f"{PROJECT}/topics/{name}", "labels": {"team": name}})
    names = [
        topic.name.rsplit("/", 1)[1]
        for topic in publisher.list_topics(request={"project": PROJECT, "page_size": 2})
    ]
    assert names == ["a-topic", "b-topic", "c-topic", "orders"]
    updated = publisher.update_topic(
        topic={
            "name": shop.topic,
            "labels": {"a": "b"},
            "message_retention_duration": duration_pb2.Duration(seconds=900),
        },
        update_mask=field_mask_pb2.FieldMask(paths=["message_retention_duration"]),
    )
    assert updated.message_retention_duration.total_seconds() == 900
    assert not updated.labels
    assert publisher.get_topic(topic=shop.topic) == updated
    publisher.delete_topic(topic=shop.topic)
    with pytest.raises(exceptions.NotFound):
        publisher.get_topic(topic=shop.topic)


def test_topics_of_another_project_are_not_listed(shop) -> None:
    shop.publisher.create_topic(name="projects/other/topics/theirs")
    assert [topic.name for topic in shop.publisher.list_topics(project=PROJECT)] == [shop.topic]


def test_errors_have_the_real_services_codes_and_words(shop) -> None:
    publisher = shop.publisher
    with pytest.raises(
        exceptions.AlreadyExists, match=r"Resource already exists in the project \(resource=orders\)\."
    ):
        publisher.create_topic(name=shop.topic)
    missing = f"{PROJECT}/topics/missing"
    for call in (
        lambda: publisher.publish(topic=missing, messages=[{"data": b"x"}]),
        lambda: publisher.get_topic(topic=missing),
        lambda: publisher.delete_topic(topic=missing),
        lambda: list(publisher.list_topic_subscriptions(topic=missing)),
        lambda: publisher.update_topic(topic={"name": missing}, update_mask={"paths": ["labels"]}),
    ):
        with pytest.raises(exceptions.NotFound, match=r"Resource not found \(resource=missing\)\."):
            call()
    for name in (
        "topics/orders",
        f"{PROJECT}/topics/x",
        f"{PROJECT}/topics/google",
        f"{PROJECT}/subscriptions/orders",
        f"{PROJECT}/topics/1abc",
        "",
    ):
        with pytest.raises(exceptions.InvalidArgument, match=r"Invalid \[topics\] name"):
            publisher.create_topic(name=name)


@pytest.mark.parametrize("paths", [[], ["name"], ["kms_key_name"], ["colour"]])
def test_an_update_mask_names_fields_that_can_be_updated(shop, paths: list[str]) -> None:
    with pytest.raises(exceptions.InvalidArgument, match="update_mask"):
        shop.publisher.update_topic(topic={"name": shop.topic}, update_mask=field_mask_pb2.FieldMask(paths=paths))


@pytest.mark.parametrize("seconds", [599, 31 * 86400 + 1])
def test_a_topics_retention_has_limits(shop, seconds: int) -> None:
    with pytest.raises(exceptions.InvalidArgument, match="message_retention_duration"):
        shop.publisher.create_topic(
            request={
                "name": f"{PROJECT}/topics/kept",
                "message_retention_duration": duration_pb2.Duration(seconds=seconds),
            }
        )


def test_what_a_local_server_does_not_have_is_unimplemented(shop, channel: grpc.Channel) -> None:
    with pytest.raises(exceptions.MethodNotImplemented, match="schema_settings"):
        shop.publisher.create_topic(
            request={"name": f"{PROJECT}/topics/typed", "schema_settings": {"schema": "projects/p/schemas/s"}}
        )


def test_a_topics_subscriptions_and_snapshots_are_listed(shop) -> None:
    subscriptions = [shop.subscribe(name) for name in ("second", "first")]
    snapshot = f"{PROJECT}/snapshots/before"
    shop.subscriber.create_snapshot(name=snapshot, subscription=subscriptions[0])
    assert list(shop.publisher.list_topic_subscriptions(topic=shop.topic)) == sorted(subscriptions)
    assert list(shop.publisher.list_topic_snapshots(topic=shop.topic)) == [snapshot]


def test_a_request_that_is_no_protobuf_is_an_invalid_argument(shop, channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/google.pubsub.v1.Publisher/Publish")(b"\x0a\xff")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_no_consumer_has_a_message_before_its_publisher_has_the_answer(shop, server, monkeypatch):
    path = shop.subscribe()
    answer = threading.Event()

    def build_late(first_id: int, count: int) -> bytes:
        assert answer.wait(10)
        return build_publish_response(first_id, count)

    monkeypatch.setattr(publisher_module, "build_publish_response", build_late)
    log = server._resources.topic(shop.topic).log
    publish = threading.Thread(target=lambda: shop.publish(b"a"), daemon=True)
    pulled: list[bytes] = []
    pull = threading.Thread(target=lambda: pulled.extend(m.data for m in shop.pull(path)), daemon=True)
    pull.start()
    publish.start()
    wait_until(lambda: log.next_seq == 1, "the message is stored")
    assert shop.pull_now(path) == []
    assert not pulled
    answer.set()
    publish.join(10)
    pull.join(10)
    assert pulled == [b"a"]


def test_a_publisher_that_takes_no_answer_keeps_nobody_waiting_for_long(shop, server, monkeypatch):
    monkeypatch.setattr(resources_module, "MAX_ANSWER_SECONDS", 0.2)
    path = shop.subscribe()
    body = PubsubMessage(data=b"a").SerializeToString()
    server._resources.store(shop.topic, [body])
    assert [m.data for m in shop.pull(path)] == [b"a"]
