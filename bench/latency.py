"""Seconds from POST to the first message on the topic and to the end, beside a bare spark-submit of an empty job.

Cold is an API that answers since a moment, with no Spark server yet; warm is one that has run a backfill. The
messages have 200 bytes. What Refeed does in that time is all of it: gate, job store, selection, a driver process,
tasks, publishing, checkpoints. The limit is what a launcher that starts Spark for every job can't be under: the
same machine's `spark-submit` with defaults, of a job that counts one row.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import httpx
import pyarrow as pa
from google.pubsub_v1.types import pubsub as messages_pb

from cli.processes import free_port, is_listening
from connectors.lake.archive import LakeArchive
from connectors.pubsub.client import PubSub
from connectors.spark.connect import ConnectServer
from connectors.spark.home import find_spark_submit
from connectors.spark.java import find_java_home
from model.archive import Attempt
from model.job import JobState
from model.settings import Settings, read_settings
from rollout.child import Child, Children

SIZES = (1, 1_000, 100_000)
ROUNDS = 3
QUERY = (
    "SELECT data, attributes, message_id FROM backup.messages "
    "WHERE _PARTITIONTIME >= @from AND _PARTITIONTIME < @to AND topic = @topic"
)
EMPTY_JOB = """\
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("empty").getOrCreate()
assert spark.range(1).count() == 1
spark.stop()
"""


@dataclass(frozen=True)
class Taken:
    """Seconds from POST to the first message and to the end."""

    to_first: float
    to_end: float


def run(sizes: tuple[int, ...] = SIZES, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Measure cold, warm and the limit, turn about, and return the medians."""
    cold: dict[int, list[Taken]] = {size: [] for size in sizes}
    warm: dict[int, list[Taken]] = {size: [] for size in sizes}
    limit: list[float] = []
    with tempfile.TemporaryDirectory() as folder, Children() as children:
        place = Place(Path(folder), children, sizes)
        for number in range(rounds):
            limit.append(measure_limit(Path(folder)))
            print(f"  round {number + 1}: spark-submit of an empty job {limit[-1]:.1f} s", flush=True)
            for size in sizes:
                api = place.start_api()
                cold[size].append(place.measure(size))
                print(f"  round {number + 1}: {size:,} rows cold {_show(cold[size][-1])}", flush=True)
                if size == sizes[-1]:
                    for again in sizes:
                        warm[again].append(place.measure(again))
                        print(f"  round {number + 1}: {again:,} rows warm {_show(warm[again][-1])}", flush=True)
                place.stop_api(api)
        place.close()
    median = statistics.median(limit)
    return [
        {
            "name": f"latency, {size:,} rows {state}: {what}",
            "unit": "s",
            "refeed": (seconds := statistics.median(getattr(one, field) for one in taken[size])),
            "limit": median,
            "ratio": seconds / median,
            "goal_ratio": None,
        }
        for state, taken in (("cold", cold), ("warm", warm))
        for size in sizes
        for what, field in (("first message", "to_first"), ("end", "to_end"))
    ]


class Place:
    """A home with an archive of one topic a size, a Pub/Sub server, and an API that comes and goes."""

    def __init__(self, folder: Path, children: Children, sizes: tuple[int, ...]) -> None:
        self._folder = folder
        self._children = children
        self._pubsub_port, self._api_port = free_port(), free_port()
        self._environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("REFEED_")},
            "REFEED_HOME": str(folder / "home"),
            "PUBSUB_EMULATOR_HOST": f"127.0.0.1:{self._pubsub_port}",
            "REFEED_RATE_LIMIT_PER_MINUTE": "1000000",
        }
        self.settings = read_settings(self._environment)
        server = [sys.executable, "-m", "local.server", "--port", str(self._pubsub_port)]
        pubsub = self._start("pubsub", [*server, "--data-dir", str(folder / "pubsub")])
        pubsub.wait_until(
            lambda: is_listening(f"127.0.0.1:{self._pubsub_port}"), seconds=20, what="begun to listen"
        )
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{self._api_port}", timeout=60)
        self._pubsub = PubSub(self.settings.project, self.settings.pubsub_emulator_host)
        self._number = 0
        fill(self.settings, sizes)

    def start_api(self) -> Child:
        """Start the API and return as soon as it answers; Spark is not there yet."""
        api = self._start(
            "api", [sys.executable, "-m", "cli.main", "api", "--open", "--port", str(self._api_port)]
        )
        api.wait_until(self._answers, seconds=60, what="answered")
        return api

    def stop_api(self, api: Child) -> None:
        """End the API and its Spark server, so that the next one is cold."""
        api.stop()
        ConnectServer(self.settings.home / "run", {}).stop()

    def measure(self, size: int) -> Taken:
        """Replay the topic of ``size`` rows to a new one, and take the time."""
        self._number += 1
        topic = f"replay-{self._number}"
        self._pubsub.create_topic(topic)
        self._pubsub.create_subscription(topic, topic)
        listener = Listener(self._pubsub, topic)
        today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        bounds = {"from": today - timedelta(days=1), "to": today + timedelta(days=2)}
        parameters = {name: {"type": "TIMESTAMP", "value": at.isoformat()} for name, at in bounds.items()}
        parameters["topic"] = {"type": "STRING", "value": source_of(size)}
        asked = time.monotonic()
        made = self._client.post("/backfills", json={"query": QUERY, "topic": topic, "parameters": parameters})
        made.raise_for_status()
        path = f"/jobs/{made.json()['id']}"
        while not JobState((shown := self._client.get(path).json())["state"]).is_final:
            time.sleep(0.02)
        ended = time.monotonic()
        assert shown["progress"]["published"] == size, shown
        return Taken(listener.first_at() - asked, ended - asked)

    def close(self) -> None:
        self._client.close()
        self._pubsub.close()

    def _start(self, name: str, command: list[str]) -> Child:
        log = self._folder / f"{name}.log"
        return self._children.start(Child(name, command, environment=self._environment, log=log))

    def _answers(self) -> bool:
        with suppress(httpx.TransportError):
            return self._client.get("/healthz").is_success
        return False


class Listener:
    """Waits in a thread for the first message of a subscription."""

    def __init__(self, pubsub: PubSub, subscription: str) -> None:
        self._pull = pubsub.channel.unary_unary(
            "/google.pubsub.v1.Subscriber/Pull",
            request_serializer=messages_pb.PullRequest.pb().SerializeToString,
            response_deserializer=messages_pb.PullResponse.pb().FromString,
        )
        self._request = messages_pb.PullRequest.pb()(
            subscription=pubsub.subscription_path(subscription), max_messages=1
        )
        self._seen_at: float | None = None
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def first_at(self) -> float:
        self._thread.join(60)
        assert self._seen_at is not None, "no message came"
        return self._seen_at

    def _wait(self) -> None:
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline:
            with suppress(grpc.RpcError):
                if self._pull(self._request, timeout=60).received_messages:
                    self._seen_at = time.monotonic()
                    return


def measure_limit(folder: Path) -> float:
    """Run spark-submit of a job that does nothing, as it comes."""
    job = folder / "empty.py"
    job.write_text(EMPTY_JOB)
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_DIRS": str(folder / "scratch"),
    }
    command = [str(find_spark_submit()), "--master", "local[2]", str(job)]
    begun = time.monotonic()
    subprocess.run(command, check=True, env=environment, capture_output=True, cwd=folder)
    return time.monotonic() - begun


def source_of(size: int) -> str:
    return f"orders-{size}"


def fill(settings: Settings, sizes: tuple[int, ...]) -> None:
    """Write an archive with one topic a size, as one commit."""
    archive = LakeArchive(settings.lake, settings.archive_table)
    archive.create()
    lease = archive.take_lease("bench")
    entry = pa.struct([("key", pa.string()), ("value", pa.string())])
    parts = []
    for size in sizes:
        batch = pa.record_batch(
            {
                "data": pa.array([os.urandom(100).hex().encode() for _ in range(size)], pa.binary()),
                "attributes": pa.array([[{"key": "n", "value": str(n)}] for n in range(size)], pa.list_(entry)),
                "message_id": [str(n) for n in range(size)],
                "publish_time": pa.array([datetime.now(UTC)] * size, pa.timestamp("us", "UTC")),
                "ordering_key": [""] * size,
            }
        )
        parts.append((source_of(size), "backup", batch))
    archive.commit([archive.writer().write(parts)], Attempt("bench", 1, "bench", lease))


def _show(taken: Taken) -> str:
    return f"first message {taken.to_first:.1f} s, end {taken.to_end:.1f} s"


if __name__ == "__main__":
    print(run())
