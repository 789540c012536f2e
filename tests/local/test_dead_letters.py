import pytest
from google.api_core import exceptions

PROJECT = "projects/p"
DEAD = f"{PROJECT}/topics/dead"


@pytest.fixture
def dead(shop) -> str:
    """A topic for dead letters and a subscription that sees them."""
    shop.publisher.create_topic(name=DEAD)
    path = f"{PROJECT}/subscriptions/morgue"
    shop.subscriber.create_subscription(request={"name": path, "topic": DEAD})
    return path


def give_up(shop, subscription: str, times: int) -> list[int]:
    """Pull and nack everything ``times`` times; return the delivery attempts seen on the first message."""
    attempts = []
    for _ in range(times):
        messages = shop.subscriber.pull(subscription=subscription, max_messages=10, timeout=10, retry=None)
        attempts.append(messages.received_messages[0].delivery_attempt)
        shop.subscriber.modify_ack_deadline(
            subscription=subscription,
            ack_ids=[m.ack_id for m in messages.received_messages],
            ack_deadline_seconds=0,
        )
    return attempts


def test_a_message_that_comes_back_too_often_goes_to_the_dead_letter_topic(shop, dead: str) -> None:
    subscription = shop.subscribe(dead_letter_policy={"dead_letter_topic": DEAD, "max_delivery_attempts": 5})
    (message_id,) = shop.publish(b"poison \x00\xff", currency="SEK")
    assert give_up(shop, subscription, 5) == [1, 2, 3, 4, 5]
    (found,) = shop.pull(dead)
    assert found.data == b"poison \x00\xff"
    attributes = dict(found.message.attributes)
    published = attributes.pop("CloudPubSubDeadLetterSourceTopicPublishTime")
    assert published.endswith("Z")
    assert attributes == {
        "currency": "SEK",
        "CloudPubSubDeadLetterSourceSubscription": "all",
        "CloudPubSubDeadLetterSourceSubscriptionProject": "p",
        "CloudPubSubDeadLetterSourceDeliveryCount": "5",
    }
    assert found.id != message_id
    assert shop.pull_now(subscription) == []


def test_without_a_number_five_deliveries_are_tried(shop, dead: str) -> None:
    subscription = shop.subscribe(dead_letter_policy={"dead_letter_topic": DEAD})
    config = shop.subscriber.get_subscription(subscription=subscription)
    assert config.dead_letter_policy.max_delivery_attempts == 5


def test_what_is_acknowledged_in_time_is_no_dead_letter(shop, dead: str) -> None:
    subscription = shop.subscribe(dead_letter_policy={"dead_letter_topic": DEAD})
    shop.publish(b"a")
    give_up(shop, subscription, 4)
    shop.ack(subscription, shop.pull(subscription))
    assert shop.pull_now(dead) == []


def test_a_message_whose_dead_letter_topic_is_gone_goes_on_being_delivered(shop, dead: str) -> None:
    subscription = shop.subscribe(dead_letter_policy={"dead_letter_topic": DEAD})
    shop.publish(b"a")
    shop.publisher.delete_topic(topic=DEAD)
    assert give_up(shop, subscription, 6) == [1, 2, 3, 4, 5, 6]
    assert shop.pull_now(subscription) == [b"a"]


def test_an_ordered_subscription_goes_on_behind_a_dead_letter(shop, dead: str) -> None:
    subscription = shop.subscribe(
        enable_message_ordering=True, dead_letter_policy={"dead_letter_topic": DEAD, "max_delivery_attempts": 5}
    )
    shop.publish_keyed("k", b"poison", b"good")
    for _ in range(5):
        messages = shop.pull(subscription, 1)
        assert [m.data for m in messages] == [b"poison"]
        shop.nack(subscription, messages)
    assert shop.pull_now(dead) == [b"poison"]
    assert shop.pull_now(subscription) == [b"good"]


def test_the_policy_is_checked_and_can_be_changed(shop, dead: str) -> None:
    with pytest.raises(exceptions.NotFound):
        shop.subscribe(dead_letter_policy={"dead_letter_topic": f"{PROJECT}/topics/nowhere"})
    with pytest.raises(exceptions.InvalidArgument, match="max_delivery_attempts"):
        shop.subscribe(dead_letter_policy={"dead_letter_topic": DEAD, "max_delivery_attempts": 4})
    subscription = shop.subscribe()
    shop.publish(b"a")
    shop.subscriber.update_subscription(
        request={
            "subscription": {
                "name": subscription,
                "dead_letter_policy": {"dead_letter_topic": DEAD, "max_delivery_attempts": 5},
            },
            "update_mask": {"paths": ["dead_letter_policy"]},
        }
    )
    give_up(shop, subscription, 5)
    assert shop.pull_now(dead) == [b"a"]


def test_a_detached_subscription_drops_what_it_has_and_pulls_nothing_more(server, shop, tmp_path):
    subscription = shop.subscribe()
    shop.publish(b"a")
    shop.publisher.detach_subscription(request={"subscription": subscription})
    with pytest.raises(exceptions.FailedPrecondition, match="detached"):
        shop.pull(subscription)
    assert shop.subscriber.get_subscription(subscription=subscription).detached
    assert list(shop.publisher.list_topic_subscriptions(topic=shop.topic)) == []
    assert server.read_stats()[subscription]["undelivered_messages"] == 0
    server.stop()
    server.start()
    with pytest.raises(exceptions.FailedPrecondition, match="detached"):
        shop.pull(subscription)
    shop.subscriber.delete_subscription(subscription=subscription)
    with pytest.raises(exceptions.NotFound):
        shop.publisher.detach_subscription(request={"subscription": subscription})
