from types import SimpleNamespace

import grpc
import pytest
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from local.server import PubSubServer

PROJECT = "projects/p"


@pytest.fixture
def server(tmp_path):
    with PubSubServer(tmp_path / "pubsub") as running:
        yield running


@pytest.fixture
def channel(server):
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(server.emulator_host, options=options) as opened:
        yield opened


class Shop:
    """Google's clients on one topic, with the calls that tests make most."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.publisher = PublisherClient(transport=PublisherGrpcTransport(channel=channel))
        self.subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
        self.topic = f"{PROJECT}/topics/orders"
        self.publisher.create_topic(name=self.topic)

    def subscribe(self, name: str = "all", **settings: object) -> str:
        path = f"{PROJECT}/subscriptions/{name}"
        self.subscriber.create_subscription(request={"name": path, "topic": self.topic, **settings})
        return path

    def publish(self, *data: bytes, **attributes: str) -> list[str]:
        messages = [{"data": each, "attributes": attributes} for each in data]
        return list(self.publisher.publish(topic=self.topic, messages=messages).message_ids)

    def publish_keyed(self, key: str, *data: bytes) -> None:
        messages = [{"data": each, "ordering_key": key} for each in data]
        self.publisher.publish(topic=self.topic, messages=messages)

    def pull(self, subscription: str, count: int = 100, seconds: float = 10.0) -> list[SimpleNamespace]:
        """Pull once; a short ``seconds`` makes the server answer at once when there is nothing."""
        response = self.subscriber.pull(subscription=subscription, max_messages=count, timeout=seconds, retry=None)
        return [
            SimpleNamespace(data=m.message.data, id=m.message.message_id, ack_id=m.ack_id, message=m.message)
            for m in response.received_messages
        ]

    def pull_now(self, subscription: str, count: int = 100) -> list[bytes]:
        return [m.data for m in self.pull(subscription, count, seconds=0.4)]

    def ack(self, subscription: str, messages: list[SimpleNamespace]) -> None:
        self.subscriber.acknowledge(subscription=subscription, ack_ids=[m.ack_id for m in messages])

    def nack(self, subscription: str, messages: list[SimpleNamespace]) -> None:
        self.subscriber.modify_ack_deadline(
            subscription=subscription, ack_ids=[m.ack_id for m in messages], ack_deadline_seconds=0
        )


@pytest.fixture
def shop(channel):
    return Shop(channel)
