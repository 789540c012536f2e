"""Messages that have the form of their source are read by native code, column by column.

A message fits the form when its rows are beyond doubt. One with another field, another kind of value, a name twice
or a value without a cell does not fit. The decoder reads it alone, and only the decoder refuses messages.
"""

import gc
import traceback
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
import structlog
from msgspec import Meta

from model.widening import EXACT_FLOAT
from pipeline.convert import cell_type, default_cell, exclusive_fields, value_reader
from pipeline.json_names import count_names, is_plain
from pipeline.layout import ColumnReader, KnownField, Layout, names_in
from pipeline.looks import Look, Looks, Path
from pipeline.mapping import FieldPlan
from pipeline.shapes import Shape
from pipeline.sharing import is_vain

_log = structlog.get_logger(__name__)

# The fixed cost of a column is more than it saves for fewer messages.
FEWEST: Final = 16
# When fewer than half of a batch fit, the decoder alone reads the next REST times as many messages.
REST: Final = 20
# A smaller object is read in less time than it is looked up.
FEWEST_SHARED: Final = 8
_INT64: Final = 1 << 63
_Int64 = Annotated[int, Meta(ge=-_INT64, le=_INT64 - 1)]
_ExactInt = Annotated[int, Meta(ge=-EXACT_FLOAT, le=EXACT_FLOAT)]
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

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
_Empty = msgspec.defstruct("Empty", [], forbid_unknown_fields=True, gc=False)
_NOTHING_KIND: Final = Annotated[list, Meta(max_length=0)] | _Empty
_SHAPE_KINDS: Final[Mapping[str, Any]] = {
    "INT": _ExactInt,
    "BIGINT": _Int64,
    "FLOAT": _ExactInt | float,
    "BOOL": bool,
    "TEXT": str | _ExactInt | float | bool,
}


@dataclass(slots=True)
class NativeRows:
    """The own columns of the messages that fit, in order; ``left`` are the places of all others in the batch.

    ``looks`` are those of the messages that fit, where they matter. ``held`` has the structures of messages that
    would fit, but look new: the decoder has to see them.
    """

    columns: list[pa.Array]
    left: Sequence[int]
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
                # Without the values of variables: messages are among them.
                _log.error("form_failed", exception=traceback.format_exc())
            finally:
                if is_collecting:
                    gc.enable()
        return NativeRows([], range(len(payloads)))

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
        self._resting = 0

    @cached_property
    def _layout(self) -> Layout:
        return self._make_layout(frozenset() if self._looks is None else self._looks.beside, self._is_sharing)

    def _read(self, payloads: Sequence[bytes]) -> NativeRows:
        parsed, left, found = [], [], NativeRows([], [])
        most, layout = self._max_bytes, self._layout
        parse, share = layout.shared.parse, layout.shared.share
        looks = self._looks if self._looks is not None and self._looks.matter else None
        for index, data in enumerate(payloads):
            try:
                message = share(parse(data)) if len(data) <= most else None
            except _UNREADABLE:
                message = None
            if looks is not None and message is not None:
                look = looks.get(structure := layout.structure(message))
                if look is None:
                    found.held[index] = structure
                    message = None
                elif look.fits(data):
                    found.looks.append(look)
                else:
                    message = None
            if message is None:
                left.append(index)
            else:
                parsed.append(message)
        found.left = left
        if len(parsed) + (len(found.held) if looks and looks.are_few else 0) < len(payloads) / 2:
            self._resting = REST * len(payloads)
        if parsed:
            self._fill(found, parsed, payloads)
        if is_vain(*layout.shared.forget()) and self._is_sharing:
            self._is_sharing = False
            self._begin_again()
        return found

    def _fill(self, found: NativeRows, parsed: Sequence[Any], payloads: Sequence[bytes]) -> None:
        """Make the columns of ``parsed``, and leave out the messages that do not fit after all."""
        unfit: set[int] = set()
        reading = ColumnReader()
        makers = self._layout.columns(parsed, self._columns, reading, unfit.update)
        found.columns = [make() for make in makers]
        is_parsed = _all_but(found.left, len(payloads))
        texts = list(compress(payloads, is_parsed)) if found.left else payloads
        if count_names(texts) != reading.names:
            pairs = enumerate(zip(texts, parsed, strict=True))
            unfit.update(number for number, (text, message) in pairs if count_names([text]) != names_in(message))
        if unfit:
            fit = [number not in unfit for number in range(len(parsed))]
            found.columns = [column.filter(pa.array(fit)) for column in found.columns]
            places = list(compress(range(len(payloads)), is_parsed))
            found.left = sorted([*found.left, *(places[number] for number in unfit)])
            found.looks = list(compress(found.looks, fit))


def other_places(places: Iterable[int], count: int) -> list[int]:
    """Return the numbers below ``count`` that are not among ``places``."""
    return list(compress(range(count), _all_but(places, count)))


def _all_but(places: Iterable[int], count: int) -> bytearray:
    """Return ``count`` flags, which are 0 at ``places`` and 1 elsewhere."""
    flags = bytearray(b"\1") * count
    for place in places:
        flags[place] = 0
    return flags


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
    # Of these kinds the integers among the values are cells.
    has_integers = plan.kind in ("int", "enum") and plan.type == "INT64"
    is_native = has_integers or cell_type(replace(plan, is_repeated=False)) is not None
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
