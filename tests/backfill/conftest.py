import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.api_core.exceptions import DeadlineExceeded
from google.pubsub_v1.services.subscriber import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from app.backfills import assemble_backfills, open_queries
from connectors.pubsub.client import PubSub
from jobs.launcher import Launch
from jobs.store import JobStore
from local.server import PubSubServer
from model.errors import LaunchError
from model.process import Process

PUBLISHED_AT = datetime(2024, 3, 1, 12, 0, 0, 5, UTC)


@pytest.fixture
def emulator_host(tmp_path):
    server = PubSubServer(tmp_path / "pubsub")
    port = server.start()
    yield f"127.0.0.1:{port}"
    server.stop()


@pytest.fixture
def pubsub(emulator_host):
    with PubSub("shop", emulator_host) as pubsub:
        yield pubsub


@pytest.fixture
def receive(pubsub):
    """Return what receives so many messages of topic ``replay``, and sees that no more come."""
    pubsub.create_topic("replay")
    pubsub.create_subscription("listener", "replay")
    client = SubscriberClient(transport=SubscriberGrpcTransport(channel=pubsub.channel))
    path = pubsub.subscription_path("listener")

    def pull(count):
        received = []
        deadline = time.monotonic() + 30
        while len(received) < count and time.monotonic() < deadline:
            answer = client.pull(subscription=path, max_messages=1000, timeout=5)
            if answer.received_messages:
                ids = [m.ack_id for m in answer.received_messages]
                client.acknowledge(subscription=path, ack_ids=ids)
                received += [m.message for m in answer.received_messages]
        # A Pull waits for messages: none within half a second means that none are left.
        with suppress(DeadlineExceeded):
            while more := client.pull(subscription=path, max_messages=1000, retry=None, timeout=0.5):
                received += [m.message for m in more.received_messages]
        return received

    return pull


def message_rows(count: int, **columns: Any) -> pa.RecordBatch:
    """Return rows as a query gives them; ``columns`` replace the made-up ones."""
    made: dict[str, Any] = {
        "data": pa.array([f"data {n}".encode() for n in range(count)], pa.binary()),
        "attributes": pa.array(
            [[{"key": "n", "value": str(n)}] for n in range(count)],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])),
        ),
        "message_id": [f"m{n}" for n in range(count)],
        "publish_time": pa.array([PUBLISHED_AT] * count, pa.timestamp("us", tz="UTC")),
        "topic": ["orders"] * count,
        "ordering_key": ["key"] * count,
    }
    return pa.record_batch({**made, **columns})


@dataclass
class FakeLauncher:
    """Starts processes that only sleep; the test says what their drivers would have written."""

    launched: list[Launch] = field(default_factory=list)
    drivers: list[Process] = field(default_factory=list)
    refuses: bool = False
    prepared: int = 0
    closed: int = 0
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def prepare(self) -> None:
        self.prepared += 1

    def launch(self, launch: Launch) -> Process:
        if self.refuses:
            raise LaunchError("There is no Spark today.")
        process = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
        )
        driver = Process.of(process.pid)
        self._processes.append(process)
        self.drivers.append(driver)
        self.launched.append(launch)
        return driver

    def exit_reason(self, driver: Process) -> str | None:
        return None if driver.is_alive else f"Process {driver.pid} was killed."

    def kill(self, driver: Process) -> None:
        driver.signal_group(signal.SIGKILL)
        for process in self._processes:
            if process.pid == driver.pid:
                process.wait()

    def close(self) -> None:
        self.closed += 1

    def end_all(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


@pytest.fixture
def launcher():
    launcher = FakeLauncher()
    yield launcher
    launcher.end_all()


@dataclass
class MemoryStaging:
    """A staging table that holds what the tests say, in parts."""

    rows: dict[str, Any] = field(default_factory=dict)
    merged: int = 0

    def landed_rows(self, backfill_id: str) -> Iterator[Any]:
        yield from np.array_split(np.array(self.rows.get(backfill_id, []), dtype=np.int64), 3)

    def merged_rows(self, backfill_id: str) -> int:
        return self.merged

    def delete_rows(self, backfill_id: str) -> int:
        return len(self.rows.pop(backfill_id, []))


@pytest.fixture
def rows():
    return message_rows


@pytest.fixture
def open_service(deployment, launcher, pubsub):
    def open_one(staging_of=lambda _topic: None, waiting_of=lambda _topic, _until: None, **changes):
        settings = replace(deployment, **changes)
        store, queries = JobStore(settings.home / "jobs.db"), open_queries(settings)
        service = assemble_backfills(
            settings,
            store=store,
            pubsub=pubsub,
            queries=queries,
            launcher=launcher,
            max_running=2,
            staging_of=staging_of,
            waiting_of=waiting_of,
        )
        for close in (store.close, queries.close, service.join, service.stop):
            stack.callback(close)
        return service

    # Each is closed, also after another one that could not be.
    with ExitStack() as stack:
        yield open_one


@pytest.fixture
def service(open_service):
    return open_service()
