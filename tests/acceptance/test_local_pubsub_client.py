"""Google's own Python client, unchanged and in a process of its own, against the local server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from local.server import PubSubServer

pytestmark = pytest.mark.kills


@pytest.fixture
def run_client(tmp_path):
    with PubSubServer(tmp_path) as server:

        def run(work):
            environment = {**os.environ, "PUBSUB_EMULATOR_HOST": server.emulator_host}
            environment.pop("GOOGLE_APPLICATION_CREDENTIALS", None)
            script = Path(__file__).with_name("local_pubsub_client.py")
            done = subprocess.run(
                [sys.executable, str(script), work],
                env=environment,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)

        yield run


def test_default_batching_and_a_subscriber_with_flow_control(run_client):
    seen = run_client("subscribe")
    assert seen.pop("redelivered") >= 300
    assert seen.pop("most_in_hand") <= 50
    assert seen == {"complete": True, "unique_ids": 3000, "ids_as_received": True, "data_as_sent": True, "left": 0}


def test_ordering_keys_are_received_in_order_also_after_a_nack(run_client):
    assert run_client("order") == {"complete": True, "in_order": {"key0": True, "key1": True, "key2": True}}
