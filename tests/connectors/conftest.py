import pytest

from connectors.pubsub.client import PubSub
from local.server import PubSubServer


@pytest.fixture
def server(tmp_path):
    with PubSubServer(tmp_path / "pubsub") as running:
        yield running


@pytest.fixture
def pubsub(server):
    with PubSub("shop", server.emulator_host) as client:
        yield client
