"""What the benchmarks run on: a local Pub/Sub server, topics, messages of one kind, an archive to watch."""

import json
import os
import random
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

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


def start_server(folder: Path, children: Children, *options: str) -> tuple[Settings, dict[str, str], Child]:
    """Start a Pub/Sub server on an empty folder; return settings and environment that lead to it, and itself."""
    port = free_port()
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith("REFEED_")},
        "REFEED_HOME": str(folder / "home"),
        "PUBSUB_EMULATOR_HOST": f"127.0.0.1:{port}",
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
