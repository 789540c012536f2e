"""The pipeline with 300 types of events in one group, fed at 8,000 messages/s, beside json and protobuf alone.

Each type has a table and a field of its own; their schemas are inferred. They are learned first, untimed. Then the
messages come at their rate, each of a type drawn at random, and the clock runs from the first one sent to the last
row committed. Two figures: how much of the asked rate that is, and how it stands beside ``bench/pipeline.py``'s
limit with the same bodies.
"""

import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.pipeline import LIMIT_MESSAGES, make_bodies, measure_limit
from bench.yard import start_server
from connectors.pubsub.client import PubSub
from connectors.pubsub.publish import Publisher
from model.message import Message
from pipeline.job import group_home
from pipeline.registry import Registry
from rollout.child import Child, Children
from streams.status import StatusFile

TYPES = 300
ASKED_RATE = 8_000
SECONDS = 30
SOURCES = b"sources:\n  events: {topic: events, schema: inferred, event_type_attribute: event}\n"
_PORTION = 800
_WAIT_SECONDS = 900


def run(types: int = TYPES, rate: int = ASKED_RATE, seconds: int = SECONDS) -> list[dict[str, Any]]:
    """Measure the stream at the asked rate, and the limit."""
    bodies = make_bodies(20_000)
    limit = measure_limit(bodies[:LIMIT_MESSAGES])
    events = make_events(types, bodies)
    reached = measure_stream(events, types, rate, seconds)
    size = sum(len(event.data) for event in events) // len(events)
    name, unit = f"pipeline: {types} types of events in one group", f"messages/s of {size} bytes"
    return [
        {
            "name": f"{name}, of the asked rate",
            "unit": unit,
            "refeed": reached,
            "limit": rate,
            "ratio": reached / rate,
        },
        {
            "name": f"{name}, of json + protobuf",
            "unit": unit,
            "refeed": reached,
            "limit": limit,
            "ratio": reached / limit,
        },
    ]


def make_events(types: int, bodies: list[bytes]) -> list[Message]:
    """Return events of ``types`` types in turn, each with a field that only its type has."""
    found = []
    for number, body in enumerate(bodies):
        kind = f"kind_{number % types}"
        found.append(
            Message(data=json.dumps({**json.loads(body), kind: number}).encode(), attributes={"event": kind})
        )
    return found


def measure_stream(events: list[Message], types: int, rate: int, seconds: int) -> float:
    """Return the messages per second from the first one sent to the last one's commit."""
    with tempfile.TemporaryDirectory() as folder, Children() as children:
        settings, environment, _ = start_server(Path(folder), children)
        Registry(settings.registry).publish({"sources.yaml": SOURCES})
        with PubSub(settings.project, settings.pubsub_emulator_host) as pubsub:
            pubsub.create_topic("events")
            pubsub.create_subscription("refeed-pipeline.events", "events", ack_deadline_seconds=60)
            publisher = Publisher(pubsub.channel, pubsub.topic_path("events"))
            publisher.publish(events[:types])
            pipeline = children.start(
                Child(
                    "pipeline",
                    [sys.executable, "-m", "cli.main", "pipeline", "run"],
                    environment=environment,
                    log=Path(folder) / "pipeline.log",
                )
            )
            status = group_home(settings, "default") / "status.json"
            _wait_for_rows(status, types, pipeline)
            started = time.perf_counter()
            sent = _publish_at(publisher, events, rate, seconds)
            _wait_for_rows(status, types + sent, pipeline)
            return sent / (time.perf_counter() - started)


def _publish_at(publisher: Publisher, events: list[Message], rate: int, seconds: int) -> int:
    """Publish events drawn at random at ``rate`` for ``seconds``; return how many there were."""
    dice = random.Random(1)
    started, sent = time.perf_counter(), 0
    while sent < rate * seconds:
        publisher.publish(dice.choices(events, k=_PORTION))
        sent += _PORTION
        time.sleep(max(0.0, started + sent / rate - time.perf_counter()))
    return sent


def _wait_for_rows(status: Path, rows: int, pipeline: Child) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        found = (StatusFile.read(status) or {}).get("totals", {}).get("messages", 0)
        if found >= rows:
            return
        assert pipeline.is_running, pipeline.log_tail()
        assert time.monotonic() < deadline, f"{found} of {rows} rows within {_WAIT_SECONDS} s"
        time.sleep(0.05)
