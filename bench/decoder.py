"""The pipeline's decoder in one process, beside json and protobuf, and beside itself without native code.

The limit parses each order with ``json_format`` after its schema and serialises it. "One by one" is the same
decoder without forms (``pipeline/forms.py``). They take turns in one process. A speed is messages per second of
CPU time, so that other load changes little. Messages come in batches as large as the stream's.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass

from bench.comparison import Run, alternate, summarise
from bench.pipeline_events import KINDS, ODD_SHARES, Case, order_descriptor
from bench.yard import is_quick, is_wanted
from connectors.columns import arrow_schema
from connectors.pubsub.pull import PULLED_SCHEMA
from model.message import Message
from pipeline import forms
from pipeline.decode import Decoder
from pipeline.inferred import InferredDecoder, learn
from pipeline.mapping import map_message
from pipeline.schema import message_schema

MESSAGES = 20_000
# Each variant of each webhook.
WEBHOOK_MESSAGES = 8_640
ROUNDS = 7
# What the stream gives a decoder at once, of one type and of 48.
BATCH = {"protobuf": 5_000, "inferred": 5_000, "webhooks": 9_600}
TIMES_LIMIT = 10.0
TIMES_WEBHOOKS = 3.0
# With few odd messages, of the speed without any; and the most that a source of odd messages alone costs.
FEW = 0.01
FEW_ODD = 0.9
ALL_ODD = 1 / 1.1
_NEVER = 1 << 60
_LESSONS = 20
_Decode = Callable[[pa.RecordBatch], Any]


def run() -> list[dict[str, Any]]:
    """Measure each kind of messages with each share of odd ones."""
    results: list[dict[str, Any]] = []
    for kind in KINDS:
        for odd in ODD_SHARES:
            case = Case(kind, odd)
            if not is_wanted(case.name):
                continue
            if case.is_missing:
                print(f"  SKIPPED {case.name}: the webhooks are missing; WEBHOOKS names their file", flush=True)
                continue
            results.append(measure(case))
    return results


def measure(case: Case) -> dict[str, Any]:
    """Measure the decoder, itself without forms or without the few odd messages, and the limit, turn about."""
    events, batches, with_forms = _open(case)
    alone = open_decoder(case, batches)
    contenders = {
        "refeed": lambda: _time(lambda: _decode_all(with_forms, batches), len(events)),
        "one_by_one": lambda: _time(lambda: _decode_one_by_one(alone, batches), len(events)),
    }
    is_order = case.kind != "webhooks"
    if is_order:
        contenders["limit"] = lambda: measure_limit(events[:5_000])
    if case.odd == FEW:
        _, others, without_odd = _open(replace(case, odd=0.0))
        contenders["without_odd"] = lambda: _time(lambda: _decode_all(without_odd, others), len(events))
    runs = alternate(contenders, dict.fromkeys(contenders, 2 if is_quick() else ROUNDS))
    ratios: dict[str, float | None] = {"limit": None} if is_order else {}
    ratios |= {"one_by_one": TIMES_WEBHOOKS if case.kind == "webhooks" and not case.odd else None}
    if case.kind == "protobuf" and not case.odd:
        ratios["limit"] = TIMES_LIMIT
    if case.odd == FEW:
        ratios["without_odd"] = FEW_ODD
    if case.odd == 1:
        ratios["one_by_one"] = ALL_ODD
    result = summarise(f"decoder: {case.name}", runs, ratios=ratios)
    size = sum(len(event.data) for event in events) // len(events)
    return result | {"unit": f"messages of {size} B per CPU s"}


def _open(case: Case) -> tuple[list[Message], list[pa.RecordBatch], _Decode]:
    """Return messages, their batches, and a decoder that has met all of them."""
    count = WEBHOOK_MESSAGES if case.kind == "webhooks" else MESSAGES
    events = case.make_events(count // 10 if is_quick() else count)
    batches = [pull(events[at : at + BATCH[case.kind]]) for at in range(0, len(events), BATCH[case.kind])]
    decode = open_decoder(case, batches)
    # A form is learned from the first messages, and rests after those that do not fit.
    _decode_all(decode, batches, times=4)
    return events, batches, decode


def measure_limit(events: Sequence[Message]) -> Run:
    """Parse and serialise orders in this process."""
    message = GetMessageClass(order_descriptor())

    def parse() -> None:
        for event in events:
            json_format.Parse(event.data, message(), ignore_unknown_fields=True).SerializeToString()

    return _time(parse, len(events))


def open_decoder(case: Case, batches: Sequence[pa.RecordBatch]) -> _Decode:
    """Return a decoder of the case, which knows the types of all its messages."""
    if case.kind == "protobuf":
        message = order_descriptor()
        schema = arrow_schema(message_schema(message))
        return Decoder(map_message(message), schema, version="v", topic="events", token="t").decode
    source, types = case.source, []
    for _ in range(_LESSONS):
        decoder = InferredDecoder(source, types, secret="s", max_bytes=10_000_000)
        with one_by_one():
            found = [decoder.decode(batch) for batch in batches]
        if not any(batch.unfit for batch in found):
            return InferredDecoder(source, types, secret="s", max_bytes=10_000_000).decode
        types = learn(source, types, [variation for batch in found for variation in batch.variations.values()])
    raise AssertionError(f"{case.name}: messages do not fit after {_LESSONS} lessons")


@contextmanager
def one_by_one() -> Iterator[None]:
    """Let no form read a message."""
    with patch.object(forms, "FEWEST", _NEVER):
        yield


def pull(events: Sequence[Message]) -> pa.RecordBatch:
    """Return messages as a Pull brings them."""
    moment = datetime.now(UTC)
    rows = [
        {
            "data": event.data,
            "attributes": list(event.attributes.items()),
            "message_id": str(number),
            "publish_time": moment,
            "ordering_key": "",
            "ack_id": "",
        }
        for number, event in enumerate(events)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=PULLED_SCHEMA)


def _decode_all(decode: _Decode, batches: Sequence[pa.RecordBatch], times: int = 1) -> None:
    for _ in range(times):
        for batch in batches:
            decode(batch)


def _decode_one_by_one(decode: _Decode, batches: Sequence[pa.RecordBatch]) -> None:
    with one_by_one():
        _decode_all(decode, batches)


def _time(work: Callable[[], None], messages: int) -> Run:
    # What others left behind is not collected on this one's time.
    gc.collect()
    gc.freeze()
    started = time.process_time()
    work()
    seconds = time.process_time() - started
    gc.unfreeze()
    return Run(messages / seconds, seconds / messages * 1e6)
