"""The pipeline's stream beside its limit: json and protobuf in one Python process, without anything around them.

The limit parses each message with ``json_format`` after its schema and serialises it; it pulls nothing, writes
nothing and acknowledges nothing. The decoder alone is measured beside it, then the stream: rows after the first
commit, divided by the time from the first commit to the last.
"""

import json
import os
import random
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from google.protobuf import json_format
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message_factory import GetMessageClass

from cli.processes import free_port, is_listening
from connectors.columns import arrow_schema
from connectors.lake.rows import LakeRowTable
from connectors.pubsub.client import PubSub
from connectors.pubsub.publish import Publisher
from connectors.pubsub.pull import PULLED_SCHEMA
from model.message import Message
from model.settings import read_settings
from pipeline.decode import Decoder
from pipeline.descriptors import DescriptorSet
from pipeline.mapping import map_message
from pipeline.registry import Registry
from pipeline.schema import message_schema
from rollout.child import Child, Children

MESSAGES = 200_000
LIMIT_MESSAGES = 20_000
SOURCES = b"sources:\n  orders: {topic: orders, message: bench.Order, key: id}\n"


def run(messages: int = MESSAGES) -> list[dict[str, Any]]:
    """Measure the limit, the decoder and the stream with the same messages."""
    bodies = make_bodies(messages)
    limit = measure_limit(bodies[:LIMIT_MESSAGES])
    decoder = measure_decoder(bodies[: LIMIT_MESSAGES * 2])
    stream = measure_stream(bodies)
    unit = f"messages/s of {sum(map(len, bodies)) // messages} bytes"
    return [
        {"name": f"pipeline: {what}", "unit": unit, "refeed": rate, "limit": limit, "ratio": rate / limit}
        for what, rate in (("decoder, one process", decoder), ("stream, end to end", stream))
    ]


def make_descriptors() -> bytes:
    """Return a descriptor set with an order of 12 fields, a list of lines among them."""
    kinds = FieldDescriptorProto
    file = FileDescriptorProto(name="bench.proto", package="bench", syntax="proto3")
    line = file.message_type.add(name="Line")
    line.field.add(name="sku", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    line.field.add(name="count", number=2, type=kinds.TYPE_INT32, label=kinds.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    scalars = ["id", "shop", "customer", "email", "street", "city", "country", "note", "channel", "currency"]
    for number, name in enumerate(scalars, 1):
        kind = kinds.TYPE_INT64 if name in ("id", "shop") else kinds.TYPE_STRING
        order.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    order.field.add(name="amount", number=11, type=kinds.TYPE_DOUBLE, label=kinds.LABEL_OPTIONAL)
    lines = order.field.add(name="lines", number=12, type=kinds.TYPE_MESSAGE, label=kinds.LABEL_REPEATED)
    lines.type_name = ".bench.Line"
    return FileDescriptorSet(file=[file]).SerializeToString()


def make_bodies(count: int) -> list[bytes]:
    """Return ``count`` orders of about 600 bytes as JSON."""
    dice = random.Random(1)
    return [
        json.dumps(
            {
                "id": str(number),
                "shop": dice.randrange(1000),
                **{name: "x" * dice.randrange(10, 60) for name in ("customer", "email", "street", "city", "note")},
                "country": "SE",
                "channel": "web",
                "currency": "SEK",
                "amount": dice.random() * 1000,
                "lines": [{"sku": f"sku-{dice.randrange(999)}", "count": n} for n in range(dice.randrange(1, 6))],
            }
        ).encode()
        for number in range(count)
    ]


def measure_limit(bodies: list[bytes]) -> float:
    """Return the messages per second of json_format and SerializeToString in one process."""
    message = GetMessageClass(DescriptorSet([make_descriptors()]).message("bench.Order"))
    started = time.perf_counter()
    for body in bodies:
        json_format.Parse(body, message(), ignore_unknown_fields=True).SerializeToString()
    return len(bodies) / (time.perf_counter() - started)


def measure_decoder(bodies: list[bytes]) -> float:
    """Return the messages per second of our decoder in one process, 1,000 messages a batch as Pulls bring them."""
    message = DescriptorSet([make_descriptors()]).message("bench.Order")
    schema = arrow_schema(message_schema(message))
    decoder = Decoder(map_message(message), schema, version="v", topic="orders", token="t")
    batches = [_pulled(bodies[at : at + 1000]) for at in range(0, len(bodies), 1000)]
    started = time.perf_counter()
    for batch in batches:
        assert decoder.decode(batch).rows.num_rows == batch.num_rows
    return len(bodies) / (time.perf_counter() - started)


def measure_stream(bodies: list[bytes]) -> float:
    """Return the rows per second that the stream commits while it drains a backlog."""
    with tempfile.TemporaryDirectory() as folder, Children() as children:
        home = Path(folder)
        port = free_port()
        environment = {
            **{name: text for name, text in os.environ.items() if not name.startswith(("REFEED_", "PUBSUB_"))},
            "REFEED_HOME": str(home),
            "PUBSUB_EMULATOR_HOST": f"127.0.0.1:{port}",
        }
        settings = read_settings(environment)
        server = children.start(
            _child(
                "pubsub",
                ["local.server", "--port", str(port), "--data-dir", str(home / "pubsub")],
                home,
                environment,
            )
        )
        server.wait_until(lambda: is_listening(f"127.0.0.1:{port}"), seconds=30, what="begun to listen")
        Registry(settings.registry).publish({"bench.desc": make_descriptors(), "sources.yaml": SOURCES})
        with PubSub(settings.project, settings.pubsub_emulator_host) as pubsub:
            pubsub.create_topic("orders")
            pubsub.create_subscription("refeed-pipeline.orders", "orders", ack_deadline_seconds=60)
            publisher = Publisher(pubsub.channel, pubsub.topic_path("orders"))
            for at in range(0, len(bodies), 50_000):
                publisher.publish([Message(data=body) for body in bodies[at : at + 50_000]])
        pipeline = children.start(_child("pipeline", ["cli.main", "pipeline", "run"], home, environment))
        return _watch_commits(LakeRowTable(settings.lake, "staging.orders"), len(bodies), pipeline)


def _watch_commits(table: LakeRowTable, messages: int, pipeline: Child) -> float:
    """Return the rows after the first commit, divided by the seconds between the first and the last."""
    deadline = time.monotonic() + 600
    while not table.exists() or not table.data_files():
        assert pipeline.is_running, pipeline.log_tail()
        assert time.monotonic() < deadline, "no commit within 600 s"
        time.sleep(0.05)
    started, first_rows = time.perf_counter(), _rows(table)
    while _rows(table) < messages:
        assert pipeline.is_running, pipeline.log_tail()
        assert time.monotonic() < deadline, "not drained within 600 s"
        time.sleep(0.05)
    return (messages - first_rows) / (time.perf_counter() - started)


def _rows(table: LakeRowTable) -> int:
    return sum(file.rows for file in table.data_files())


def _pulled(bodies: list[bytes]) -> pa.RecordBatch:
    moment = datetime.now(UTC)
    return pa.RecordBatch.from_pylist(
        [
            {
                "data": body,
                "attributes": [],
                "message_id": str(n),
                "publish_time": moment,
                "ordering_key": "",
                "ack_id": "",
            }
            for n, body in enumerate(bodies)
        ],
        schema=PULLED_SCHEMA,
    )


def _child(name: str, module: list[str], home: Path, environment: dict[str, str]) -> Child:
    return Child(name, [sys.executable, "-m", *module], environment=environment, log=home / f"{name}.log")
