"""What the pipeline's benchmarks send: orders with a schema, orders without one, and real webhooks.

The webhooks lie beside the project, or where ``WEBHOOKS`` says. Without them their cases are skipped, and say so.
"""

import gzip
import json
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from model.message import Message
from pipeline.descriptors import DescriptorSet
from pipeline.registry import Source

WEBHOOKS = Path(
    os.environ.get("WEBHOOKS") or Path(__file__).parents[2] / "shared" / "data" / "github_webhooks.ndjson.gz"
)
TOPIC = "events"
SUBSCRIPTION = "refeed-pipeline.events"
ODD_SHARES = (0.0, 0.01, 0.1, 1.0)
KINDS = ("protobuf", "inferred", "webhooks")
# The number of variants of each webhook. Objects such as its repository are equal in all variants.
VARIANTS = 40
_EQUAL_OBJECTS = {
    *("repository", "sender", "organization", "installation", "enterprise", "app"),
    *("user", "owner", "repo", "author", "creator", "assignee"),
}
_LONG_TEXT, _LARGE_NUMBER = 5, 1000
_TYPE = "event"
_SOURCES = {
    "protobuf": "message: bench.Order, key: id",
    "inferred": f"schema: inferred, event_type_attribute: {_TYPE}",
}


@dataclass(frozen=True)
class Case:
    """What is sent: a kind of messages, the share of odd ones, and how many types of events there are.

    An odd message has a field that is a number in one and an object in the next. No schema has it, and without a
    schema its column is JSON. So the decoder reads an odd message alone, also when it has met many of them.
    """

    kind: str
    odd: float = 0.0
    types: int = 1

    @property
    def name(self) -> str:
        """The name in tables."""
        types = "" if self.types == 1 or self.kind == "webhooks" else f", {self.types} types"
        return f"{self.kind}{types}" + (f", {self.odd:.0%} odd" if self.odd else "")

    @property
    def is_missing(self) -> bool:
        """Whether the messages are not on this machine."""
        return self.kind == "webhooks" and not WEBHOOKS.exists()

    @property
    def source(self) -> Source:
        """The source for a decoder without a schema."""
        names = ("events", TOPIC, SUBSCRIPTION, "staging.events", "reporting.events", "default", "plain")
        return Source(*names, event_type_attribute=_TYPE)

    @property
    def registry_files(self) -> dict[str, bytes]:
        """What is published to the registry."""
        rest = _SOURCES.get(self.kind, _SOURCES["inferred"])
        sources = f"sources:\n  events: {{topic: {TOPIC}, {rest}}}\n".encode()
        found = {"sources.yaml": sources}
        return found | ({"bench.desc": make_descriptors()} if self.kind == "protobuf" else {})

    def make_events(self, count: int) -> list[Message]:
        """Return ``count`` messages, the types in turn."""
        dice = random.Random(2)
        found = read_webhooks() if self.kind == "webhooks" else self._orders(count)
        events = [found[number % len(found)] for number in range(count)]
        places = [place for place in range(count) if dice.random() < self.odd]
        for number, place in enumerate(places):
            extra = json.dumps(number if number % 2 else {"number": number}).encode()
            data = events[place].data.removesuffix(b"}") + b', "extra": ' + extra + b"}"
            events[place] = Message(data=data, attributes=events[place].attributes)
        return events

    def _orders(self, count: int) -> list[Message]:
        """Return orders; each of many types has a field that only its type has."""
        bodies = make_bodies(count)
        if self.types == 1:
            return [Message(data=body) for body in bodies]
        own = [f"kind_{number % self.types}" for number in range(count)]
        return [
            Message(data=body.removesuffix(b"}") + f', "{name}": {number}}}'.encode(), attributes={_TYPE: name})
            for number, (name, body) in enumerate(zip(own, bodies, strict=True))
        ]


@cache
def read_webhooks() -> Sequence[Message]:
    """Return the webhooks, some kilobytes each, in variants one after the other.

    No two have the same numbers and texts of their own. Their repositories, users and the like are the same.
    """
    lines = [json.loads(line) for line in gzip.decompress(WEBHOOKS.read_bytes()).splitlines()]
    return [
        Message(
            data=json.dumps(_vary(line["data"], number)).encode(),
            attributes={_TYPE: line["attributes"]["event"]},
        )
        for number in range(VARIANTS)
        for line in lines
    ]


def _vary(value: Any, number: int) -> Any:
    if isinstance(value, dict):
        return {name: child if name in _EQUAL_OBJECTS else _vary(child, number) for name, child in value.items()}
    if isinstance(value, list):
        return [_vary(child, number) for child in value]
    if isinstance(value, str) and len(value) > _LONG_TEXT:
        return f"{value[:-4]}{number:04}"
    return value + number if type(value) is int and value > _LARGE_NUMBER else value


def order_descriptor() -> Descriptor:
    """Return the message of an order."""
    return DescriptorSet([make_descriptors()]).message("bench.Order")


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
    """Return ``count`` orders of about 450 bytes as JSON."""
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
