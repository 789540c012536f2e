import pytest

from connectors.lake.query import open_connection
from connectors.pubsub.client import PubSub
from local.server import PubSubServer
from tests.issuer import issuer, keys_by_kind

__all__ = ["issuer", "keys_by_kind"]


def run_query(snapshot, sql, parameters, limits):
    with open_connection(snapshot, limits) as run:
        return run(sql, parameters).read_all()


@pytest.fixture
def server(tmp_path):
    with PubSubServer(tmp_path / "pubsub") as running:
        yield running


@pytest.fixture
def pubsub(server):
    with PubSub("shop", server.emulator_host) as client:
        yield client
