"""Backfills as whole processes: the API, a Spark Connect server, a Pub/Sub server, and kill -9."""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from cli.processes import free_port, is_listening
from connectors.lake.archive import LakeArchive
from connectors.pubsub.client import PubSub
from connectors.spark.connect import ConnectServer
from jobs.store import JobStore
from model.archive import Attempt
from model.message import replay_filter, replay_token
from model.settings import read_settings
from rollout.child import Child, Children
from tests.acceptance.receiving import receive_waiting

pytestmark = [pytest.mark.java, pytest.mark.kills, pytest.mark.timeout(400)]

ROWS = 40_000
# Slow enough that something is left to kill or to cancel, quick enough for a test.
RATE = 4_000.0
QUERY = (
    "SELECT data, attributes, message_id FROM backup.messages "
    "WHERE _PARTITIONTIME >= @from AND _PARTITIONTIME < @to"
)
_SERVE = (
    "import os, sys, uvicorn; from app.service import create_app; from model.settings import read_settings; "
    "uvicorn.run(create_app(read_settings(os.environ)), host='127.0.0.1', port=int(sys.argv[1]))"
)


class House:
    """One home with an archive, a Pub/Sub server and the API; jobs of several tests share its warm Spark."""

    def __init__(self, home: Path, children: Children, **environment: str) -> None:
        self.home = home
        self.pubsub_port, self.api_port = free_port(), free_port()
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("REFEED_", "PUBSUB_"))},
            "REFEED_HOME": str(home),
            "PUBSUB_EMULATOR_HOST": f"127.0.0.1:{self.pubsub_port}",
            **environment,
        }
        self.settings = read_settings(self.environment)
        self._children = children
        server = [sys.executable, "-m", "local.server", "--port", str(self.pubsub_port)]
        pubsub = self._child("pubsub", [*server, "--data-dir", str(home / "pubsub")])
        pubsub.wait_until(
            lambda: is_listening(f"127.0.0.1:{self.pubsub_port}"), seconds=20, what="begun to listen"
        )
        self.pubsub = PubSub(self.settings.project, self.settings.pubsub_emulator_host)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.api_port}", timeout=20)
        self.write_archive()
        self.api = self.start_api()

    def _child(self, name: str, command: list[str]) -> Child:
        log = self.home / "logs" / f"{name}.log"
        return self._children.start(Child(name, command, environment=self.environment, log=log))

    def write_archive(self) -> None:
        archive = LakeArchive(self.settings.lake, self.settings.archive_table)
        archive.create()
        lease = archive.take_lease("lease")
        entry = pa.struct([("key", pa.string()), ("value", pa.string())])
        half = ROWS // 2
        for number in range(2):
            rows = range(number * half, (number + 1) * half)
            batch = pa.record_batch(
                {
                    "data": pa.array([n.to_bytes(4, "big") * 100 for n in rows], pa.binary()),
                    "attributes": pa.array([[{"key": "n", "value": str(n)}] for n in rows], pa.list_(entry)),
                    "message_id": [f"m{n}" for n in rows],
                    "publish_time": pa.array([datetime(2024, 3, 1, tzinfo=UTC)] * half, pa.timestamp("us", "UTC")),
                    "ordering_key": [""] * half,
                }
            )
            written = archive.writer().write([("orders", "backup", batch)])
            archive.commit([written], Attempt("stream", number + 1, "lease", lease))

    def start_api(self) -> Child:
        api = self._child("api", [sys.executable, "-c", _SERVE, str(self.api_port)])
        api.wait_until(self.is_ready, seconds=300, what="become ready")
        return api

    def is_ready(self) -> bool:
        try:
            return self.client.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def listen(self, topic: str, message_filter: str = "") -> str:
        self.pubsub.create_topic(topic)
        name = f"listener-{topic}-{len(message_filter)}"
        self.pubsub.create_subscription(name, topic, message_filter=message_filter)
        return self.pubsub.subscription_path(name)

    def create(self, topic: str, **options: Any) -> str:
        today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        bounds = {"from": today - timedelta(days=1), "to": today + timedelta(days=2)}
        parameters = {name: {"type": "TIMESTAMP", "value": at.isoformat()} for name, at in bounds.items()}
        request = {"query": QUERY, "topic": topic, "parameters": parameters, **options}
        answer = self.client.post("/backfills", json=request)
        assert answer.status_code == 202, answer.text
        backfill_id: str = answer.json()["id"]
        return backfill_id

    def lift_limit(self, backfill_id: str) -> None:
        answer = self.client.patch(f"/backfills/{backfill_id}", json={"rate_limit_messages_per_second": None})
        assert answer.status_code == 200, answer.text

    def show(self, backfill_id: str) -> dict[str, Any]:
        shown: dict[str, Any] = self.client.get(f"/backfills/{backfill_id}").json()
        return shown

    def wait(self, backfill_id: str, is_there: Callable[[dict[str, Any]], bool], why: str) -> dict[str, Any]:
        deadline = time.monotonic() + 120
        while not is_there(shown := self.show(backfill_id)):
            assert time.monotonic() < deadline, f"{why}: {shown}\n{self.log_of(backfill_id)}"
            time.sleep(0.05)
        return shown

    def wait_for_state(self, backfill_id: str, state: str) -> dict[str, Any]:
        return self.wait(backfill_id, lambda shown: shown["state"] == state, f"it is {state}")

    def wait_until_it_publishes(self, backfill_id: str) -> dict[str, Any]:
        shown = self.wait(backfill_id, lambda b: b["progress"]["published"] > 0, "it publishes")
        assert shown["state"] == "RUNNING"
        assert shown["progress"]["published"] < ROWS, "too quick for this test"
        return shown

    def log_of(self, backfill_id: str) -> str:
        log = self.home / "backfills" / backfill_id / "driver.log"
        return log.read_text() if log.exists() else "no log"

    def kill_driver(self, backfill_id: str) -> None:
        store = JobStore(self.home / "jobs.db")
        driver = store.get(backfill_id).driver
        store.close()
        assert driver is not None
        assert driver.is_alive
        driver.signal_group(signal.SIGKILL)

    def restarts_of(self, backfill_id: str) -> int:
        store = JobStore(self.home / "jobs.db")
        restarts = store.get(backfill_id).restarts
        store.close()
        return restarts

    def receive(self, subscription: str) -> list[Any]:
        """Take every message that waits; none for a while means that none is left."""
        return receive_waiting(self.pubsub.channel, subscription)

    def close(self) -> None:
        self.client.close()
        self.pubsub.close()
        # It outlives the API that started it, on purpose.
        ConnectServer(self.home / "run", {}).stop()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with Children() as children, closing(House(tmp_path_factory.mktemp("home"), children)) as house:
        yield house


def rows_of(messages: list[Any]) -> Counter[int]:
    return Counter(int(m.attributes["refeed_row"]) for m in messages)


def test_every_selected_message_arrives_tagged_and_none_is_archived_again(house: House) -> None:
    token = replay_token(house.settings.replay_secret(), "whole")
    listener, backup = house.listen("whole"), house.listen("whole", replay_filter(token))

    backfill_id = house.create("whole")
    ended = house.wait_for_state(backfill_id, "SUCCEEDED")

    assert ended["progress"]["selected"] == ended["progress"]["published"] == ROWS
    assert (ended["progress"]["failed"], ended["progress"]["repeated_at_most"], ended["error"]) == (0, 0, None)
    received = house.receive(listener)
    assert rows_of(received) == Counter(range(ROWS))
    for message in received:
        n = int(message.attributes["n"])
        assert message.data == n.to_bytes(4, "big") * 100
        assert dict(message.attributes) == {
            "n": str(n),
            "refeed_replay": token,
            "refeed_backfill_id": backfill_id,
            "refeed_row": message.attributes["refeed_row"],
            "refeed_topic": "orders",
            "refeed_message_id": f"m{n}",
            "refeed_publish_time": "2024-03-01T00:00:00.000000Z",
        }
    assert len({message.attributes["n"] for message in received}) == ROWS
    assert house.receive(backup) == []


def test_a_driver_that_is_killed_is_replaced_and_the_job_completes(house: House) -> None:
    listener = house.listen("killed")
    backfill_id = house.create("killed", rate_limit_messages_per_second=RATE)
    house.wait_until_it_publishes(backfill_id)

    house.kill_driver(backfill_id)
    house.lift_limit(backfill_id)
    ended = house.wait_for_state(backfill_id, "SUCCEEDED")

    found = rows_of(house.receive(listener))
    assert set(found) == set(range(ROWS))
    assert found.total() - ROWS <= ended["progress"]["repeated_at_most"] <= 2 * 4 * 1000
    assert ended["progress"]["published"] == ended["progress"]["selected"] == ROWS
    assert house.restarts_of(backfill_id) == 1


def test_a_cancel_takes_effect_within_two_seconds_and_counts_to_the_message(house: House) -> None:
    listener = house.listen("cancelled")
    backfill_id = house.create("cancelled", rate_limit_messages_per_second=RATE)
    house.wait_until_it_publishes(backfill_id)

    asked = time.monotonic()
    answer = house.client.post(f"/backfills/{backfill_id}:cancel")
    assert answer.json()["state"] in {"CANCELLING", "CANCELLED"}
    house.wait_for_state(backfill_id, "CANCELLED")
    took = time.monotonic() - asked

    received = house.receive(listener)
    shown = house.show(backfill_id)
    assert took < 4, f"{took:.1f} s on a busy machine"
    assert 0 < len(received) == shown["progress"]["published"] < ROWS
    assert shown["error"] is None

    assert house.client.post(f"/backfills/{backfill_id}:retry").status_code == 200
    house.lift_limit(backfill_id)
    ended = house.wait_for_state(backfill_id, "SUCCEEDED")
    assert rows_of(received + house.receive(listener)) == Counter(range(ROWS))
    assert ended["progress"]["repeated_at_most"] == 0


def test_a_backfill_goes_on_while_the_api_is_dead_and_is_found_again(house: House) -> None:
    listener = house.listen("orphan")
    backfill_id = house.create("orphan", rate_limit_messages_per_second=RATE)
    house.wait_until_it_publishes(backfill_id)

    os.killpg(house.api.pid, signal.SIGKILL)
    house.api = house.start_api()
    ended = house.wait_for_state(backfill_id, "SUCCEEDED")

    assert ended["progress"]["published"] == ROWS
    assert rows_of(house.receive(listener)) == Counter(range(ROWS))


def test_a_driver_that_died_while_the_api_was_dead_is_replaced_when_that_is_back(house: House) -> None:
    listener = house.listen("buried")
    backfill_id = house.create("buried", rate_limit_messages_per_second=RATE)
    house.wait_until_it_publishes(backfill_id)

    os.killpg(house.api.pid, signal.SIGKILL)
    house.kill_driver(backfill_id)
    house.api = house.start_api()
    house.lift_limit(backfill_id)

    house.wait_for_state(backfill_id, "SUCCEEDED")
    assert set(rows_of(house.receive(listener))) == set(range(ROWS))
    assert house.restarts_of(backfill_id) == 1


def test_two_backfills_run_side_by_side(house: House) -> None:
    listeners = [house.listen("left"), house.listen("right")]
    jobs = [house.create(topic, rate_limit_messages_per_second=RATE) for topic in ("left", "right")]

    house.wait(
        jobs[0], lambda _: all(house.show(job)["state"] == "RUNNING" for job in jobs), "both run at the same time"
    )
    for job in jobs:
        house.lift_limit(job)
    for job, listener in zip(jobs, listeners, strict=True):
        house.wait_for_state(job, "SUCCEEDED")
        assert rows_of(house.receive(listener)) == Counter(range(ROWS))


# What spark-submit does otherwise is in tests/contract/test_launchers.py.
@pytest.mark.soak
def test_spark_submit_does_the_same(tmp_path: Path) -> None:
    environment = {"REFEED_LAUNCHER": "spark-submit", "REFEED_SPARK_DRIVER_MEMORY": "512m"}
    with Children() as children, closing(House(tmp_path, children, **environment)) as house:
        listener = house.listen("submitted")

        backfill_id = house.create("submitted")
        ended = house.wait_for_state(backfill_id, "SUCCEEDED")

        assert ended["progress"]["published"] == ROWS
        assert rows_of(house.receive(listener)) == Counter(range(ROWS))
