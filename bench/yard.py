"""What the benchmarks run on: a local Pub/Sub server, topics, messages of one kind, an archive to watch."""

import json
import os
import random
import sys
import time
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from cli.processes import free_port, is_listening
from connectors.lake.archive import LakeArchive
from connectors.pubsub.channel import open_channel
from connectors.pubsub.client import PubSub
from connectors.pubsub.publish import Publisher
from model.message import Message, replay_token
from model.settings import Settings, read_settings
from rollout.child import Child, Children

TOPIC = "orders"
SUBSCRIPTION = "refeed-backup.orders"
MESSAGE_BYTES = 1_000
# Both limits work in the same portions: what one commit holds, and Pulls or Publishes that wait for their answer.
LIMIT_COMMIT_BYTES = 128 * 1024 * 1024
IN_FLIGHT = 4
PROGRAMS = Path(__file__).parent / "programs"
_BACKUP = (
    "import os, sys; from app.streams import run_backup; from model.settings import read_settings; "
    "sys.exit(run_backup(read_settings(os.environ)))"
)
# A line of an order has this many bytes at least.
_LINE_BYTES = 64


def is_quick() -> bool:
    """Whether ``QUICK`` asks for a run that shows that all works, and whose figures say nothing."""
    return bool(os.environ.get("QUICK"))


def is_wanted(case: str) -> bool:
    """Whether ``CASES`` names the case; without ``CASES`` all are wanted."""
    wanted = [name.strip() for name in os.environ.get("CASES", "").split(";") if name.strip()]
    return not wanted or case in wanted


def start_server(
    folder: Path, children: Children, *options: str, lake: str | None = None
) -> tuple[Settings, dict[str, str], Child]:
    """Start a Pub/Sub server on an empty folder; return settings and environment that lead to it, and itself.

    The lake is in the home unless ``lake`` says where else.
    """
    port = free_port()
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith("REFEED_")},
        "REFEED_HOME": str(folder / "home"),
        "PUBSUB_EMULATOR_HOST": f"127.0.0.1:{port}",
        **({"REFEED_LAKE": lake} if lake else {}),
    }
    server = children.start(
        Child(
            "pubsub",
            [
                *(sys.executable, "-m", "local.server", "--port", str(port)),
                *("--data-dir", str(folder / "pubsub"), *options),
            ],
            environment=environment,
            log=folder / "pubsub.log",
        )
    )
    server.wait_until(lambda: is_listening(f"127.0.0.1:{port}"), seconds=60, what="begun to listen")
    return read_settings(environment), environment, server


def start_backup(folder: Path, children: Children, environment: dict[str, str]) -> Child:
    """Start the stream as it is started in production."""
    command = [sys.executable, "-c", _BACKUP]
    return children.start(Child("backup", command, environment=environment, log=folder / "backup.log"))


def start_program(
    name: str,
    arguments: Sequence[str],
    folder: Path,
    children: Children,
    environment: dict[str, str],
    *,
    python: str = sys.executable,
) -> Child:
    """Start one of the programs that Refeed is timed beside."""
    command = [python, str(PROGRAMS / f"{name}.py"), *arguments]
    # Programs of ours find the packages that they import; Beam's has none of them.
    environment = environment | ({"PYTHONPATH": str(PROGRAMS.parents[1])} if python == sys.executable else {})
    return children.start(Child(name, command, environment=environment, log=folder / f"{name}.log"))


def attach(settings: Settings, topics: Sequence[str] = (TOPIC,)) -> None:
    """Create topics with their backup subscriptions."""
    with PubSub(settings.project, settings.pubsub_emulator_host) as pubsub:
        for topic in topics:
            pubsub.create_topic(topic)
            token = replay_token(settings.replay_secret(), topic)
            pubsub.attach_backup(topic, token=token, ack_deadline_seconds=60)


def publish(settings: Settings, messages: int, *, topic: str = TOPIC, size_bytes: int = MESSAGE_BYTES) -> None:
    """Publish messages with 4 attributes that compress about as a shop's events do."""
    batch = make_messages(size_bytes)
    with open_channel(settings.pubsub_emulator_host) as channel:
        publisher = Publisher(channel, f"projects/{settings.project}/topics/{topic}")
        for at in range(0, messages, len(batch)):
            publisher.publish(batch[: messages - at])


@cache
def make_messages(size_bytes: int = MESSAGE_BYTES) -> list[Message]:
    """Return some thousand orders as JSON, fewer when they are large: all differ, zstd makes a sixth of them."""
    dice = random.Random(1)
    names = [f"{dice.choice('ABCDEFGH')}{dice.randrange(10**4)} Street" for _ in range(500)]
    return [
        Message(
            data=_order(dice, names, size_bytes),
            attributes={"event": "order", "source": "shop", "n": str(number), "v": "1"},
        )
        for number in range(max(100, min(10_000, 20_000_000 // size_bytes)))
    ]


def _order(dice: random.Random, names: list[str], size_bytes: int) -> bytes:
    """Return the first bytes of an order with as many lines as it takes."""
    lines = [
        {
            "sku": f"{dice.randrange(10**8):08}",
            "name": dice.choice(names),
            "quantity": dice.randrange(1, 9),
            "price": round(dice.random() * 100, 2),
        }
        for _ in range(size_bytes // _LINE_BYTES + 1)
    ]
    order = {
        "event_id": f"{dice.getrandbits(128):032x}",
        "type": "order.placed",
        "version": 3,
        "occurred_at_ms": 1_780_000_000_000 + dice.randrange(10**9),
        "customer": {"id": dice.randrange(10**7), "address": dice.choice(names), "is_member": dice.random() < 0.5},
        "lines": lines,
    }
    return json.dumps(order).encode()[:size_bytes]


def count_rows(archive: LakeArchive) -> int:
    """Return how many rows the archive has now."""
    if not DeltaTable.is_deltatable(archive.uri):
        return 0
    return sum(file.rows for file in archive.data_files())


def wait_for_rows(backup: Child, archive: LakeArchive, rows: int) -> None:
    """Return once the archive has ``rows``."""
    backup.wait_until(lambda: count_rows(archive) == rows, seconds=300, what=f"archived {rows} messages")


def publish_steadily(publisher: Publisher, messages: Sequence[Message], rate: int, seconds: float) -> int:
    """Publish ``rate`` messages a second for so long, a few at a time, and return how many they were."""
    coming, sent = cycle(messages), 0
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        if due := min(int(passed * rate) - sent, len(messages)):
            publisher.publish(list(islice(coming, due)))
            sent += due
        time.sleep(0.01)
    return sent


def read_commit_times(
    tables: Iterable[Path], column: str, *, since: float = 0.0
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the publish time, in ``column``, and the commit time of every row committed since, in seconds."""
    committed: dict[Path, float] = {}
    for table in tables:
        for log in (table / "_delta_log").glob("*.json"):
            at = log.stat().st_mtime
            for line in log.read_text().splitlines() if at >= since else ():
                added = json.loads(line).get("add", {})
                # Compaction rewrites rows that were durable before.
                if added.get("dataChange"):
                    committed[table / added["path"]] = at
    published = [np.empty(0)]
    for path in committed:
        times = pq.ParquetFile(path).read(columns=[column]).column(0)
        published.append(times.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy() / 1e6)
    counts = [len(times) for times in published[1:]]
    return np.concatenate(published), np.repeat(np.array(list(committed.values())), counts)
