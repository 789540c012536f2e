"""A batch of messages to a batch of rows, and the refusals of those that are no row."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from model.widening import to_json
from pipeline.convert import Findings, Record, WrongTypeError, compile_record, visible
from pipeline.forms import Form, NativeRows, layout_of_plans, other_places
from pipeline.mapping import ATTRIBUTES_FIELD, FieldPlan, taking_scalars
from pipeline.originals import read_originals
from pipeline.paths import counted_path
from pipeline.schema import INGEST_TIME, Variant, row_columns
from pipeline.values import NUMBER, Numbers, exact_number, name_of, parse_json, to_timestamp

# With more odd rows than this in a batch, one sort of all rows is faster than joining slices of it.
_FEW_PIECES: Final = 10
_INSERT, _MODIFY, _REMOVE = "INSERT", "MODIFY", "REMOVE"
_Change = tuple[str, datetime | None, str | None]
_CHANGE_KEYS: Final = {"NewImage", "OldImage", "Published", "EventId"}


class UnfitMessageError(Exception):
    """The message is fine, and its table has no place yet for one of its fields."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A message that is no row: its place in the batch, a stable code and a sentence."""

    index: int
    code: str
    message: str


@dataclass(slots=True)
class DecodedBatch:
    """The rows of a batch, the places of their messages in it, the refused ones, and counts of its findings.

    ``unknown`` counts fields that the schema does not know by path, ``missing`` required fields that were
    lacking.
    """

    rows: pa.RecordBatch
    indices: list[int]
    refused: list[Refusal]
    unknown: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class _Row:
    """One message's values, its findings, and its change where the source sends changes.

    ``unknown`` is the JSON text of what the schema does not know, None when it knows all.
    """

    index: int
    values: list[Any]
    findings: Findings
    unknown: str | None
    change: _Change | None


class Decoder:
    """Turns messages with JSON into rows of one schema; built once, used for batch after batch.

    ``columns`` has the Arrow type of each column of the table, ``keys`` names the fields that an image of a
    change must have to count as one. A replay of ``topic`` is recognised by ``token`` alone, so that a
    producer's own ``refeed_*`` attributes are attributes. With ``scalars_as_text`` a field of type string takes a
    number and a boolean too. ``record`` makes values of an object in another way than ``plans`` say, and ``form``
    opens the form of the columns that it makes.
    """

    def __init__(
        self,
        plans: Sequence[FieldPlan],
        columns: pa.Schema,
        *,
        version: str,
        topic: str,
        token: str,
        variant: Variant = "plain",
        keys: Sequence[str] = (),
        max_bytes: int = 10_000_000,
        scalars_as_text: bool = False,
        record: Record | None = None,
        form: Callable[[Sequence[pa.Field]], Form] | None = None,
    ) -> None:
        if scalars_as_text:
            plans = taking_scalars(plans)
        # An inferred source's shapes know Python's own types.
        self._numbers: Numbers = "written" if scalars_as_text else "exact" if record is None else "float"
        self._plans = visible(plans)
        self._record = compile_record(plans) if record is None else record
        self._columns = columns
        self._own = pa.schema([*(columns.field(plan.column) for plan in self._plans), ("_unknown", pa.string())])
        self._no_rows = pa.RecordBatch.from_pylist([], self._own)
        self._rows: pa.Schema | None = None
        self._meta = [column.name for column in row_columns(plans, variant)]
        self._version = version
        self._topic = topic
        self._token = token
        self._variant = variant
        self._keys = tuple(keys)
        self._max_bytes = max_bytes
        # A coalesce looks at all fields, and a number that is kept as it is written may be -0.
        is_odd = scalars_as_text or any(plan.options.coalesce for plan in plans)
        if record is None and variant == "plain" and not is_odd:
            form = partial(Form, lambda *_: layout_of_plans(plans), max_bytes=max_bytes)
        self._form = None if form is None else form(list(self._own)[:-1])

    def decode(self, messages: pa.RecordBatch) -> DecodedBatch:
        """Return the rows of ``messages`` (in the columns that a Pull brings) and the messages that are none."""
        originals = read_originals(messages, topic=self._topic, token=self._token)
        return self.decode_payloads(read_payloads(messages), originals)

    def decode_payloads(self, payloads: Sequence[bytes], originals: pa.RecordBatch) -> DecodedBatch:
        """Do the same for messages with these ``payloads`` and ``originals`` (:func:`read_originals`)."""
        count = len(payloads)
        native = NativeRows([], range(count)) if self._form is None else self._form.read(payloads)
        rows: list[_Row] = []
        refused: list[Refusal] = []
        for index in native.left:
            row = self._decode_one(index, payloads[index])
            (refused if isinstance(row, Refusal) else rows).append(row)  # type: ignore[arg-type]
        try:
            columns = self._own_columns(rows)
        except _ARROW_FAULTS:
            rows = self._without_unfit(rows, refused)
            columns = self._own_columns(rows)
        if self._form is not None:
            for row in rows:
                self._form.learn(native.held.get(row.index), payloads[row.index], row.findings.unknown)
        columns = _in_order(native, count - len(native.left), columns, [row.index for row in rows])
        changes = [row.change for row in rows]
        indices = other_places([refusal.index for refusal in refused], count)
        decoded = DecodedBatch(columns, indices, sorted(refused, key=lambda r: r.index))
        unknown = [(row.index, tuple(map(counted_path, row.findings.unknown))) for row in rows]
        if native.looks:
            places = other_places(native.left, count)
            unknown += [(place, look.paths) for place, look in zip(places, native.looks, strict=True)]
        decoded.unknown.update(path for _, paths in sorted(unknown) for path in paths)
        decoded.missing.update(counted_path(path) for row in rows for path in row.findings.missing)
        decoded.rows = self._with_meta(columns, indices, changes, originals)
        return decoded

    def read_one_by_one(self) -> bool:
        """Read no message by native code any more; return whether some were until now."""
        had_form, self._form = self._form is not None, None
        return had_form

    def _decode_one(self, index: int, data: bytes) -> _Row | Refusal:  # noqa: PLR0911  one for each reason
        if len(data) > self._max_bytes:
            return Refusal(
                index, "too_large", f"The message has {len(data)} bytes. At most {self._max_bytes} are allowed."
            )
        try:
            source = parse_json(str(data, "utf-8"), numbers=self._numbers)
        except UnicodeDecodeError as exc:
            return Refusal(index, "not_json", f"The message is not UTF-8: {exc}.{_format_hint(data)}")
        except (ValueError, RecursionError) as exc:
            reason = f"The message is not JSON: {str(exc) or 'nested too deep'}."
            return Refusal(index, "not_json", f"{reason}{_format_hint(data)}")
        if type(source) is not dict:
            return Refusal(index, "wrong_type", f"The message is {name_of(source)}, not an object.")
        findings = Findings()
        try:
            change = None
            if self._variant == "change_data":
                source, change = self._read_change(source, findings)
            values = self._record(source, "", findings)
            unknown = to_json(findings.unknown) if findings.unknown else None
            return _Row(index, values, findings, unknown, change)
        except UnfitMessageError:
            return Refusal(index, "unfit", "The table has no column for this field yet.")
        except (WrongTypeError, RecursionError) as exc:
            return Refusal(index, "wrong_type", f"{str(exc) or 'Nested too deep'}.")
        except Exception as exc:  # noqa: BLE001  a fault of ours must not end the stream of every source beside it
            return Refusal(index, "decoder_fault", f"The message can't be decoded: {type(exc).__name__}: {exc}.")

    def _read_change(self, source: Mapping[str, Any], findings: Findings) -> tuple[Mapping[str, Any], _Change]:
        """Return the image that counts, and the change: its operation, time and id."""
        new, old = (self._image(source, name) for name in ("NewImage", "OldImage"))
        if new is None and old is None:
            raise WrongTypeError("The message has neither a NewImage nor an OldImage with its key")
        operation = _REMOVE if new is None else _INSERT if old is None else _MODIFY
        findings.unknown.update({key: value for key, value in source.items() if key not in _CHANGE_KEYS})
        published, event_id = source.get("Published"), source.get("EventId")
        if event_id is not None and type(event_id) is not str:
            event_id = to_json(event_id)
        if event_id is not None and not _has_utf8(event_id):
            raise WrongTypeError("EventId: contains an unpaired surrogate, so it is not valid Unicode")
        try:
            moment = None if published is None else _moment(published)
        except (ValueError, OverflowError) as exc:
            raise WrongTypeError(f"Published: {exc}") from exc
        image = old if new is None else new
        return image or {}, (operation, moment, event_id)

    def _image(self, source: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
        image = source.get(name)
        if image is None or image == {}:
            return None
        if type(image) is not dict:
            raise WrongTypeError(f"{name}: is {name_of(image)}, not an object")
        return None if self._keys and all(image.get(key) is None for key in self._keys) else image

    def _own_columns(self, rows: Sequence[_Row]) -> pa.RecordBatch:
        """Return the message's own columns; Arrow's errors come through where a value has no cell."""
        if not rows:
            return self._no_rows
        by_column = [*zip(*(row.values for row in rows), strict=True), [row.unknown for row in rows]]
        arrays = [pa.array(values, kind) for values, kind in zip(by_column, self._own.types, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._own)

    def _without_unfit(self, rows: Sequence[_Row], refused: list[Refusal]) -> list[_Row]:
        """Return the rows that have a cell for every value; the others are refused one by one."""
        fit = []
        for row in rows:
            try:
                self._own_columns([row])
            except _ARROW_FAULTS as exc:
                refused.append(Refusal(row.index, "wrong_type", f"A value has no cell: {exc}."))
            else:
                fit.append(row)
        return fit

    def _with_meta(
        self,
        own: pa.RecordBatch,
        indices: Sequence[int],
        changes: Sequence[_Change | None],
        originals: pa.RecordBatch,
    ) -> pa.RecordBatch:
        """Return the whole rows, in the table's order of columns."""
        is_whole = len(indices) == originals.num_rows
        taken = originals if is_whole else originals.take(pa.array(indices, pa.int32()))
        meta = dict(zip(taken.schema.names, taken.columns, strict=True))
        for name, value in (("_schema_version", self._version), (INGEST_TIME, datetime.now(UTC))):
            meta[name] = pa.repeat(pa.scalar(value, self._columns.field(name).type), len(indices))
        pairs = meta.pop("attributes")
        if self._variant == "change_data":
            for at, name in enumerate(("_operation", "_stream_time", "_stream_event_id")):
                parts = [change and change[at] for change in changes]
                meta[name] = pa.array(parts, self._columns.field(name).type)
        attributes = next((plan.column for plan in self._plans if plan.kind == "attributes"), ATTRIBUTES_FIELD)
        found = dict(zip(own.schema.names, own.columns, strict=True))
        # A declared field of attributes may be hidden: then no column has them.
        if attributes in found or ATTRIBUTES_FIELD in self._meta:
            found[attributes] = pairs
        found |= meta
        if self._rows is None:
            self._rows = pa.schema([kind for kind in self._columns if kind.name in found])
        return pa.RecordBatch.from_arrays([found[name] for name in self._rows.names], schema=self._rows)


def read_payloads(messages: pa.RecordBatch) -> list[bytes]:
    """Return the payload of each message."""
    return [data or b"" for data in messages.column("data").to_pylist()]


def _in_order(native: NativeRows, count: int, columns: pa.RecordBatch, indices: Sequence[int]) -> pa.RecordBatch:
    """Return the ``count`` rows of native code and those of ``columns``, in the order of their messages."""
    if not count:
        return columns
    texts = pa.array([look.unknown for look in native.looks], pa.string())
    unknown = texts if native.looks else pa.nulls(count, pa.string())
    found = pa.RecordBatch.from_arrays([*native.columns, unknown], schema=columns.schema)
    if not indices:
        return found
    # How many native rows come before each of the others.
    before = np.subtract(indices, np.searchsorted(native.left, indices))
    if len(indices) <= _FEW_PIECES:
        parts, start = [], 0
        for at, end in enumerate(before.tolist()):
            parts += [found.slice(start, end - start), columns.slice(at, 1)]
            start = end
        return pa.concat_batches([*parts, found.slice(start)])
    order = np.insert(np.arange(count), before, np.arange(count, count + len(indices)))
    return pa.concat_batches([found, columns]).take(pa.array(order))


def _moment(published: Any) -> datetime:
    """Return the time of a change: RFC 3339, or a number since 1970, of the unit that its magnitude tells."""
    if type(published) is str and not NUMBER.fullmatch(published):
        return to_timestamp(published)
    number = exact_number(published)
    # Compared without arithmetic, which fails for very large exponents.
    size = number.copy_abs()
    unit = next((unit for limit, unit in _UNITS if size < limit), None)
    if unit is None:
        raise ValueError(f"{str(published)[:60]} is too large for a time in nanoseconds")
    return _EPOCH + timedelta(microseconds=math.floor(number * unit))


def _has_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _format_hint(data: bytes) -> str:
    """Return what a message lacks that does not begin like an object, such as one that protobuf encoded."""
    text = data.lstrip()
    if not text or text.startswith(b"{"):
        return ""
    return " Refeed reads JSON by the field names of the schema, and does not read binary protobuf messages."


# What Arrow raises for a value that the column's type can't hold; a text with half a surrogate pair is one.
_ARROW_FAULTS: Final = (pa.ArrowException, UnicodeEncodeError, OverflowError, TypeError, ValueError)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Seconds, milliseconds, microseconds, nanoseconds: below a limit, and in how many microseconds. 10^11 seconds are
# in the year 5138, as many milliseconds in 1973.
_UNITS: Final = (
    (10**11, Decimal(10**6)),
    (10**14, Decimal(10**3)),
    (10**17, Decimal(1)),
    (10**20, Decimal("0.001")),
)
