"""The fields of a message's objects, and how native code makes columns of their values."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, chain, count
from types import GenericAlias
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec import UNSET, UnsetType
from msgspec.structs import astuple

from model.widening import EXACT_FLOAT
from pipeline.arrays import Arrays, Make
from pipeline.convert import FAULTS
from pipeline.sharing import SharedObjects, find_different
from pipeline.values import Convert, UnknownValueError

_MAX_KINDS: Final = 10_000
_numbers: Final = count()
_ARROW_FAULTS: Final = (pa.ArrowException, OverflowError, TypeError, ValueError)
_NOTHING: Final = (None, UNSET)
_SCALARS: Final = frozenset((str, int, float, bool, type(None), UnsetType))

# Gets the places of messages that do not fit.
Blame = Callable[[Iterable[int]], None]


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
        single = [
            (f"f{number}", part.are_shared, part.layout.shared)
            for number, (_, part) in enumerate(named)
            if part.layout is not None and not part.is_repeated
        ]
        inner = [one for one in single if one[1] or one[2].inner]
        self.shared: SharedObjects = SharedObjects(self.struct, self.structure, inner)

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
                yield at, part.layout.shared.structure if part.are_shared else part.layout.structure
            elif kind is int and part.knows_big:
                yield at, lambda value: abs(value) > EXACT_FLOAT

    def columns(
        self, messages: Sequence[Any], kinds: Iterable[pa.Field], read: "ColumnReader", blame: Blame
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


class ColumnReader:
    """Makes columns of values, and counts the names that have one."""

    def __init__(self) -> None:
        self.names = 0
        self._arrays = Arrays()

    def cells(self, part: KnownField, values: Sequence[Any], kind: pa.DataType, blame: Blame) -> Make:
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

    def merge(self, one: Sequence[Any], other: Sequence[Any], blame: Blame) -> list[Any]:
        """Return the values of a field with two names, of which a message has one."""
        pairs = list(zip(one, other, strict=True))
        blame(place for place, (first, second) in enumerate(pairs) if first is not UNSET and second is not UNSET)
        return [second if first is UNSET else first for first, second in pairs]

    def _convert(self, part: KnownField, values: Sequence[Any], kind: pa.DataType, blame: Blame) -> pa.Array:
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

    def _objects(self, layout: Layout, values: Sequence[Any], kind: pa.StructType, blame: Blame) -> Make:
        objects = [value if type(value) is layout.struct else None for value in values]
        absent = objects.count(None)
        if absent == len(objects):
            return self._arrays.nulls(len(objects), kind)
        found = layout.columns(objects, kind, self, blame)
        is_absent = [value is None for value in objects] if absent else None
        return self._arrays.records(found, list(kind), is_absent)

    def _shared(self, layout: Layout, values: Sequence[Any], kind: pa.StructType, blame: Blame) -> Make:
        """Return the column of objects of which many are the same."""
        found, places = find_different(values, layout.struct)
        if not 0 < len(found) <= len(values) / 2:
            return self._objects(layout, values, kind, blame)
        for number, times in Counter(places).items():
            if number is not None and times > 1:
                self.names += (times - 1) * names_in(found[number])

        def blame_each(unfit: Iterable[int]) -> None:
            numbers = set(unfit)
            blame(at for at, number in enumerate(places) if number in numbers)

        whole = self._arrays.records(layout.columns(found, kind, self, blame_each), list(kind), None)
        return lambda: whole().take(pa.array(places, pa.int32()))

    def _lists(self, layout: Layout, values: Sequence[Any], kind: pa.ListType, blame: Blame) -> Make:
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


def _has_cell(value: Any, kind: pa.DataType) -> bool:
    with suppress(*_ARROW_FAULTS):
        pa.scalar(value, kind)
        return True
    return False


def names_in(value: Any) -> int:
    """Return how many names the objects in a value have, each counted once."""
    if type(value) is list:
        return sum(map(names_in, value))
    if not isinstance(value, msgspec.Struct):
        return 0
    row = astuple(value)
    return len(row) - row.count(UNSET) + sum([names_in(child) for child in row if type(child) not in _SCALARS])
