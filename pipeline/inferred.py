"""Sources without a schema: the shapes of their messages make their tables, one for each type of event."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from connectors.columns import arrow_schema
from model.message import replay_token
from model.schema import Field, RowSchema
from pipeline.convert import Findings
from pipeline.decode import DecodedBatch, Decoder, Refusal, UnfitMessageError, read_payloads
from pipeline.forms import Form, layout_of_shape
from pipeline.looks import Looks
from pipeline.mapping import FieldPlan
from pipeline.options import FieldOptions
from pipeline.originals import read_originals
from pipeline.registry import Source
from pipeline.schema import row_columns
from pipeline.shapes import (
    EMPTY,
    Shape,
    UnfitError,
    attributes,
    columns,
    compile_fit,
    grow,
    join,
    prototype_of,
    read_shape,
    structure_of,
    variation_hash,
)
from pipeline.values import parse_json

# An attribute that a producer fills with whatever it likes must not become as many tables.
MAX_TYPES: Final = 1000
# What fits is noted so often for each type: with data as names every message would be a variation of its own.
MAX_VARIATIONS: Final = 1000
_MAX_STRUCTURES: Final = 10_000
_UNFIT: Final = "unfit"
_NOT_A_NAME: Final = re.compile(r"\W", re.ASCII)


@dataclass(frozen=True, slots=True)
class EventType:
    """One type of event of a source: its table, and the shape that all of its messages so far have together."""

    name: str
    table: str
    number: int
    shape: Shape

    @property
    def version(self) -> str:
        """The hash of the shape, as rows carry it."""
        return variation_hash(self.shape)

    @property
    def schema(self) -> RowSchema:
        """The schema of the table."""
        added = row_columns((), "plain")
        return RowSchema((*columns(self.shape), *added), f"Inferred from events {self.name!r}.")

    def to_json(self) -> dict[str, Any]:
        """Return what :meth:`from_json` takes."""
        return {"name": self.name, "table": self.table, "number": self.number, "shape": self.shape.to_json()}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Return the type that :meth:`to_json` described."""
        return cls(found["name"], found["table"], found["number"], Shape.from_json(found["shape"]))


@dataclass(frozen=True, slots=True)
class Variation:
    """A shape of some messages of one type; ``prototype`` is the JSON text of the first one, None for some."""

    source: str
    event_type: str
    hash: str
    shape: Shape
    prototype: str | None = None

    @property
    def attributes(self) -> list[str]:
        """The sorted attributes, which the hash is over."""
        return sorted(attributes(self.shape))

    def to_json(self) -> dict[str, Any]:
        """Return what :meth:`from_json` takes."""
        names = {"source": self.source, "type": self.event_type, "hash": self.hash}
        return {**names, "shape": self.shape.to_json(), "prototype": self.prototype}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Return the variation that :meth:`to_json` described."""
        shape = Shape.from_json(found["shape"])
        return cls(found["source"], found["type"], found["hash"], shape, found["prototype"])


@dataclass(slots=True)
class InferredBatch:
    """The result of a batch: rows by table, refused messages, and those that have to come again."""

    tables: list[tuple[EventType, DecodedBatch]] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    unfit: list[int] = field(default_factory=list)
    variations: dict[tuple[str, str], Variation] = field(default_factory=dict)


class _Met:
    """The variations of one type that this process met among messages that fit; each is reported once.

    Most messages look like one that was met: their structure shows that, before a shape is made of them.
    """

    def __init__(self, source: str, event_type: str) -> None:
        self._source = source
        self._event_type = event_type
        self._structures: set[int] = set()
        self._hashes: set[str] = set()
        self._new: list[Variation] = []

    def is_noting(self) -> bool:
        """Whether a variation more would be noted."""
        return len(self._hashes) < MAX_VARIATIONS

    def note(self, message: Mapping[str, Any]) -> None:
        if not self.is_noting():
            return
        structure = hash(structure_of(message))
        if structure in self._structures:
            return
        if len(self._structures) >= _MAX_STRUCTURES:
            self._structures.clear()
        self._structures.add(structure)
        variation = _variation(self._source, self._event_type, message)
        if variation.hash not in self._hashes:
            self._hashes.add(variation.hash)
            self._new.append(variation)

    def take(self) -> list[Variation]:
        """Return the variations that are new since the last call."""
        found, self._new = self._new, []
        return found


class InferredDecoder:
    """Decodes the messages of a source without a schema, type by type.

    A message that does not fit what its type is known to look like is no row yet: its variation is reported,
    the driver makes room, and the message comes again. So nothing is lost, and a table is always wide enough.
    """

    def __init__(self, source: Source, types: Sequence[EventType], *, secret: str, max_bytes: int) -> None:
        self._source = source
        self._types = {found.name: found for found in types}
        self._token = token = replay_token(secret, source.topic)
        unknown = EventType("", source.staging, 0, EMPTY)
        self._met = {found.name: _Met(source.name, found.name) for found in types}
        self._decoders = {
            found.name: _open_decoder(found, source.topic, token, max_bytes, self._met[found.name])
            for found in types
        }
        self._unknown = _open_decoder(unknown, source.topic, token, max_bytes, None)

    def decode(self, messages: pa.RecordBatch) -> InferredBatch:
        """Return the results of ``messages``; indices are places in it."""
        found = InferredBatch()
        payloads = read_payloads(messages)
        split = self._split(messages)
        originals = read_originals(messages, topic=self._source.topic, token=self._token)
        # Slices cost less than one take for each type.
        originals = originals.take(pa.array(chain.from_iterable(split.values()), pa.int32()))
        end = 0
        for name, places in split.items():
            end += len(places)
            if name not in self._types and len(self._types) >= MAX_TYPES:
                text = (
                    f"{name[:100]!r} is a new event type, but the source already has the maximum of "
                    f"{MAX_TYPES} event types."
                )
                found.refused += [Refusal(place, "too_many_types", text) for place in places]
                continue
            decoded = self._decoders.get(name, self._unknown).decode_payloads(
                [payloads[place] for place in places], originals.slice(end - len(places), len(places))
            )
            for refusal in decoded.refused:
                place = places[refusal.index]
                if refusal.code != _UNFIT:
                    found.refused.append(Refusal(place, refusal.code, refusal.message))
                elif self._report(name, payloads[place], found):
                    found.unfit.append(place)
                else:
                    found.refused.append(Refusal(place, "wrong_type", "Nested too deep."))
            for variation in self._met[name].take() if name in self._met else ():
                found.variations.setdefault((name, variation.hash), variation)
            decoded.indices = [places[index] for index in decoded.indices]
            if decoded.rows.num_rows:
                found.tables.append((self._types[name], decoded))
        return found

    def read_one_by_one(self) -> bool:
        """Read no message by native code any more; return whether some were until now."""
        # Of all of them: any() alone would end at the first.
        were_fast = [decoder.read_one_by_one() for decoder in self._decoders.values()]
        return any(were_fast)

    def _split(self, messages: pa.RecordBatch) -> dict[str, list[int]]:
        """Return the places of the messages of each type of event."""
        attribute = self._source.event_type_attribute
        if attribute is None:
            return {"": list(range(messages.num_rows))}
        pairs = messages.column("attributes")
        is_type = pc.equal(pairs.flatten().field("key"), attribute)
        rows = pc.list_parent_indices(pairs).filter(is_type).to_pylist()
        names = dict(zip(rows, pairs.flatten().field("value").filter(is_type).to_pylist(), strict=True))
        places: dict[str, list[int]] = defaultdict(list)
        for place in range(messages.num_rows):
            places[names.get(place) or ""].append(place)
        return places

    def _report(self, name: str, data: bytes, found: InferredBatch) -> bool:
        """Note the message's variation; return False when it can't be read."""
        try:
            variation = _variation(self._source.name, name, parse_json(str(data, "utf-8")))
        except RecursionError:
            return False
        found.variations.setdefault((name, variation.hash), variation)
        return True


def learn(
    source: Source, types: Sequence[EventType], variations: Sequence[Variation], *, taken: Iterable[str] = ()
) -> list[EventType]:
    """Return the types of ``source`` when it has seen ``variations`` too: new ones, and wider ones a number up.

    No new type gets one of the tables ``taken``, and none beyond MAX_TYPES gets any.
    """
    known = {found.name: found for found in types}
    tables = {name.lower() for name in (*taken, *(found.table for found in types))}
    met: dict[str, Shape] = {}
    for variation in variations:
        met[variation.event_type] = join(met.get(variation.event_type, EMPTY), variation.shape)
    for name, shape in met.items():
        before = known.get(name)
        if before is None:
            if len(known) >= MAX_TYPES:
                continue
            table = _free_table(source, name, tables)
            tables.add(table.lower())
            known[name] = EventType(name, table, 1, grow(EMPTY, shape))
        elif (joined := grow(before.shape, shape)) != before.shape:
            known[name] = EventType(name, before.table, before.number + 1, joined)
    return list(known.values())


def _variation(source: str, event_type: str, message: Mapping[str, Any]) -> Variation:
    shape = read_shape(message) or EMPTY
    return Variation(source, event_type, variation_hash(shape), shape, prototype_of(message))


def _open_decoder(found: EventType, topic: str, token: str, max_bytes: int, met: _Met | None) -> Decoder:
    """Return a decoder of a type's messages, which notes those that fit; a new type has no ``met``."""
    fit = compile_fit(found.shape, is_closed=found.shape.is_closed)
    names = [column.name for column in columns(found.shape)]

    def record(source: Mapping[str, Any], prefix: str, findings: Findings) -> list[Any]:
        if met is None:
            raise UnfitMessageError
        try:
            cells = fit(source, prefix, findings.unknown)
        except UnfitError as exc:
            raise UnfitMessageError from exc
        met.note(source)
        return [cells[name] for name in names]

    layout = partial(layout_of_shape, found.shape)
    return Decoder(
        [_plan(column) for column in columns(found.shape)],
        arrow_schema(found.schema),
        version=found.version,
        topic=topic,
        token=token,
        max_bytes=max_bytes,
        record=record,
        form=None if met is None else partial(Form, layout, max_bytes=max_bytes, looks=Looks(met.is_noting)),
    )


def _plan(column: Field) -> FieldPlan:
    return FieldPlan(
        path=column.name,
        proto_name=column.name,
        names=(column.name,),
        column=column.name,
        kind="json",
        type=column.type,
        is_repeated=column.mode == "REPEATED",
        has_presence=True,
        options=FieldOptions(),
    )


def is_table_of(staging: str, table: str) -> bool:
    """Whether ``table`` is, by its name, that of a type of the source with this ``staging``.

    Example:
        >>> is_table_of("staging.hooks", "staging.hooks_push"), is_table_of("staging.hooks", "staging.calls_push")
        (True, False)
    """
    return table == staging or table.startswith(f"{staging}_")


def _free_table(source: Source, event_type: str, taken: set[str]) -> str:
    if not event_type:
        return source.staging
    table = f"{source.staging}_{_NOT_A_NAME.sub('_', event_type)[:100]}"
    free, number = table, 2
    while free.lower() in taken:
        free, number = f"{table}_{number}", number + 1
    return free
