"""From a message's descriptor to a plan of its columns: each field's kind, names and type."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, get_args

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from model.errors import DescriptorError
from model.schema import FieldType
from pipeline.options import FieldOptions, read_field_options
from pipeline.transforms import compile_transforms

Kind = Literal[
    "text", "bytes", "int", "float", "bool", "enum", "record", "map", "timestamp", "duration", "json", "attributes"
]

# The field that takes the message's attributes, as descriptor sets of this kind have always named it.
ATTRIBUTES_FIELD: Final = "_ATTRIBUTES"
MAX_DEPTH: Final = 15
# BigQuery takes 10,000, those in records and those that every row has among them.
MAX_COLUMNS: Final = 9_950
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,299}")
# "Schemas", column names: those that begin like this are BigQuery's own, the last ones those of wider columns.
REFUSED_PREFIXES: Final = (
    "_table_",
    "_file_",
    "_partition",
    "_row_timestamp",
    "__root__",
    "_colidentifier",
    "_change_sequence_number",
    "_change_type",
    "_change_timestamp",
    "_refeed_",
)

_T = FieldDescriptor
_INTS: Final[Mapping[int, tuple[int, int]]] = {
    **dict.fromkeys((_T.TYPE_INT32, _T.TYPE_SINT32, _T.TYPE_SFIXED32), (-(1 << 31), (1 << 31) - 1)),
    **dict.fromkeys((_T.TYPE_INT64, _T.TYPE_SINT64, _T.TYPE_SFIXED64), (-(1 << 63), (1 << 63) - 1)),
    **dict.fromkeys((_T.TYPE_UINT32, _T.TYPE_FIXED32), (0, (1 << 32) - 1)),
    # What INT64 can't hold is refused message by message; (type) = "NUMERIC" takes all of it.
    **dict.fromkeys((_T.TYPE_UINT64, _T.TYPE_FIXED64), (0, (1 << 64) - 1)),
}
_KINDS: Final[Mapping[int, tuple[Kind, FieldType]]] = {
    **dict.fromkeys(_INTS, ("int", "INT64")),
    _T.TYPE_STRING: ("text", "STRING"),
    _T.TYPE_BYTES: ("bytes", "BYTES"),
    _T.TYPE_DOUBLE: ("float", "FLOAT64"),
    _T.TYPE_FLOAT: ("float", "FLOAT64"),
    _T.TYPE_BOOL: ("bool", "BOOL"),
    _T.TYPE_ENUM: ("enum", "INT64"),
}
_WELL_KNOWN: Final[Mapping[str, tuple[Kind, FieldType]]] = {
    "google.protobuf.Timestamp": ("timestamp", "TIMESTAMP"),
    # Seconds, exact to the nanosecond.
    "google.protobuf.Duration": ("duration", "NUMERIC"),
    "google.protobuf.Struct": ("json", "JSON"),
    "google.protobuf.Value": ("json", "JSON"),
    "google.protobuf.ListValue": ("json", "JSON"),
    "google.protobuf.Any": ("json", "JSON"),
    "google.protobuf.FieldMask": ("text", "STRING"),
}
# What protobuf's reader for Java takes as a float, a text that was rounded among it: JsonFormat.java, parseFloat.
_FLOAT_BOUND: Final = int(3.4028234663852886e38 * (1 + 1e-6))
# JSON's null is one of their values.
_HOLDING_NULL: Final = ("google.protobuf.Value", "google.protobuf.NullValue")
_WRAPPERS: Final = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
# What the option (type) may make of a kind.
_OVERRIDES: Final[Mapping[Kind, frozenset[str]]] = {
    "text": frozenset(get_args(FieldType)) - {"RECORD"},
    "int": frozenset({"INT64", "FLOAT64", "NUMERIC", "STRING"}),
    "float": frozenset({"FLOAT64", "NUMERIC", "STRING"}),
    "bool": frozenset({"BOOL", "STRING"}),
    "enum": frozenset({"INT64", "STRING"}),
    "bytes": frozenset({"BYTES", "STRING"}),
    "timestamp": frozenset({"TIMESTAMP", "STRING"}),
    "duration": frozenset({"NUMERIC", "FLOAT64", "STRING"}),
    "record": frozenset({"JSON", "STRING"}),
    "map": frozenset({"JSON", "STRING"}),
    "json": frozenset({"JSON", "STRING"}),
    "attributes": frozenset(),
}


@dataclass(frozen=True, slots=True)
class FieldPlan:
    """One field of a message and the column it becomes.

    ``names`` are its names in JSON; ``has_presence`` says whether a message can lack it, so that its column is
    null then; ``fields`` are those of a record, or key and value of a map; ``default`` is what a field of proto2
    declares; with ``holds_null`` JSON's null is a value, and not the lack of one; with ``takes_scalars`` a number
    or a boolean is a text. A message has one field at most of those with the same ``oneof``. A field that
    ``is_empty`` is of a message without fields, and has no column.
    """

    path: str
    proto_name: str
    names: tuple[str, ...]
    column: str
    kind: Kind
    type: FieldType
    is_repeated: bool
    has_presence: bool
    options: FieldOptions
    bounds: tuple[int, int] | None = None
    enum: Mapping[str, int] = field(default_factory=dict)
    fields: tuple["FieldPlan", ...] = ()
    default: Any = None
    holds_null: bool = False
    takes_scalars: bool = False
    oneof: str = ""
    is_empty: bool = False

    @property
    def uses_default(self) -> bool:
        """Whether a message that lacks the field has the field's default in its column."""
        if self.is_repeated or self.kind in ("record", "json", "timestamp", "duration"):
            return False
        chosen = self.options.use_default_value.lower()
        return chosen == "true" if self.has_presence else chosen != "false"


def taking_scalars(plans: Sequence[FieldPlan]) -> tuple[FieldPlan, ...]:
    """Return ``plans`` whose fields of type string, those in records and maps too, take numbers and booleans."""
    return tuple(
        replace(plan, takes_scalars=plan.kind == "text", fields=taking_scalars(plan.fields)) for plan in plans
    )


def map_message(message: Descriptor) -> tuple[FieldPlan, ...]:
    """Return the plan of every field of ``message``, in order.

    Raises:
        DescriptorError: something can't be a column; ``details["faults"]`` has all of it, each with its place.
    """
    mapper = _Mapper()
    plans = mapper.map_fields(message, message.name, (message.full_name,))
    if mapper.faults:
        raise DescriptorError(
            f"{message.full_name} can't be a table: " + "; ".join(mapper.faults), faults=mapper.faults
        )
    return plans


class _Mapper:
    """Maps a message and gathers every fault."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._columns = 0

    def map_fields(self, message: Descriptor, path: str, above: tuple[str, ...]) -> tuple[FieldPlan, ...]:
        plans = []
        for descriptor in message.fields:
            place = f"{path}.{descriptor.name}"
            try:
                options = read_field_options(descriptor)
            except DescriptorError as exc:
                self._fault(place, exc.message)
                continue
            plan = self._map_field(descriptor, options, place, above)
            if plan is not None:
                plans.append(plan)
        plans = _named_in_json(plans)
        self._check_names(plans)
        self._check_coalesce(plans)
        return tuple(plans)

    def _map_field(
        self, field: FieldDescriptor, options: FieldOptions, path: str, above: tuple[str, ...]
    ) -> FieldPlan | None:
        kind, column_type = self._kind(field, path)
        plan = FieldPlan(
            path=path,
            proto_name=field.name,
            names=tuple(dict.fromkeys((field.json_name, field.name))),
            column=options.rename or field.name,
            kind=kind,
            type=column_type,
            is_repeated=field.is_repeated and kind not in ("map", "attributes"),
            has_presence=field.has_presence,
            options=options,
            bounds=_bounds(field),
            enum=_enum(field),
            default=_default(field),
            holds_null=_full_name(field) in _HOLDING_NULL and not field.is_repeated,
            oneof=field.containing_oneof.name if field.containing_oneof else "",
        )
        if options.is_hidden:
            return plan
        self._columns += 1
        wanted = options.type.upper()
        if wanted and wanted not in _OVERRIDES[kind]:
            self._fault(path, f"a {_text(field)} can't have the type {options.type!r}")
        elif wanted:
            plan = replace(plan, type=wanted)  # type: ignore[arg-type]
        self._check_options(plan, path)
        if kind in ("record", "map") and plan.type == "RECORD":
            return self._with_children(plan, field.message_type, above)
        return plan

    def _with_children(
        self, plan: FieldPlan, message: Descriptor | None, above: tuple[str, ...]
    ) -> FieldPlan | None:
        assert message is not None
        if self._columns > MAX_COLUMNS:
            # Two records in each of two are soon too many to go through.
            fault = (
                f"the table would have more than {MAX_COLUMNS:,} columns. Give some records the option "
                "type JSON, or hide them"
            )
            if fault not in self.faults:
                self.faults.append(fault)
            return None
        if message.full_name in above or len(above) >= MAX_DEPTH:
            fault = f"is nested more than {MAX_DEPTH} records deep"
            if message.full_name in above:
                names = " -> ".join((*above[above.index(message.full_name) :], message.full_name))
                fault = f"is recursive ({names}), which a table can't be"
            self._fault(plan.path, f"{fault}. Give the field the option type JSON, or hide the field")
            return None
        children = self.map_fields(message, plan.path, (*above, message.full_name))
        options = plan.options
        if all(child.options.is_hidden for child in children):
            # No column. Unknown fields of an empty message are kept, hidden fields are not.
            options = replace(options, hidden="true")
        return replace(plan, fields=children, is_empty=not children, options=options)

    def _kind(self, field: FieldDescriptor, path: str) -> tuple[Kind, FieldType]:
        message = field.message_type
        if message is None:
            return _KINDS[field.type]
        if message.GetOptions().map_entry:
            key, value = message.fields_by_name["key"], message.fields_by_name["value"]
            is_text = key.type == value.type == _T.TYPE_STRING
            if field.name == ATTRIBUTES_FIELD and is_text and path.count(".") == 1:
                return "attributes", "RECORD"
            return "map", "RECORD"
        if message.full_name in _WRAPPERS:
            return _KINDS[message.fields_by_name["value"].type]
        return _WELL_KNOWN.get(message.full_name, ("record", "RECORD"))

    def _check_names(self, plans: list[FieldPlan]) -> None:
        taken: dict[str, str] = {}
        for plan in plans:
            if plan.options.is_hidden:
                continue
            lower = plan.column.lower()
            if not _NAME.fullmatch(plan.column) or lower.startswith(REFUSED_PREFIXES):
                self._fault(plan.path, f"{plan.column!r} is not a valid column name. Rename the column")
            elif lower in taken:
                self._fault(
                    plan.path, f"{taken[lower]} has the same column name {plan.column}. Rename one of the columns"
                )
            taken[lower] = plan.path

    def _check_coalesce(self, plans: list[FieldPlan]) -> None:
        known = {plan.proto_name for plan in plans}
        for plan in plans:
            unknown = [name for name in listed(plan.options.coalesce) if name not in known]
            if unknown:
                self._fault(plan.path, f"coalesce names {', '.join(unknown)}, but the message has no such field")
            if plan.options.coalesce and plan.kind in ("record", "map", "attributes"):
                self._fault(plan.path, "coalesce is allowed only for a field with a single value")

    def _check_options(self, plan: FieldPlan, path: str) -> None:
        options = plan.options
        if options.regex_replace and "," not in options.regex_replace:
            self._fault(path, "regex_replace must be 'pattern,replacement'")
        for name in ("regex_extract", "filter", "regex_replace", "local_to_utc"):
            try:
                compile_transforms(FieldOptions(**{name: getattr(options, name)}))
            except DescriptorError as exc:
                self._fault(path, f"{name}: {exc.message}")
        on_text = ("append", "regex_extract", "regex_replace", "local_to_utc", "filter")
        if plan.kind != "text" and (wrong := [name for name in on_text if getattr(options, name)]):
            self._fault(
                path, f"{' and '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} allowed only for strings"
            )
        if options.divide:
            self._check_divide(plan, path)

    def _check_divide(self, plan: FieldPlan, path: str) -> None:
        try:
            divisor = float(plan.options.divide)
        except ValueError:
            divisor = 0.0
        if divisor == 0 or not math.isfinite(divisor):
            self._fault(path, f"divide must be a number other than 0, but is {plan.options.divide!r}")
        if plan.type not in ("FLOAT64", "NUMERIC"):
            self._fault(
                path,
                f"divide needs a type with fractions, but the type is {plan.type}. Give the field the "
                "option type FLOAT64",
            )

    def _fault(self, path: str, text: str) -> None:
        self.faults.append(f"{path}: {text}")


def listed(text: str) -> list[str]:
    """Return the names in a list that commas separate."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _named_in_json(plans: list[FieldPlan]) -> list[FieldPlan]:
    """Return the plans with the names that are theirs in JSON: another's json_name comes before a field's own."""
    owners = {plan.names[0]: plan.path for plan in plans}
    return [
        replace(plan, names=tuple(name for name in plan.names if owners.get(name, plan.path) == plan.path))
        for plan in plans
    ]


def _full_name(field: FieldDescriptor) -> str:
    kind = field.message_type or field.enum_type
    return "" if kind is None else str(kind.full_name)


def _default(field: FieldDescriptor) -> Any:
    return None if field.is_repeated or field.message_type is not None else field.default_value


def _bounds(field: FieldDescriptor) -> tuple[int, int] | None:
    if field.message_type is not None and field.message_type.full_name in _WRAPPERS:
        field = field.message_type.fields_by_name["value"]
    return (-_FLOAT_BOUND, _FLOAT_BOUND) if field.type == _T.TYPE_FLOAT else _INTS.get(field.type)


def _enum(field: FieldDescriptor) -> dict[str, int]:
    return {} if field.enum_type is None else {value.name: value.number for value in field.enum_type.values}


def _text(field: FieldDescriptor) -> str:
    return (
        field.message_type.full_name
        if field.message_type is not None
        else f"field of type {_KINDS[field.type][1]}"
    )
