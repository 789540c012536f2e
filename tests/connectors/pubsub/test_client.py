from dataclasses import replace

import grpc
import pytest
from google.pubsub_v1.services.subscriber import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from connectors.pubsub.client import PubSub, find_differences
from model.errors import InvalidNameError, PubSubUnavailableError


def test_a_name_that_is_none_is_refused_before_anybody_is_asked(pubsub):
    with pytest.raises(InvalidNameError, match="not a valid topic id"):
        pubsub.create_topic("1")


def test_nobody_there_is_said_at_once(server):
    server.stop()
    with PubSub("shop", "127.0.0.1:9") as client, pytest.raises(PubSubUnavailableError, match="does not answer"):
        client.list_topics()


def test_a_subscription_that_can_be_mended_is_mended_and_says_what_differed(pubsub):
    pubsub.create_topic("orders")
    pubsub.attach_backup("orders", token="ab12", ack_deadline_seconds=10)
    found = pubsub.attach_backup("orders", token="ab12", ack_deadline_seconds=60)
    differences = find_differences(found, ack_deadline_seconds=60, exactly_once=True)
    assert [str(d) for d in differences] == [
        "ack_deadline_seconds is 10 instead of 60",
        "exactly_once is False instead of True",
    ]
    assert all(d.can_change for d in differences)
    mended = pubsub.update_subscription(replace(found, ack_deadline_seconds=60, exactly_once=True))
    assert find_differences(mended, ack_deadline_seconds=60, exactly_once=True) == []
    assert pubsub.get_subscription(found.id) == mended


def test_a_subscription_that_would_expire_is_a_difference(pubsub, server):
    pubsub.create_topic("orders")
    with grpc.insecure_channel(server.emulator_host) as channel:
        SubscriberClient(transport=SubscriberGrpcTransport(channel=channel)).create_subscription(
            name=pubsub.subscription_path("refeed-backup.orders"), topic=pubsub.topic_path("orders")
        )
    found = pubsub.get_subscription("refeed-backup.orders")
    assert found.expires
    assert [d.field for d in find_differences(found, ack_deadline_seconds=10)] == ["expires"]
