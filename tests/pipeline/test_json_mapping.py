"""What protobuf itself writes as JSON is a row with the values that were set, whatever its printer's options."""

import math
import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass

from connectors.columns import arrow_schema
from pipeline.decode import Decoder
from pipeline.mapping import map_message
from pipeline.schema import message_schema
from tests.pipeline.conftest import messages

SCALARS = ("large", "unsigned", "real", "single", "flag", "text", "raw", "kind", "by_mail", "by_phone")
LARGE = (-(1 << 63), (1 << 63) - 1, 0, 1 << 53)
REALS = (0.0, -0.0, 1.5, 1e300, 5e-324, math.inf, -math.inf)
TEXTS = ("", 'é\n"\\', "🙂", "\x00")


def fill(message, dice: random.Random):
    """Set some fields of ``message`` to what is at the edges of their types."""
    edges = {
        "implicit": (-(1 << 31), 0, 7),
        "large": LARGE,
        "unsigned": (0, (1 << 63) - 1),
        "real": REALS,
        "single": (0.0, 0.25, -math.inf),
        "flag": (True, False),
        "text": TEXTS,
        "raw": (b"", b"\x00\xff", b"\xfb\xff\xfe"),
        "kind": (0, 1, -5),
        **dice.choice([{"by_mail": TEXTS}, {"by_phone": LARGE}]),
    }
    for name, values in edges.items():
        if dice.random() < 0.6:
            setattr(message, name, dice.choice(values))
    message.kinds.extend(dice.choice((0, 1, -5)) for _ in range(dice.randrange(3)))
    message.reals.extend(dice.choice(REALS) for _ in range(dice.randrange(3)))
    for _ in range(dice.randrange(3)):
        message.by_text[dice.choice(TEXTS)] = dice.choice(LARGE)
        message.by_number[dice.choice((-(1 << 31), 0))].deep.n.append(3)
        message.by_flag[dice.random() < 0.5] = 1
    if dice.random() < 0.6:
        message.at.seconds, message.at.nanos = (
            dice.choice((-62135596800, 253402300799)),
            dice.choice((0, 999999000)),
        )
        message.took.seconds, message.took.nanos = dice.choice(((315576000000, 0), (0, -1), (-1, -999999999)))
        message.wrapped.value = b"\x01"
        message.part.n = 5
    return message


@pytest.fixture
def edition(describe):
    return describe("edition.proto").message("M")


def test_what_protobuf_writes_is_read_as_it_was_meant(edition):
    dice = random.Random(1)
    decoder = Decoder(
        map_message(edition), arrow_schema(message_schema(edition)), version="v", topic="orders", token="t"
    )
    written = [fill(GetMessageClass(edition)(), dice) for _ in range(200)]
    texts = [
        json_format.MessageToJson(
            message,
            preserving_proto_field_name=dice.random() < 0.5,
            use_integers_for_enums=dice.random() < 0.5,
            always_print_fields_with_no_presence=dice.random() < 0.5,
        )
        for message in written
    ]
    decoded = decoder.decode(messages(*[text.encode() for text in texts]))
    assert (decoded.refused, decoded.unknown) == ([], {})
    for message, row in zip(written, decoded.rows.to_pylist(), strict=True):
        # repr tells -0.0 from 0.0.
        wanted = [repr(getattr(message, name) if message.HasField(name) else None) for name in SCALARS]
        assert [repr(row[name]) for name in SCALARS] == wanted
        assert row["implicit"] == message.implicit
        assert row["kinds"] == list(message.kinds)
        assert list(map(repr, row["reals"])) == list(map(repr, message.reals))
        for name in ("by_text", "by_flag"):
            assert {pair["key"]: pair["value"] for pair in row[name]} == dict(getattr(message, name))
        assert {pair["key"]: pair["value"]["deep"]["n"] for pair in row["by_number"]} == {
            key: list(part.deep.n) for key, part in message.by_number.items()
        }
        if message.HasField("at"):
            moment = timedelta(seconds=message.at.seconds, microseconds=message.at.nanos // 1000)
            assert row["at"] == datetime(1970, 1, 1, tzinfo=UTC) + moment
            assert row["took"] == message.took.seconds + Decimal(message.took.nanos).scaleb(-9)
            assert (row["wrapped"], row["part"]["n"]) == (b"\x01", 5)
