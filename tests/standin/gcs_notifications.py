"""Publishes the notifications of the stand-in for Cloud Storage as Google may: twice, late and in any order.

"Pub/Sub notifications for Cloud Storage", section "Delivery guarantees": at least once, so one event may come as
several messages with different ids, and in no order: https://cloud.google.com/storage/docs/pubsub-notifications
"""

import random

from google.pubsub_v1.types import PubsubMessage

from connectors.pubsub.client import PubSub
from tests.standin.gcs_server import GcsServer


def publish_unkindly(gcs: GcsServer, pubsub: PubSub, topic: str, *, seed: int = 0, times: int = 2) -> int:
    """Publish every notification so far ``times`` times in a shuffled order, and return how many messages that is.

    They stay, so that the next call publishes old ones again after newer ones.
    """
    with gcs.lock:
        attributes = [dict(each) for each in gcs.notifications] * times
    random.Random(seed).shuffle(attributes)
    messages = [PubsubMessage(attributes=each) for each in attributes]
    if messages:
        pubsub._publisher.publish(topic=pubsub.topic_path(topic), messages=messages)
    return len(messages)
