"""Google's Node client against the local server: another language's gRPC, protobuf and habits."""

import json
import os
import subprocess

import pytest

from local.server import PubSubServer
from tests.npm import install_packages

pytestmark = pytest.mark.cloud


def test_googles_node_client_publishes_subscribes_filters_and_orders(tmp_path):
    with PubSubServer(tmp_path) as server:
        done = subprocess.run(
            ["node", "pubsub.js"],
            cwd=install_packages(),
            env={**os.environ, "PUBSUB_EMULATOR_HOST": server.emulator_host},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        left = server.read_stats()["projects/shop/subscriptions/orders"]["undelivered_messages"]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "uniqueIds": 501,
        "seen": 500,
        "redelivered": 50,
        "dataAsSent": True,
        "publishTimeIsNow": True,
        "ordered": True,
        "missing": 5,
    }
    assert left == 0
