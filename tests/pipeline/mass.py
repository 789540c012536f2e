"""Compares native reading with the decoder over any number of mutated messages: ``python -m tests.pipeline.mass``.

A crash of native code ends this process, so tests run it as a child.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from connectors.columns import arrow_schema
from pipeline import forms
from pipeline.decode import DecodedBatch, Decoder
from pipeline.descriptors import DescriptorSet
from pipeline.inferred import InferredBatch, InferredDecoder, learn
from pipeline.mapping import map_message
from pipeline.schema import message_schema
from tests.pipeline.conftest import compile_protos, messages
from tests.pipeline.mutated import messages_of
from tests.pipeline.test_forms import EVENT, KINDS, ORDER, PURCHASE, SOURCE

BATCH = 500
# A round has this many batches of a source. Each round has other messages, and an inferred source learns anew.
ROUND = 40
_TOKENS = (
    *(bytes([byte]) for byte in b'":,{}[]\\0-+eE. tfnu\x00\xff\xc3\x7f'),
    b"null",
    b"1e400",
    b"9" * 20,
    b'\\"',
)
# Fewer fields are more often all known.
_EVENTS = (
    EVENT,
    {name: EVENT[name] for name in ("id", "price", "name", "at", "lines", "tags", "ok")},
    {name: EVENT[name] for name in ("id", "big", "tags", "prices", "nothing", "hollow")},
)


def mutate(dice: random.Random, data: bytes, other: bytes) -> bytes:
    """Return ``data`` with a piece replaced by a token, by a piece of its own, or by one of ``other``."""
    at = int(dice.random() * (len(data) + 1))
    end = at + int(dice.random() ** 4 * 12)
    kind = dice.random()
    if kind < 0.6:
        return data[:at] + _TOKENS[int(dice.random() * len(_TOKENS))] + data[end:]
    if kind < 0.75:
        return data[:at] + data[end:]
    giver = data if kind < 0.9 else other
    begin = int(dice.random() * len(giver))
    return data[:at] + giver[begin : begin + int(dice.random() * 30)] + data[end:]


def batches(dice: random.Random, fields: Any) -> Iterator[list[bytes]]:
    """Yield batches of messages: as they are made, made with odd parts, and mutated ones of both."""
    pool = messages_of(dice, fields, 1500, odd=0) + messages_of(dice, fields, 500, odd=0.5)
    for _ in range(ROUND):
        found = dice.choices(pool, k=BATCH)
        for place in range(0, BATCH, 2):
            found[place] = mutate(dice, found[place], found[place - 1])
        yield found


def is_same_array(one: pa.Array, other: pa.Array) -> bool:
    """Whether two arrays are equal; NaN is equal to itself, and 0.0 is not -0.0."""
    if one.type != other.type or len(one) != len(other) or one.is_valid() != other.is_valid():
        return False
    if pa.types.is_struct(one.type):
        return all(map(is_same_array, one.flatten(), other.flatten()))
    if pa.types.is_list(one.type):
        return bool(one.value_lengths() == other.value_lengths()) and is_same_array(one.flatten(), other.flatten())
    if pa.types.is_floating(one.type):
        pair = [np.where(a.is_null(), 0, a.to_numpy(zero_copy_only=False)) for a in (one, other)]
        return bool(
            np.array_equal(*pair, equal_nan=True)
            and np.array_equal(*(np.signbit(values[~np.isnan(values)]) for values in pair))
        )
    return bool(one.equals(other))


def difference(law: DecodedBatch, native: DecodedBatch) -> str | None:
    """Return in what two results differ, None where they are equal; their times of ingestion do not count."""
    rows = [found.rows.drop_columns("ingest_time") for found in (law, native)]
    if rows[0].schema != rows[1].schema:
        return "schema"
    for name in ("indices", "refused", "unknown", "missing"):
        if getattr(law, name) != getattr(native, name):
            return name
    return next((name for name in rows[0].schema.names if not is_same_array(*(row[name] for row in rows))), None)


def difference_of_types(law: InferredBatch, native: InferredBatch) -> str | None:
    """Return in what two results of an inferred source differ, None where they are equal."""
    for name in ("refused", "unfit"):
        if getattr(law, name) != getattr(native, name):
            return name
    told = [[(key, one.to_json()) for key, one in found.variations.items()] for found in (law, native)]
    if told[0] != told[1] or [kind for kind, _ in law.tables] != [kind for kind, _ in native.tables]:
        return "variations"
    pairs = zip(law.tables, native.tables, strict=True)
    return next((found for one, other in pairs if (found := difference(one[1], other[1]))), None)


class Mass:
    """Decodes the same messages both ways; ``read`` are those that native code made rows of."""

    def __init__(self) -> None:
        self.done = self.read = 0
        real = forms.Form.read

        def read(form: forms.Form, payloads: Sequence[bytes]) -> forms.NativeRows:
            found = real(form, payloads)
            self.read += len(found.indices)
            assert not form.is_off
            return found

        forms.Form.read = read  # type: ignore[method-assign]
        # It goes on trying, with few messages and small objects too.
        forms.REST, forms.FEWEST, forms.FEWEST_SHARED = 0, 1, 1  # type: ignore[misc]

    def check(
        self, what: str, payloads: Sequence[bytes], differ: Callable[[Any, Any], str | None], *both: Any
    ) -> Any:
        """Decode ``payloads`` both ways and return the result of the decoder."""
        batch = messages(*payloads)
        law, native = (decoder.decode(batch) for decoder in both)
        if found := differ(law, native):
            Path("mass.failed").write_bytes(b"\n".join(payloads))
            raise SystemExit(f"{what}: {found} differs; the messages are in mass.failed, one a line")
        self.done += len(payloads)
        return law

    def schema_round(
        self, dice: random.Random, open_decoder: Callable[[], Decoder], fields: Any, what: str
    ) -> None:
        """Compare one round of a source with a schema."""
        law, native = open_decoder(), open_decoder()
        law.read_one_by_one()
        for payloads in batches(dice, fields):
            self.check(what, payloads, difference, law, native)

    def inferred_round(self, dice: random.Random, fields: Any, what: str) -> None:
        """Compare one round of an inferred source, which learns from its first messages."""
        types: Any = []
        for number, payloads in enumerate([messages_of(dice, fields, 60, odd=0), *batches(dice, fields)]):
            if number < 2:
                law, native = (InferredDecoder(SOURCE, types, secret="s", max_bytes=20_000) for _ in range(2))
                law.read_one_by_one()
            found = self.check(what, payloads, difference_of_types, law, native)
            if number == 0:
                types = learn(SOURCE, [], list(found.variations.values()))


def main() -> None:
    """Compare rounds of all sources until ``--messages`` are done, and print how many were read natively."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    mass, seed = Mass(), given.seed * 1_000_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "order.proto").write_text(f'syntax = "proto3";\nimport "refeed/options.proto";\n{ORDER}')
        openers = []
        for file, message, fields in (
            ("kinds.proto", "kinds.Everything", KINDS),
            ("order.proto", "Order", PURCHASE),
        ):
            descriptor = DescriptorSet([compile_protos(folder, file)]).message(message)
            openers.append((lambda found=descriptor: _open(found), fields))
        while mass.done < given.messages:
            seed += 1
            dice = random.Random(seed)
            for opener, fields in openers:
                mass.schema_round(dice, opener, fields, f"seed {seed}")
            mass.inferred_round(dice, _EVENTS[seed % len(_EVENTS)], f"seed {seed}, inferred")
            if seed % 20 == 0:
                sys.stderr.write(f"{mass.done} messages, {mass.read} read natively\n")
    sys.stdout.write(f"{mass.done} messages, {mass.read} read natively, 0 differences\n")


def _open(message: Any) -> Decoder:
    columns = arrow_schema(message_schema(message))
    return Decoder(map_message(message), columns, version="v", topic="orders", token="t", max_bytes=20_000)


if __name__ == "__main__":
    main()
