"""Labels of topics, which Refeed reads and others write."""

from google.pubsub_v1.services.publisher import PublisherClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from connectors.pubsub.client import PubSub


def label_topic(pubsub: PubSub, topic: str, **labels: str) -> None:
    publisher = PublisherClient(transport=PublisherGrpcTransport(channel=pubsub.channel))
    named = {"name": pubsub.topic_path(topic), "labels": labels}
    publisher.update_topic({"topic": named, "update_mask": {"paths": ["labels"]}})
