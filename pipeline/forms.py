"""Messages that have the form of their source are read by native code, column by column.

A message fits the form when its rows are beyond doubt. One with another field, another kind of value, a name twice
or a value without a cell does not fit. The decoder reads it alone, and only the decoder refuses messages.
"""

import gc
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain, compress, count
from types import GenericAlias
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
import structlog
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import astuple

from model.widening import EXACT_FLOAT
from pipeline.arrays import Arrays, Make
from pipeline.convert import FAULTS, cell_type, default_cell, exclusive_fields, value_reader
from pipeline.json_names import count_names, is_plain
from pipeline.looks import Look, Looks, Path
from pipeline.mapping import FieldPlan
from pipeline.shapes import Shape
from pipeline.values import Convert, UnknownValueError

_log = structlog.get_logger(__name__)

# The fixed cost of a column is more than it saves for fewer messages.
FEWEST: Final = 16
# When fewer than half of a batch fit, the decoder alone reads the next REST times as many messages.
REST: Final = 20
_MAX_KINDS: Final = 10_000
# A smaller object is read in less time than it is looked up.
FEWEST_SHARED: Final = 8
# If more than this share of so many bytes is new, looking objects up takes longer than reading them.
_TRIED_BYTES: Final = 1 << 20
_MOST_READ: Final = 0.6
_numbers: Final = count()
_INT64: Final = 1 << 63
_Int64 = Annotated[int, Meta(ge=-_INT64, le=_INT64 - 1)]
_ExactInt = Annotated[int, Meta(ge=-EXACT_FLOAT, le=EXACT_FLOAT)]
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_ARROW_FAULTS: Final = (pa.ArrowException, OverflowError, TypeError, ValueError)

_NOTHING: Final = (None, UNSET)
_SCALARS: Final = frozenset((str, int, float, bool, type(None), UnsetType))
_PLAN_KINDS: Final[Mapping[str, Any]] = {
    "text": str,
    "bytes": str,
    "timestamp": str,
    "duration": str,
    "bool": bool | str,
    "int": _Int64 | str,
    "enum": _Int64 | str,
    "float": _ExactInt | float | str,
}
# Beside those whose every value is a cell: the integers among their values are.
_NATIVE: Final = (("int", "INT64"), ("enum", "INT64"))
_Empty = msgspec.defstruct("Empty", [], forbid_unknown_fields=True, gc=False)
_NOTHING_KIND: Final = Annotated[list, Meta(max_length=0)] | _Empty
_SHAPE_KINDS: Final[Mapping[str, Any]] = {
    "INT": _ExactInt,
    "BIGINT": _Int64,
    "FLOAT": _ExactInt | float,
    "BOOL": bool,
    "TEXT": str | _ExactInt | float | bool,
}
_Blame = Callable[[Iterable[int]], None]


@dataclass(frozen=True, slots=True, eq=False)
class KnownField:
    """One field: its column, None without one, its names in JSON, and how its values become cells.

    A field without ``names`` is in no message that fits. ``kind`` is what msgspec takes for one value, and
    ``layout`` for one object. A field ``is_native`` when Arrow's own conversion is right for all values that Arrow
    takes, and ``is_sure`` when Arrow takes all of them; ``read`` converts the others. With ``knows_big`` integers
    beyond 2^53 are a kind of their own. Objects that ``are_shared`` are often the same in many messages.
    """

    column: str | None
    names: tuple[str, ...] = ()
    kind: Any = None
    layout: "Layout | None" = None
    is_repeated: bool = False
    is_native: bool = False
    is_sure: bool = False
    read: Convert | None = None
    default: Any = None
    is_required: bool = False
    knows_big: bool = False
    are_shared: bool = False

    def list_structure(self, values: Sequence[Any]) -> Hashable:
        """Return the structure of a list of the field's values."""
        if self.layout is None:
            return frozenset(map(type, values))
        elements = map(self.layout.structure, values)
        return tuple(elements) if self.layout.is_exact else frozenset(elements)

    @property
    def annotation(self) -> Any:
        """What msgspec takes for the field."""
        if self.are_shared:
            return msgspec.Raw | UnsetType
        one = self.kind if self.layout is None else self.layout.struct
        return (GenericAlias(list, (one,)) if self.is_repeated else one) | None | UnsetType


class Layout:
    """The fields of an object, and the Struct that msgspec makes of it.

    An object may have one field of each group in ``exclusive``.
    """

    def __init__(self, parts: Sequence[KnownField], exclusive: Sequence[Sequence[KnownField]] = ()) -> None:
        self._parts = parts
        self._exclusive = exclusive
        named = [(name, part) for part in parts for name in part.names]
        names = {f"f{number}": name for number, (name, _) in enumerate(named)}
        fields = [(f"f{number}", part.annotation, UNSET) for number, (_, part) in enumerate(named)]
        # The path of a field without a column has its place in a list.
        self.is_exact: bool = any(
            part.column is None or (part.layout is not None and part.layout.is_exact) for part in parts
        )
        self._blank = (UNSET,) * len(named)
        self._wanted: dict[str, pa.DataType] = {}
        self.struct = msgspec.defstruct("Message", fields, rename=names, forbid_unknown_fields=True, gc=False)
        self._named = [part for _, part in named]
        self._kinds: dict[tuple[type, ...], tuple[int, list[tuple[int, Callable[[Any], Hashable]]]]] = {}
        # The objects that are shared or have shared ones in them.
        single = [
            (f"f{number}", part, part.layout)
            for number, (_, part) in enumerate(named)
            if part.layout is not None and not part.is_repeated
        ]
        self.around: list[tuple[str, KnownField, Layout]] = [
            one for one in single if one[1].are_shared or one[2].around
        ]
        self._objects: dict[bytes, Any] = {}
        self._structures: dict[int, Hashable] = {}
        self._asked_bytes = 0

    @cached_property
    def _parse(self) -> Callable[[bytes], Any]:
        return msgspec.json.Decoder(self.struct | None).decode

    def share(self, message: Any) -> Any:
        """Read the shared objects in ``message``, those of equal texts once, until :meth:`forget`; return it."""
        for name, part, layout in self.around:
            value = getattr(message, name)
            if not part.are_shared:
                if value not in _NOTHING:
                    layout.share(value)
            elif value is not UNSET:
                setattr(message, name, layout.read(bytes(value)))
        return message

    def read(self, text: bytes) -> Any:
        """Return the object of ``text``, None for null."""
        self._asked_bytes += len(text)
        found = self._objects.get(text)
        if found is None:
            found = self._parse(text)
            if found is not None:
                self._objects[text] = self.share(found)
        return found

    def forget(self) -> tuple[int, int]:
        """Forget all shared objects; return how many bytes of objects there were, and how many were read."""
        found = self._asked_bytes, sum(map(len, self._objects))
        self._objects.clear()
        self._structures.clear()
        self._asked_bytes = 0
        inner = [layout.forget() for _, _, layout in self.around]
        return sum(asked for asked, _ in [found, *inner]), sum(read for _, read in [found, *inner])

    def shared_structure(self, message: Any) -> Hashable:
        """Return the structure of an object that is shared."""
        found = self._structures.get(id(message))
        if found is None:
            found = self._structures[id(message)] = self.structure(message)
        return found

    def structure(self, message: Any) -> Hashable:
        """Return an object's structure: all objects of one structure have one shape (pipeline/shapes.py)."""
        row = astuple(message)
        kinds = tuple(map(type, row))
        known = self._kinds.get(kinds)
        if known is None:
            if len(self._kinds) >= _MAX_KINDS:
                self._kinds.clear()
            known = self._kinds[kinds] = next(_numbers), list(self._deep(kinds))
        number, deep = known
        return (number, *[read(row[at]) for at, read in deep]) if deep else number

    def _deep(self, kinds: Sequence[type]) -> Iterator[tuple[int, Callable[[Any], Hashable]]]:
        """Yield the places of values whose kind does not say their structure, with what does."""
        for at, (kind, part) in enumerate(zip(kinds, self._named, strict=True)):
            if kind is list:
                yield at, part.list_structure
            elif part.layout is not None and kind is part.layout.struct:
                yield at, part.layout.shared_structure if part.are_shared else part.layout.structure
            elif kind is int and part.knows_big:
                yield at, lambda value: abs(value) > EXACT_FLOAT

    def columns(
        self, messages: Sequence[Any], kinds: Iterable[pa.Field], read: "_ColumnReader", blame: _Blame
    ) -> list[Make]:
        """Return the columns ``kinds`` of ``messages``, in which None is no message.

        ``blame`` gets the places of messages that do not fit.
        """
        try:
            rows = list(map(astuple, messages))
        except TypeError:
            rows = [self._blank if message is None else astuple(message) for message in messages]
        by_name = list(zip(*rows, strict=True))
        if not self._wanted:
            self._wanted = {kind.name: kind.type for kind in kinds}
        wanted = self._wanted
        found, given, at = {}, {}, 0
        for part in self._parts:
            if not part.names:
                if part.column is not None:
                    found[part.column] = read.constant(part.default, len(messages), wanted[part.column])
                if part.is_required:
                    blame(place for place, message in enumerate(messages) if message is not None)
                continue
            values, at = by_name[at : at + len(part.names)], at + len(part.names)
            one = given[part] = values[0] if len(values) == 1 else read.merge(values[0], values[1], blame)
            if part.column is not None:
                found[part.column] = read.cells(part, one, wanted[part.column], blame)
            else:
                read.count(one)
            if part.is_required:
                pairs = enumerate(zip(one, messages, strict=True))
                blame(place for place, (value, message) in pairs if value in _NOTHING and message is not None)
        for members in self._exclusive:
            several = enumerate(zip(*(given[part] for part in members), strict=True))
            blame(place for place, values in several if sum(value not in _NOTHING for value in values) > 1)
        return [found[name] for name in wanted]


@dataclass(slots=True)
class NativeRows:
    """The own columns of the messages that fit, in order; ``indices`` are their places in the batch.

    ``looks`` are those of the messages, where they matter. ``held`` has the structures of messages that fit and
    that the decoder has to see, because they look new.
    """

    columns: list[pa.Array]
    indices: list[int]
    looks: list[Look] = field(default_factory=list)
    held: dict[int, Hashable] = field(default_factory=dict)


class Form:
    """Reads the messages of one schema that have its form; ``columns`` are the message's own.

    With ``looks`` a message is only read when the decoder has seen one that looks like it (:meth:`learn`).
    """

    def __init__(
        self,
        make_layout: Callable[[AbstractSet[Path], bool], Layout],
        columns: Sequence[pa.Field],
        *,
        max_bytes: int,
        looks: Looks | None = None,
    ) -> None:
        self._make_layout = make_layout
        self._columns = columns
        self._max_bytes = max_bytes
        self._looks = looks
        self._resting = 0
        self._is_sharing = True
        self._asked_bytes = self._read_bytes = 0
        self.is_off = False

    def read(self, payloads: Sequence[bytes]) -> NativeRows:
        """Return the rows of the messages that fit; none while most messages do not fit, which would cost more."""
        if self._resting > 0:
            self._resting -= len(payloads)
        elif len(payloads) >= FEWEST and not self.is_off:
            # The collector looks at the many tuples that are made here again and again, and none is in a cycle.
            is_collecting = gc.isenabled()
            gc.disable()
            try:
                return self._read(payloads)
            except Exception:  # noqa: BLE001  a fault here must not end the stream, and the decoder reads all of them
                self.is_off = True
                _log.exception("form_failed")
            finally:
                if is_collecting:
                    gc.enable()
        return NativeRows([], [])

    def learn(self, structure: Hashable | None, data: bytes, unknown: Mapping[str, Any]) -> None:
        """Learn of a message that the decoder made a row of; it fits when it has a ``structure``."""
        if self._looks is None:
            return
        if structure is not None:
            self._looks.learn(structure, data, unknown)
        elif unknown and self._looks.meet(unknown):
            self._begin_again()

    def _begin_again(self) -> None:
        vars(self).pop("_layout", None)
        vars(self).pop("_parse", None)
        self._resting = 0

    def _forget(self) -> None:
        """Forget the objects of a batch; share none any more when too few came again."""
        asked, read = self._layout.forget()
        self._asked_bytes += asked
        self._read_bytes += read
        is_vain = self._asked_bytes > _TRIED_BYTES and self._read_bytes > self._asked_bytes * _MOST_READ
        if self._is_sharing and is_vain:
            self._is_sharing = False
            self._begin_again()

    @cached_property
    def _layout(self) -> Layout:
        return self._make_layout(frozenset() if self._looks is None else self._looks.beside, self._is_sharing)

    @cached_property
    def _parse(self) -> Callable[[bytes], Any]:
        return msgspec.json.Decoder(self._layout.struct).decode

    def _read(self, payloads: Sequence[bytes]) -> NativeRows:
        parsed, found = [], NativeRows([], [])
        parse, most, layout = self._parse, self._max_bytes, self._layout
        looks = self._looks if self._looks is not None and self._looks.matter else None
        for index, data in enumerate(payloads):
            try:
                message = layout.share(parse(data))
            except _UNREADABLE:
                continue
            if len(data) > most:
                continue
            if looks is not None:
                look = looks.get(structure := layout.structure(message))
                if look is None:
                    found.held[index] = structure
                    continue
                if not look.fits(data):
                    continue
                found.looks.append(look)
            parsed.append(message)
            found.indices.append(index)
        if len(parsed) + (len(found.held) if looks and looks.are_few else 0) < len(payloads) / 2:
            self._resting = REST * len(payloads)
        if parsed:
            self._fill(found, parsed, payloads)
        self._forget()
        return found

    def _fill(self, found: NativeRows, parsed: Sequence[Any], payloads: Sequence[bytes]) -> None:
        """Make the columns of ``parsed``, and leave out the messages that do not fit after all."""
        unfit: set[int] = set()
        reading = _ColumnReader()
        makers = self._layout.columns(parsed, self._columns, reading, unfit.update)
        found.columns = [make() for make in makers]
        texts = [payloads[index] for index in found.indices]
        if count_names(texts) != reading.names:
            pairs = enumerate(zip(texts, parsed, strict=True))
            unfit.update(place for place, (text, message) in pairs if count_names([text]) != _names_in(message))
        if unfit:
            fit = [place not in unfit for place in range(len(parsed))]
            found.columns = [column.filter(pa.array(fit)) for column in found.columns]
            found.indices = list(compress(found.indices, fit))
            found.looks = list(compress(found.looks, fit))


class _ColumnReader:
    """Makes columns of values, and counts the names that have one."""

    def __init__(self) -> None:
        self.names = 0
        self._arrays = Arrays()

    def cells(self, part: KnownField, values: Sequence[Any], kind: pa.DataType, blame: _Blame) -> Make:
        """Return the column of a field; ``blame`` gets the places of values that have no cell."""
        unset = self.count(values)
        if part.layout is not None:
            make = self._lists if part.is_repeated else self._shared if part.are_shared else self._objects
            return make(part.layout, values, kind, blame)
        if part.is_sure and part.is_repeated:
            return self._arrays.lists([value if type(value) is list else () for value in values], kind)
        if unset == len(values):
            return self.constant(part.default, len(values), kind)
        if not part.is_sure or part.default is not None:
            array = self._convert(part, values, kind, blame)
            return lambda: array
        cells = [None if value is UNSET else value for value in values] if unset else values
        return self._arrays.scalars(cells, kind)

    def constant(self, cell: Any, length: int, kind: pa.DataType) -> Make:
        """Return the column that has one cell everywhere."""
        if cell is None:
            return self._arrays.nulls(length, kind)
        return lambda: pa.repeat(pa.scalar(cell, kind), length)

    def count(self, values: Sequence[Any]) -> int:
        """Count the names that ``values`` have, and return how many values have none."""
        unset = values.count(UNSET)
        self.names += len(values) - unset
        return unset

    def merge(self, one: Sequence[Any], other: Sequence[Any], blame: _Blame) -> list[Any]:
        """Return the values of a field with two names, of which a message has one."""
        pairs = list(zip(one, other, strict=True))
        blame(place for place, (first, second) in enumerate(pairs) if first is not UNSET and second is not UNSET)
        return [second if first is UNSET else first for first, second in pairs]

    def _convert(self, part: KnownField, values: Sequence[Any], kind: pa.DataType, blame: _Blame) -> pa.Array:
        if part.is_native and UNSET not in values:
            with suppress(*_ARROW_FAULTS):
                array = pa.array(values, kind)
                if part.default is None or not array.null_count:
                    return array
        cells = [part.default if value is None or value is UNSET else value for value in values]
        if part.is_native:
            with suppress(*_ARROW_FAULTS):
                return pa.array(cells, kind)
        unfit = []
        for place, value in enumerate(values):
            if part.read is not None and value is not None and value is not UNSET:
                try:
                    cells[place] = part.read(value)
                except (UnknownValueError, *FAULTS):
                    cells[place] = part.default
                    unfit.append(place)
        try:
            array = pa.array(cells, kind)
        except _ARROW_FAULTS:
            without = [place for place, cell in enumerate(cells) if not _has_cell(cell, kind)]
            for place in without:
                cells[place] = part.default
            unfit += without
            array = pa.array(cells, kind)
        blame(unfit)
        return array

    def _objects(self, layout: Layout, values: Sequence[Any], kind: pa.StructType, blame: _Blame) -> Make:
        objects = [value if type(value) is layout.struct else None for value in values]
        absent = objects.count(None)
        if absent == len(objects):
            return self._arrays.nulls(len(objects), kind)
        found = layout.columns(objects, kind, self, blame)
        is_absent = [value is None for value in objects] if absent else None
        return self._arrays.records(found, list(kind), is_absent)

    def _shared(self, layout: Layout, values: Sequence[Any], kind: pa.StructType, blame: _Blame) -> Make:
        """Return the column of objects of which many are the same."""
        objects = {id(value): value for value in values if type(value) is layout.struct}
        if not 0 < len(objects) <= len(values) / 2:
            return self._objects(layout, values, kind, blame)
        numbers = {key: number for number, key in enumerate(objects)}
        found, places = list(objects.values()), list(map(numbers.get, map(id, values)))
        for number, times in Counter(places).items():
            if number is not None and times > 1:
                self.names += (times - 1) * _names_in(found[number])

        def blame_each(unfit: Iterable[int]) -> None:
            numbers = set(unfit)
            blame(at for at, number in enumerate(places) if number in numbers)

        whole = self._arrays.records(layout.columns(found, kind, self, blame_each), list(kind), None)
        return lambda: whole().take(pa.array(places, pa.int32()))

    def _lists(self, layout: Layout, values: Sequence[Any], kind: pa.ListType, blame: _Blame) -> Make:
        lists = [value if type(value) is list else () for value in values]
        objects = list(chain.from_iterable(lists))
        wanted = kind.value_type
        if not objects:
            elements = self._arrays.nulls(0, wanted)
        else:
            ends = list(accumulate(map(len, lists), initial=0))
            found = layout.columns(
                objects, wanted, self, lambda unfit: blame([bisect_right(ends, at) - 1 for at in unfit])
            )
            elements = self._arrays.records(found, list(wanted), None)
        return self._arrays.nested_lists(lists, kind, elements)


def layout_of_plans(plans: Sequence[FieldPlan]) -> Layout:
    """Return the layout of a message with a schema.

    The decoder reads messages with maps, attributes, a Struct or a Value, a record in a JSON column, a hidden
    record, or a record with a ``coalesce``.
    """
    parts = {id(plan): _part_of_plan(plan) for plan in plans}
    groups = [[parts[id(plan)] for plan in members] for members in exclusive_fields(plans)]
    return Layout(list(parts.values()), [[part for part in group if part.names] for group in groups])


def layout_of_shape(shape: Shape, beside: AbstractSet[Path], is_sharing: bool) -> Layout:
    """Return the layout of an inferred record; fields ``beside`` its columns may be null, [] or {}.

    The decoder reads messages with a JSON column, a list of large integers, or an integer beyond 2^53 as a text.
    """
    parts = [
        _part_of_shape(name, child, {path[1:] for path in beside if path[0] == name and len(path) > 1}, is_sharing)
        for name, child in shape.fields.items()
    ]
    more = sorted(path[0] for path in beside if len(path) == 1 and path[0] not in shape.fields)
    return Layout(parts + [KnownField(None, (name,), _NOTHING_KIND) for name in more if is_plain(name)])


def _part_of_plan(plan: FieldPlan) -> KnownField:
    column = None if plan.options.is_hidden else plan.column
    absent = KnownField(column, default=default_cell(plan), is_required=plan.options.is_required)
    # A field with a coalesce reads others, and null may be a value.
    if plan.options.coalesce or plan.holds_null or not all(map(is_plain, plan.names)):
        return absent
    kind = _PLAN_KINDS.get(plan.kind)
    if column is None:
        return absent if kind is None else replace(absent, names=plan.names, kind=str | _ExactInt | float | bool)
    if plan.kind == "record" and plan.type == "RECORD":
        if any(child.options.coalesce for child in plan.fields):
            return absent
        layout = layout_of_plans(plan.fields)
        return replace(absent, names=plan.names, layout=layout, is_repeated=plan.is_repeated)
    if kind is None:
        return absent
    if plan.kind == "int" and plan.bounds is not None:
        low, high = plan.bounds
        kind = Annotated[int, Meta(ge=low, le=min(high, _INT64 - 1))] | str
    is_native = cell_type(replace(plan, is_repeated=False)) is not None or (plan.kind, plan.type) in _NATIVE
    found = replace(absent, names=plan.names, kind=kind, is_repeated=plan.is_repeated)
    return replace(found, is_native=is_native, is_sure=is_native and kind is str, read=value_reader(plan))


def _part_of_shape(name: str, shape: Shape, beside: AbstractSet[Path], is_sharing: bool) -> KnownField:
    absent = KnownField(shape.column, default=[] if shape.is_repeated else None)
    if not is_plain(name) or shape.kind == "JSON" or (shape.kind == "BIGINT" and shape.is_repeated):
        return absent
    found = replace(absent, names=(name,), is_repeated=shape.is_repeated)
    if shape.kind == "RECORD":
        is_sharing = is_sharing and not shape.is_repeated
        layout = layout_of_shape(shape, beside, is_sharing)
        return replace(found, layout=layout, are_shared=is_sharing and len(shape.fields) >= FEWEST_SHARED)
    return replace(found, kind=_SHAPE_KINDS[shape.kind], is_sure=True, knows_big=shape.kind == "BIGINT")


def _has_cell(value: Any, kind: pa.DataType) -> bool:
    with suppress(*_ARROW_FAULTS):
        pa.scalar(value, kind)
        return True
    return False


def _names_in(value: Any) -> int:
    """Return how many names the objects in a value have, each counted once."""
    if type(value) is list:
        return sum(map(_names_in, value))
    if not isinstance(value, msgspec.Struct):
        return 0
    row = astuple(value)
    return len(row) - row.count(UNSET) + sum([_names_in(child) for child in row if type(child) not in _SCALARS])
