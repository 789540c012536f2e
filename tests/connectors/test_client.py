import pytest

from connectors.pubsub.client import PubSub
from model.errors import (
    InvalidNameError,
    PubSubUnavailableError,
    SubscriptionMismatchError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)


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
