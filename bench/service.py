"""Starting everything embedded, and what it takes: seconds until it serves, memory of each process.

``refeed up`` in an empty home, as somebody would start it: seconds until the API answers, until it is ready, and
until a message that was published meanwhile is in the archive. Memory (PSS: shared pages counted once) is read
after some thousand messages and a backfill of them, when every process has done its work.
"""

import os
import re
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from bench.backfill import QUERY
from bench.processes import Usage, tree_usage
from bench.yard import TOPIC, attach, count_rows, publish
from cli.processes import free_port, is_listening
from connectors.lake.archive import LakeArchive
from connectors.pubsub.client import PubSub
from connectors.spark.connect import ConnectServer
from model.job import JobState
from model.settings import Settings, read_settings
from rollout.child import Child, Children

ROUNDS = 3
MESSAGES = 20_000
_ROLES = (
    ("Pub/Sub server", r"local\.server|cli\.main pubsub|refeed pubsub"),
    ("API", r"cli\.main api|refeed api"),
    ("Spark Connect JVM", r"java.*SparkConnectServer"),
    ("backup driver", r"cli\.main backup|refeed backup"),
    ("backup JVM", r"java.*pyspark-shell"),
    ("Python workers of Spark", r"pyspark\.(daemon|sql)"),
    ("backfill driver", r"backfill\.job"),
    ("query and gate processes", r"query_process|sql\.worker"),
    ("refeed up", r"cli\.main up"),
)


@dataclass(frozen=True)
class Start:
    """Seconds from the start of ``refeed up``."""

    answers: float
    ready: float
    archived: float


def run(rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Start everything a few times; return medians, and the memory that the last one took."""
    starts, usages = [], []
    for number in range(rounds):
        started, usages = measure()
        starts.append(started)
        print(f"  round {number + 1}: {started}", flush=True)
    memory = add_up(usages)
    seconds = [
        {"name": f"refeed up: {what}", "unit": "s", "refeed": statistics.median(getattr(s, field) for s in starts)}
        for what, field in (
            ("the API answers", "answers"),
            ("ready", "ready"),
            ("first message archived", "archived"),
        )
    ]
    return [
        *seconds,
        *({"name": f"memory: {role}", "unit": "MB, PSS", "refeed": size / 1e6} for role, size in memory.items()),
        {"name": "memory: all", "unit": "MB, PSS", "refeed": sum(memory.values()) / 1e6},
    ]


def measure() -> tuple[Start, list[Usage]]:
    """Start everything, put it to work, and return how long it took and what it holds."""
    with tempfile.TemporaryDirectory() as name, Children() as children:
        folder = Path(name)
        pubsub_port, api_port = free_port(), free_port()
        environment = {
            **{key: text for key, text in os.environ.items() if not key.startswith("REFEED_")},
            "REFEED_HOME": str(folder / "home"),
            "PUBSUB_EMULATOR_HOST": f"127.0.0.1:{pubsub_port}",
        }
        settings = read_settings(environment)
        began = time.monotonic()
        command = [sys.executable, "-m", "cli.main", "up", "--port", str(api_port)]
        command += ["--pubsub-port", str(pubsub_port)]
        up = children.start(Child("up", command, environment=environment, log=folder / "up.log"))
        up.wait_until(lambda: is_listening(f"127.0.0.1:{pubsub_port}"), seconds=120, what="begun to listen")
        attach(settings)
        publish(settings, MESSAGES)
        archive = LakeArchive(settings.lake, settings.archive_table)
        seen: dict[str, float] = {}
        with httpx.Client(base_url=f"http://127.0.0.1:{api_port}", timeout=30) as client:

            def look() -> bool:
                for what, is_there in (
                    ("answers", lambda: _is_ok(client, "/healthz")),
                    ("ready", lambda: _is_ok(client, "/readyz")),
                    ("archived", lambda: count_rows(archive) > 0),
                ):
                    if what not in seen and is_there():
                        seen[what] = time.monotonic() - began
                return len(seen) == len(Start.__dataclass_fields__) and count_rows(archive) == MESSAGES

            up.wait_until(look, seconds=300, what="started")
            _backfill(client, settings)
        usages = tree_usage([up.pid])
        up.stop()
        ConnectServer(settings.home / "run", {}).stop()
    return Start(**seen), usages


def add_up(usages: list[Usage]) -> dict[str, int]:
    """Return the bytes of each role that processes play, the largest first."""
    found: dict[str, int] = {}
    for usage in usages:
        role = next((role for role, pattern in _ROLES if re.search(pattern, usage.command)), "others")
        found[role] = found.get(role, 0) + usage.pss_bytes
    return dict(sorted(found.items(), key=lambda item: item[1], reverse=True))


def _is_ok(client: httpx.Client, path: str) -> bool:
    with suppress(httpx.TransportError):
        return client.get(path).is_success
    return False


def _backfill(client: httpx.Client, settings: Settings) -> None:
    """Replay what is archived to a topic of its own, and wait for the end."""
    with PubSub(settings.project, settings.pubsub_emulator_host) as pubsub:
        pubsub.create_topic(f"{TOPIC}-again")
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    bounds = {"from": today - timedelta(days=1), "to": today + timedelta(days=2)}
    parameters = {key: {"type": "TIMESTAMP", "value": at.isoformat()} for key, at in bounds.items()}
    body = {"query": QUERY, "topic": f"{TOPIC}-again", "parameters": parameters}
    made = client.post("/backfills", json=body).raise_for_status().json()
    deadline = time.monotonic() + 300
    while not JobState((shown := client.get(f"/jobs/{made['id']}").json())["state"]).is_final:
        assert time.monotonic() < deadline, shown
        time.sleep(0.1)
    assert shown["progress"]["published"] == MESSAGES, shown
