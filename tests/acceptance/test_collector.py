"""A collector with a queue is killed while Pub/Sub is away: what it answered is published all the same."""

import json
import threading
from pathlib import Path

import httpx
import pytest

from cli.processes import free_port
from connectors.pubsub.client import PubSub
from rollout.child import Child, Children
from tests.acceptance.receiving import receive_waiting
from tests.waiting import wait_until
from tests.worlds.processes import plain_environment, start_module, start_pubsub

pytestmark = pytest.mark.kills

_TOPIC = "orders"
_SENDERS = 8


class Site:
    """A Pub/Sub server and a collector as processes, and what the collector has answered."""

    def __init__(self, home: Path, children: Children) -> None:
        self._home = home
        self._children = children
        self._pubsub_port, self.port = free_port(), free_port()
        self.address = f"127.0.0.1:{self._pubsub_port}"
        self._environment = plain_environment(
            REFEED_HOME=str(home),
            PUBSUB_EMULATOR_HOST=self.address,
            REFEED_COLLECTOR_TOPICS=_TOPIC,
            REFEED_COLLECTOR_QUEUE_BYTES="50000000",
        )
        self.answered: dict[str, int] = {}
        self._lock = threading.Lock()

    def start_pubsub(self) -> Child:
        return start_pubsub(self._children, self._home, self._pubsub_port, environment=self._environment)

    def start_collector(self) -> Child:
        command = ("cli.main", "collector", "--port", str(self.port))
        return start_module(
            self._children, self._home, "collector", *command, environment=self._environment, port=self.port
        )

    def send(self, start: int) -> None:
        """Send events until the collector is gone, and note those that it answered."""
        with httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=30) as client:
            for number in range(start, start + 1_000_000):
                try:
                    answer = client.post(f"/{_TOPIC}", content=json.dumps({"n": number}))
                except httpx.TransportError:
                    return
                assert answer.status_code == 202, answer.text
                with self._lock:
                    self.answered[answer.json()["uuid"]] = number


@pytest.fixture
def site(tmp_path):
    with Children() as children:
        yield Site(tmp_path / "home", children)


def test_every_answered_event_is_published_with_its_uuid_over_kills(site):
    pubsub = site.start_pubsub()
    with PubSub("refeed-local", site.address) as admin:
        admin.create_topic(_TOPIC)
        admin.create_subscription("all", _TOPIC)
        collector = site.start_collector()

        for is_away in (False, True, True):
            if is_away:
                pubsub.kill()
            before = len(site.answered)
            senders = [
                threading.Thread(target=site.send, args=(10_000_000 * number,), daemon=True)
                for number in range(_SENDERS)
            ]
            for sender in senders:
                sender.start()
            wait_until(lambda: len(site.answered) > before + 300, seconds=30, why="events are answered")  # noqa: B023
            collector.kill()
            for sender in senders:
                sender.join(30)
                assert not sender.is_alive()
            collector = site.start_collector()
        pubsub = site.start_pubsub()

        found = {}

        def pull():
            for each in receive_waiting(admin.channel, admin.subscription_path("all")):
                found[each.attributes["uuid"]] = json.loads(each.data)["n"]
            return site.answered.keys() <= found.keys()

        wait_until(pull, seconds=60, why="all answered events are published")
    assert {uuid: found[uuid] for uuid in site.answered} == site.answered
    assert len(site.answered) > 900
