from dataclasses import replace

import grpc
import pytest
from google.pubsub_v1.services.subscriber import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from connectors.pubsub.client import PubSub, find_differences
from model.errors import (
    InvalidNameError,
    PubSubUnavailableError,
    SnapshotNotFoundError,
    SubscriptionMismatchError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from tests.labels import label_topic


def test_a_topic_is_created_once_and_again_without_a_fault(pubsub):
    assert not pubsub.topic_exists("orders")
    pubsub.create_topic("orders")
    pubsub.create_topic("orders")
    assert pubsub.topic_exists("orders")
    assert pubsub.list_topics() == ["orders"]


def test_a_name_that_is_none_is_refused_before_anybody_is_asked(pubsub):
    with pytest.raises(InvalidNameError, match="no topic id"):
        pubsub.create_topic("1")


def test_attaching_makes_the_backup_subscription_with_its_filter_and_again_changes_nothing(pubsub):
    pubsub.create_topic("orders")
    first = pubsub.attach_backup("orders", token="ab12", ack_deadline_seconds=10)
    assert first.id == "refeed-backup.orders"
    assert first.filter == 'NOT attributes.refeed_replay = "ab12"'
    assert first.ack_deadline_seconds == 10
    assert pubsub.attach_backup("orders", token="ab12", ack_deadline_seconds=10) == first
    assert pubsub.list_subscriptions("orders") == [first]
    assert pubsub.list_subscriptions("members") == []


def test_attaching_with_another_secret_says_what_differs(pubsub):
    pubsub.create_topic("orders")
    pubsub.attach_backup("orders", token="ab12", ack_deadline_seconds=10)
    with pytest.raises(SubscriptionMismatchError, match=r"ab12.*cd34"):
        pubsub.attach_backup("orders", token="cd34", ack_deadline_seconds=10)


def test_attaching_an_unknown_topic_names_it(pubsub):
    with pytest.raises(TopicNotFoundError, match="topic orders"):
        pubsub.attach_backup("orders", token="ab12", ack_deadline_seconds=10)


def test_an_unknown_subscription_is_named(pubsub):
    with pytest.raises(SubscriptionNotFoundError, match="subscription none"):
        pubsub.get_subscription("none")
    with pytest.raises(SubscriptionNotFoundError, match="subscription none"):
        pubsub.delete_subscription("none")


def test_nobody_there_is_said_at_once(server):
    server.stop()
    with PubSub("shop", "127.0.0.1:9") as client, pytest.raises(PubSubUnavailableError, match="does not answer"):
        client.list_topics()


def test_topics_are_found_by_a_label(pubsub):
    for topic in ("orders", "members", "logs"):
        pubsub.create_topic(topic)
    label_topic(pubsub, "orders", backup="yes", team="shop")
    label_topic(pubsub, "logs", backup="no")
    assert pubsub.list_topics(label=("backup", "yes")) == ["orders"]
    assert pubsub.list_topics(label=("backup", "maybe")) == []


def test_a_subscription_that_can_be_mended_is_mended_and_says_what_differed(pubsub):
    pubsub.create_topic("orders")
    pubsub.attach_backup("orders", token="ab12", ack_deadline_seconds=10)
    found = pubsub.attach_backup("orders", token="ab12", ack_deadline_seconds=60)
    differences = find_differences(found, ack_deadline_seconds=60, exactly_once=True)
    assert [str(d) for d in differences] == [
        "ack_deadline_seconds is 10, wanted is 60",
        "exactly_once is False, wanted is True",
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


def test_a_snapshot_brings_back_what_was_acknowledged_since(pubsub):
    pubsub.create_topic("orders")
    pubsub.attach_backup("orders", token="ab12", ack_deadline_seconds=10)
    made = pubsub.create_snapshot("before-repair", "refeed-backup.orders")
    assert (made.id, made.topic) == ("before-repair", "orders")
    assert pubsub.list_snapshots() == [made]
    pubsub.seek_to_snapshot("refeed-backup.orders", "before-repair")
    pubsub.delete_snapshot("before-repair")
    pubsub.delete_snapshot("before-repair")
    assert pubsub.list_snapshots() == []
    with pytest.raises(SnapshotNotFoundError, match="before-repair"):
        pubsub.seek_to_snapshot("refeed-backup.orders", "before-repair")
