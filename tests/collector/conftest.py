import asyncio
import secrets
import socket

import httpx
import pytest
import uvicorn
from google.pubsub_v1 import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from cli.processes import free_port
from collector.delivery import DirectDelivery, TopicDirectory
from collector.door import Door
from collector.http import Collector
from collector.server import make_config
from collector.settings import read_collector_settings
from connectors.pubsub.client import PubSub
from local.server import PubSubServer


@pytest.fixture(scope="session")
def pubsub_server(tmp_path_factory):
    with PubSubServer(tmp_path_factory.mktemp("pubsub")) as running:
        yield running


@pytest.fixture(scope="session")
def pubsub(pubsub_server):
    with PubSub("shop", pubsub_server.emulator_host) as client:
        yield client


class Yard:
    """A topic of its own with a subscription, and a collector before it, called in process."""

    def __init__(self, pubsub, folder):
        self.pubsub = pubsub
        self._folder = folder
        # One loop for all calls: a collector lives on the loop that it was first called on.
        self.loop = asyncio.Runner()
        self._subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=pubsub.channel))
        self.topic = self.add_topic(f"orders-{secrets.token_hex(4)}")

    def add_topic(self, topic):
        self.pubsub.create_topic(topic)
        path = self.pubsub.subscription_path(f"sub-{topic}")
        self._subscriber.create_subscription(request={"name": path, "topic": self.pubsub.topic_path(topic)})
        return topic

    def add_unread(self):
        """Return a topic that nothing subscribes to."""
        topic = f"unread-{secrets.token_hex(4)}"
        self.pubsub.create_topic(topic)
        return topic

    def remove_topic(self, topic):
        self.pubsub.delete_subscription(f"sub-{topic}")
        self.pubsub.delete_topic(topic)

    def pull(self, count, topic=None):
        """Return ``count`` messages, and fail when there are more."""
        path = self.pubsub.subscription_path(f"sub-{topic or self.topic}")
        found = []
        while len(found) < count:
            answer = self._subscriber.pull(subscription=path, max_messages=1000, timeout=10, retry=None)
            found += [each.message for each in answer.received_messages]
            ids = [each.ack_id for each in answer.received_messages]
            self._subscriber.acknowledge(subscription=path, ack_ids=ids)
        # A short time makes the server answer at once when there is nothing.
        more = self._subscriber.pull(subscription=path, max_messages=10, timeout=0.2, retry=None)
        assert [each.message.data for each in more.received_messages] == []
        assert len(found) == count
        return found

    def settings(self, yaml="", *topics):
        """Return settings for this topic, which ``yaml`` calls TOPIC."""
        path = self._folder / "collector.yaml"
        path.write_text(yaml.replace("TOPIC", self.topic))
        return read_collector_settings(topics or (self.topic,), path)

    def collector(self, settings=None, *, is_open=True):
        found = settings or self.settings()
        return Collector(
            found,
            delivery=DirectDelivery(self.pubsub, give_up_seconds=found.publish_timeout_seconds),
            directory=TopicDirectory(self.pubsub),
            door=Door(found, is_open=is_open),
        )

    def serve(self, work, *, app=None, **bounds):
        async def go():
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                server = uvicorn.Server(make_config(app or self.collector(), **{"head_seconds": 5, **bounds}))
                task = asyncio.create_task(server.serve([listener]))
                async with asyncio.timeout(10):
                    while not server.started:  # noqa: ASYNC110  uvicorn has no event for it
                        await asyncio.sleep(0.01)
                try:
                    return await work(listener.getsockname()[1])
                finally:
                    server.should_exit = True
                    await task

        return self.loop.run(go())

    def call(self, work, app=None, client=("127.0.0.1", 50_000)):
        async def run():
            transport = httpx.ASGITransport(app or self.collector(), client=client, raise_app_exceptions=True)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as found:
                return await work(found)

        return self.loop.run(run())

    def post(self, content, *, app=None, to=None, client=("127.0.0.1", 50_000), **headers):
        """Post once; a header's name has ``_`` for ``-``."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}

        async def work(caller):
            return await caller.post(to or f"/{self.topic}", content=content, headers=named)

        return self.call(work, app, client)


@pytest.fixture
def yard(pubsub, tmp_path):
    made = Yard(pubsub, tmp_path)
    with made.loop:
        yield made


@pytest.fixture
def away():
    """A client of a Pub/Sub that nobody serves."""
    with PubSub("shop", f"127.0.0.1:{free_port()}") as client:
        yield client


def problem_of(response):
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert (body["status"], body["type"]) == (response.status_code, f"/problems/{body['code']}")
    return body["status"], body["code"], [error["code"] for error in body["errors"]]
