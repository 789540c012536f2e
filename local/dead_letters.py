"""What a dead-letter policy sends to its topic: the message as it was, and where it comes from."""

from typing import Any, Final

from google.protobuf import timestamp_pb2

from local.wire import PubsubMessage, read_message

# "Handle message failures", Google's documentation, names these attributes.
_SUBSCRIPTION: Final = "CloudPubSubDeadLetterSourceSubscription"
_PROJECT: Final = "CloudPubSubDeadLetterSourceSubscriptionProject"
_DELIVERY_COUNT: Final = "CloudPubSubDeadLetterSourceDeliveryCount"
_PUBLISH_TIME: Final = "CloudPubSubDeadLetterSourceTopicPublishTime"


def build_dead_letter(record: bytes, subscription: str, delivery_count: int) -> bytes:
    """Return the PubsubMessage to publish for a stored record that ``subscription`` (full name) gave up."""
    message: Any = PubsubMessage.FromString(read_message(record))
    project, name = subscription.split("/")[1::2]
    published: timestamp_pb2.Timestamp = message.publish_time
    attributes = {
        **message.attributes,
        _SUBSCRIPTION: name,
        _PROJECT: project,
        _DELIVERY_COUNT: str(delivery_count),
        _PUBLISH_TIME: published.ToJsonString(),
    }
    dead = PubsubMessage(data=message.data, attributes=attributes, ordering_key=message.ordering_key)
    return bytes(dead.SerializeToString())
