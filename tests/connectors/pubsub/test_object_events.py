"""A bucket's events are hints: who hears one learns that something may have changed, once."""

import pytest
from google.pubsub_v1.types import PubsubMessage

from connectors.pubsub.client import PubSub
from connectors.pubsub.object_events import ObjectEvents
from local.server import PubSubServer
from model.errors import SubscriptionNotFoundError


@pytest.fixture
def pubsub(tmp_path):
    with PubSubServer(tmp_path / "pubsub") as server, PubSub("shop", server.emulator_host) as opened:
        opened.create_topic("changes")
        opened.create_subscription("changes", "changes", ack_deadline_seconds=10)
        yield opened


def publish(pubsub: PubSub, *attributes: dict[str, str]) -> None:
    messages = [PubsubMessage(attributes=each, data=b"x") for each in attributes]
    pubsub._publisher.publish(topic=pubsub.topic_path("changes"), messages=messages)


def open_events(pubsub: PubSub, location: str = "gs://ours/manifests") -> ObjectEvents:
    return ObjectEvents(pubsub.channel, pubsub.subscription_path("changes"), location)


def test_an_event_below_the_prefix_is_heard_once_and_no_other_is(pubsub):
    events = open_events(pubsub)
    assert not events.wait(0.05)
    ours = {"bucketId": "ours", "objectId": "manifests/a.yaml", "eventType": "OBJECT_DELETE"}
    publish(pubsub, ours)
    assert events.wait(5)
    for other in (
        {**ours, "bucketId": "theirs"},
        {**ours, "objectId": "manifests.yaml"},
        {"objectId": "manifests/a.yaml"},
        {"anything": "else"},
    ):
        publish(pubsub, other)
        assert not events.wait(5), other
    assert not events.wait(0.05), "each was acknowledged"
    events.close()
    whole = open_events(pubsub, "gs://ours/")
    publish(pubsub, {**ours, "objectId": "a.yaml"})
    assert whole.wait(5)
    whole.close()


def test_events_that_come_while_nobody_waits_are_heard_later(pubsub):
    events = open_events(pubsub)
    events.close()
    publish(pubsub, {"bucketId": "ours", "objectId": "manifests/a.yaml"})
    assert events.wait(5)
    events.close()


def test_a_subscription_that_is_not_there_is_an_error_each_time_and_no_longer_once_it_is(pubsub):
    pubsub.delete_subscription("changes")
    events = open_events(pubsub)
    for _ in range(2):
        with pytest.raises(SubscriptionNotFoundError):
            events.wait(5)
    pubsub.create_subscription("changes", "changes")
    assert not events.wait(0.05)
    events.close()
