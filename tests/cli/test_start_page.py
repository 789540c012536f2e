"""docs/start.md: its consumer prints the tag of a replayed message."""

import os
import re
import subprocess
import sys
from pathlib import Path

from connectors.pubsub.client import PubSub
from tests.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "start.md"


def test_the_consumer_prints_what_is_a_replay(refeed, pubsub_server, tmp_path):
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "consumer.py").write_text(program)
    lines = tmp_path / "lines"
    lines.write_text(
        '{"topic":"orders","data":{"id":1}}\n'
        '{"topic":"orders","data":{"id":2},"attributes":{"refeed_backfill_id":"bf_1"}}\n'
    )
    environment = {**os.environ, "PUBSUB_EMULATOR_HOST": pubsub_server.emulator_host}
    out = tmp_path / "out"
    with PubSub("refeed-local", pubsub_server.emulator_host) as pubsub, out.open("w") as file:
        pubsub.create_topic("orders")
        command = [sys.executable, str(tmp_path / "consumer.py")]
        consumer = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
        try:
            wait_until(lambda: pubsub.list_subscriptions("orders") != [], seconds=60, why="it subscribes")
            assert refeed("publish", str(lines)).code == 0
            wait_until(lambda: out.read_text().count("\n") == 2, seconds=60, why="both messages are printed")
        finally:
            consumer.kill()
            consumer.wait(30)
    assert sorted(out.read_text().splitlines()) == ['{"id":1} no replay', '{"id":2} bf_1']
