"""A deployment on a home of its own, with a local Pub/Sub server; its drivers only sleep."""

from contextlib import ExitStack

import pytest

from app.deployment import Deployment
from connectors.pubsub.client import PubSub
from local.server import PubSubServer
from model.settings import read_settings
from tests.backfill.conftest import FakeLauncher


@pytest.fixture
def launcher():
    launcher = FakeLauncher()
    yield launcher
    launcher.end_all()


@pytest.fixture
def open_deployment(tmp_path, launcher):
    """Make one more deployment of the same home, with these variables; it is closed at the end."""
    with PubSubServer(tmp_path / "pubsub") as server, ExitStack() as stack:
        given = {"REFEED_HOME": str(tmp_path), "PUBSUB_EMULATOR_HOST": server.emulator_host}
        settings = read_settings(given)
        with PubSub(settings.project, server.emulator_host) as pubsub:
            pubsub.create_topic("replay")

        def make(*, interrupt_at_exit=False, **environment):
            deployment = Deployment(
                read_settings({**given, **environment}), interrupt_at_exit=interrupt_at_exit, launcher=launcher
            )
            stack.callback(deployment.close)
            return deployment

        yield make
