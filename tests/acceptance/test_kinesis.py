"""A reader of Kinesis is killed in a resharding, and while Pub/Sub is away: every record is published."""

import json
import os
import threading
from collections import Counter

import pytest

from cli.processes import free_port
from collector.records import CHUNK_MESSAGES
from connectors.pubsub.client import PubSub
from rollout.child import Children
from tests.acceptance.receiving import receive_waiting
from tests.standin.kinesis import Kinesis
from tests.standin.kms_server import KEY, KmsServer
from tests.waiting import wait_until
from tests.worlds.processes import start_module, start_pubsub

pytestmark = [pytest.mark.kills, pytest.mark.cloud]

_TOPIC = "orders"
_SECRET = "s3cret-key-of-aws"


class Site:
    """Kinesis, Pub/Sub, and what reads one and publishes to the other, as processes."""

    def __init__(self, home, children, kinesis, kms):
        self.home = home
        self.kinesis = kinesis
        self._children = children
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        home.mkdir()
        (home / "aws.enc").write_bytes(kms.encrypt(_SECRET.encode()))
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("REFEED_", "PUBSUB_", "AWS_"))}
        self._environment = {
            **inherited,
            "REFEED_HOME": str(home),
            "PUBSUB_EMULATOR_HOST": self.address,
            "AWS_ENDPOINT_URL_KINESIS": kinesis.endpoint,
            "REFEED_KMS_ENDPOINT": kms.endpoint,
            "AWS_KEY_ID": "AKIATEST",
        }
        self.sent: list[tuple[str, bytes]] = []

    def start_pubsub(self):
        return start_pubsub(self._children, self.home, self._port, environment=self._environment)

    def start_stream(self):
        options = {
            "--stream": _TOPIC,
            "--region": "us-east-1",
            "--topic": _TOPIC,
            "--start": "TRIM_HORIZON",
            "--slots": "1",
            "--batch-seconds": "0.1",
            "--access-key-id": "env:AWS_KEY_ID",
            "--secret-access-key": f"gcp-kms:{KEY}:file:{self.home}/aws.enc",
        }
        words = [word for option in options.items() for word in option]
        command = ("cli.main", "kinesis", "run", *words)
        return start_module(self._children, self.home, "kinesis", *command, environment=self._environment)

    def put(self, count):
        start = len(self.sent)
        records = [(f"k{number % 20}", b"%d" % number) for number in range(start, start + count)]
        self.kinesis.put(_TOPIC, records)
        self.sent += records

    def noted(self):
        path = self.home / "streams" / "kinesis-orders" / "positions.json"
        return json.loads(path.read_text())["shards"] if path.exists() else {}


@pytest.fixture
def site(tmp_path):
    with Children() as children, Kinesis() as kinesis, KmsServer() as kms:
        yield Site(tmp_path / "home", children, kinesis, kms)


def test_every_record_is_published_over_kills_in_a_resharding_and_without_pubsub(site):
    site.kinesis.create(_TOPIC, 2)
    pubsub = site.start_pubsub()
    with PubSub("refeed-local", site.address) as admin:
        admin.create_topic(_TOPIC)
        admin.create_subscription("all", _TOPIC)
        kills = 0
        for is_away in (False, True, False):
            site.put(2_000)
            stream = site.start_stream()
            before = site.noted()
            wait_until(lambda: site.noted() != before, seconds=40, why="positions are noted")  # noqa: B023
            if is_away:
                pubsub.kill()
            feeder = threading.Thread(target=site.put, args=(1_000,), daemon=True)
            feeder.start()
            site.kinesis.split(_TOPIC)
            feeder.join(30)
            assert not feeder.is_alive()
            stream.kill()
            kills += 1
            if is_away:
                pubsub = site.start_pubsub()
        stream = site.start_stream()

        found = []

        def pull():
            found.extend(receive_waiting(admin.channel, admin.subscription_path("all")))
            return len({each.data for each in found}) >= len(site.sent)

        wait_until(pull, seconds=90, why="all records are published")
        stream.stop(seconds=20)

    first = {each.attributes["uuid"]: each for each in reversed(found)}
    assert Counter((each.ordering_key, each.data) for each in first.values()) == Counter(site.sent)
    # Each kill repeats what was in hand of the one shard that was read, and so does the publish that failed.
    assert len(found) - len(first) <= (kills + 1) * CHUNK_MESSAGES
    for key in {key for key, _ in site.sent}:
        own = [int(each.data) for each in found if each.ordering_key == key]
        news = [number for at, number in enumerate(own) if number not in own[:at]]
        assert news == sorted(news)
    shards = site.noted()
    assert sum(each["is_ended"] for each in shards.values()) >= 3
    texts = [path.read_text(errors="replace") for path in site.home.rglob("*") if path.is_file()]
    assert not any(_SECRET in text for text in texts)
