"""A service with an archive, a Pub/Sub server and a warm Spark Connect server, which runs backfills."""

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa

from backfill.run.progress import CheckpointFolder
from cli.processes import free_port
from connectors.lake.archive import LakeArchive
from connectors.pubsub.client import PubSub
from connectors.spark.connect import ConnectServer
from jobs.keys import Keyring
from jobs.store import JobStore
from model.principal import SCOPES
from model.settings import read_settings
from rollout.child import Child, Children
from tests.acceptance.receiving import receive_waiting
from tests.archive import PUBLISHED, messages, write_commits
from tests.worlds.processes import plain_environment, start_pubsub

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
        host = f"127.0.0.1:{self.pubsub_port}"
        self.environment = plain_environment(REFEED_HOME=str(home), PUBSUB_EMULATOR_HOST=host, **environment)
        self.settings = read_settings(self.environment)
        self._children = children
        start_pubsub(children, home, self.pubsub_port, environment=self.environment)
        self.pubsub = PubSub(self.settings.project, self.settings.pubsub_emulator_host)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.api_port}", timeout=20)
        self.write_archive()
        self.api = self.start_api()

    def write_archive(self) -> None:
        archive, rows = LakeArchive(self.settings.lake, self.settings.archive_table), numbered(ROWS)
        write_commits(archive, {"orders": rows.slice(0, ROWS // 2)}, {"orders": rows.slice(ROWS // 2)})

    def start_api(self) -> Child:
        command = [sys.executable, "-c", _SERVE, str(self.api_port)]
        log = self.home / "logs" / "api.log"
        api = self._children.start(Child("api", command, environment=self.environment, log=log))
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

    def post(self, topic: str, **options: Any) -> httpx.Response:
        self.pubsub.create_topic(topic)
        return self.client.post("/backfills", json=request(topic, **options))

    def create(self, topic: str, **options: Any) -> str:
        answer = self.post(topic, **options)
        assert answer.status_code == 202, answer.text
        return answer.json()["id"]

    def lift_limit(self, backfill_id: str) -> None:
        answer = self.client.patch(f"/jobs/{backfill_id}", json={"rate_limit_messages_per_second": None})
        assert answer.status_code == 200, answer.text

    def show(self, backfill_id: str) -> dict[str, Any]:
        return self.client.get(f"/jobs/{backfill_id}").json()

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


def numbered(count: int) -> pa.RecordBatch:
    """Return messages of 400 bytes that their numbers tell apart."""
    data = [n.to_bytes(4, "big") * 100 for n in range(count)]
    return messages(count, data=data, publish_time=[PUBLISHED] * count)


def check_tagged(message: Any, token: str, backfill_id: str) -> None:
    """Fail unless it is one of :func:`numbered`, with a replay's attributes and no others."""
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


def rows_of(received: list[Any]) -> Counter[int]:
    return Counter(int(m.attributes["refeed_row"]) for m in received)


class Office(House):
    """A house whose API knows ann, who makes backfills, and bob, who approves them."""

    def use_keys(self) -> None:
        store = JobStore(self.settings.job_store)
        keys = {name: Keyring(store).create(name, list(SCOPES))[1] for name in ("ann", "bob")}
        store.close()
        self.bob = httpx.Client(base_url=self.client.base_url, timeout=20, headers=bearer(keys["bob"]))
        self.client.headers.update(bearer(keys["ann"]))
        self.key = keys["ann"]

    def do(self, backfill_id: str, verb: str, **content: Any) -> dict[str, Any]:
        answer = self.client.post(f"/jobs/{backfill_id}:{verb}", **content)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def published(self, backfill_id: str) -> int:
        """What is confirmed so far, as the tasks wrote it down."""
        folder = CheckpointFolder(self.home / "backfills" / backfill_id / "progress")
        return sum(c.published for c in folder.read_all())

    @contextmanager
    def terminal(self, *arguments: str, key: str | None = "ann") -> Iterator[subprocess.Popen[str]]:
        """Run ``refeed`` against the API, with ann's key or without any."""
        environment = {**self.environment, "REFEED_API_URL": str(self.client.base_url)}
        if key is not None:
            environment["REFEED_API_KEY"] = self.key
        command = [sys.executable, "-m", "cli.main", *arguments]
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def close(self) -> None:
        self.bob.close()
        super().close()


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def request(topic: str, **options: Any) -> dict[str, Any]:
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    bounds = {"from": today - timedelta(days=1), "to": today + timedelta(days=2)}
    parameters = {name: {"type": "TIMESTAMP", "value": at.isoformat()} for name, at in bounds.items()}
    return {"query": QUERY, "topic": topic, "parameters": parameters, **options}
