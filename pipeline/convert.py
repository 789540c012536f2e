"""From one message's JSON object to one row of values, by functions that are built once a schema."""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from model.widening import to_json
from pipeline.mapping import FieldPlan, listed
from pipeline.paths import field_name, map_place
from pipeline.transforms import compile_transforms
from pipeline.values import (
    EXACT,
    Convert,
    UnknownValueError,
    enum_name,
    enum_number,
    float_within,
    from_text,
    name_of,
    number_text,
    scalar_to_text,
    to_bool,
    to_bytes,
    to_float,
    to_numeric,
    to_seconds,
    to_text,
    to_timestamp,
    whole_number,
)

# What some databases write for "no date": a coalesce passes it over.
_NO_DATE: Final = "0001-01-01"
FAULTS: Final = (ValueError, TypeError, ArithmeticError, AttributeError)


class WrongTypeError(Exception):
    """A value has a type that its field does not take; the text begins with its path."""


@dataclass(slots=True)
class Findings:
    """The parts of a message outside its row: unknown ones by their path, and required fields that it lacks."""

    unknown: dict[str, Any] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


Record = Callable[[Mapping[str, Any], str, Findings], Any]
_Nested = Callable[[Any, str, Findings], Any]
# Where the value of one JSON name goes (None: nowhere), the type of a value that is taken as it is, what reads any
# other, whether that gets the path too, the field's other name in JSON, its name in paths, and the field.
_Slot = tuple[int | str | None, type | None, Convert | _Nested, bool, str | None, str, FieldPlan]


def visible(plans: Sequence[FieldPlan]) -> list[FieldPlan]:
    """Return the plans that have a column."""
    return [plan for plan in plans if not plan.options.is_hidden]


def compile_record(plans: Sequence[FieldPlan], *, by_column: bool = False) -> Record:  # noqa: C901  for every field
    """Return a function from a JSON object to values: one for each visible plan, or a dictionary ``by_column``.

    Raises:
        WrongTypeError: (the returned function) a value can't be what its field is.
    """
    shown = visible(plans)
    places: list[int | str] = [plan.column if by_column else index for index, plan in enumerate(shown)]
    defaults = [default_cell(plan) for plan in shown]
    template: Any = dict(zip(places, defaults, strict=True)) if by_column else defaults
    slots = _slots(plans, {id(plan): place for plan, place in zip(shown, places, strict=True)})
    coalesced = [
        (place, _coalesce(plan, plans), value_reader(plan), plan.proto_name)
        for place, plan in zip(places, shown, strict=True)
        if _coalesces(plan)
    ]
    required = [plan for plan in plans if plan.options.is_required]
    oneofs = exclusive_fields(plans)

    def convert(source: Mapping[str, Any], prefix: str, findings: Findings) -> Any:  # noqa: C901  the same
        values = template.copy()
        for key, value in source.items():
            slot = slots.get(key)
            if slot is None:
                findings.unknown[prefix + field_name(key)] = value
                continue
            place, as_it_is, read, is_told, twin, label, plan = slot
            # What most values are comes first.
            if type(value) is as_it_is and (twin is None or twin not in source):
                values[place] = value
                continue
            if value is None and not plan.holds_null:
                continue
            if place is None:
                if is_told:
                    read(value, prefix + label, findings)  # type: ignore[call-arg]
                continue
            if twin is not None and twin in source:
                raise WrongTypeError(f"{prefix}{label}: the message also has this field as {twin}")
            try:
                values[place] = read(value, prefix + label, findings) if is_told else read(value)  # type: ignore[call-arg]
            except UnknownValueError:
                values[place] = _keep_known(plan, value, prefix + label, findings)
            except FAULTS as exc:
                raise WrongTypeError(f"{prefix}{label}: {exc}") from exc
        for place, choose, read, name in coalesced:
            _take_coalesced(values, place, choose(source), read, f"{prefix}{name}")
        if oneofs or required:
            _check_whole(source, oneofs, required, prefix, findings)
        return values

    return convert


def _slots(plans: Sequence[FieldPlan], places: Mapping[int, int | str]) -> dict[str, _Slot]:
    slots: dict[str, _Slot] = {}
    for plan in plans:
        if plan.kind == "attributes":
            continue
        place = places.get(id(plan))
        # A record that has no column, because it has no fields or all are hidden, may hold unknown ones.
        nested = _nested(plan) if place is not None or plan.fields or plan.is_empty else None
        read = nested or (to_json if place is None else value_reader(plan))
        for name in plan.names:
            twin = next((other for other in plan.names if other != name), None)
            as_it_is = None if place is None else cell_type(plan)
            slots[name] = (place, as_it_is, read, nested is not None, twin, field_name(name), plan)
    return slots


def cell_type(plan: FieldPlan) -> type | None:
    """Return the type whose values are cells already, None where every value is looked at."""
    options = plan.options
    is_changed = any((options.filter, options.regex_extract, options.append, options.regex_replace)) or any(
        (options.local_to_utc, options.divide)
    )
    if plan.is_repeated or is_changed:
        return None
    exact: dict[tuple[str, str], type] = {
        ("text", "STRING"): str,
        ("float", "FLOAT64"): float,
        ("bool", "BOOL"): bool,
    }
    # A float is narrower than its column.
    return exact.get((plan.kind, plan.type)) if plan.bounds is None else None


def default_cell(plan: FieldPlan) -> Any:
    """Return the cell of a message that lacks the field."""
    if plan.is_repeated or plan.kind in ("map", "attributes"):
        return None if plan.type in ("JSON", "STRING") and plan.kind == "map" else []
    if not plan.uses_default:
        return None
    zeros: dict[str, Any] = {"text": "", "int": 0, "float": 0.0, "bool": False, "enum": 0, "bytes": b""}
    default = zeros[plan.kind] if plan.default is None else plan.default
    if isinstance(default, bytes):
        default = base64.b64encode(default).decode()
    try:
        return _scalar(plan)(default)
    except (UnknownValueError, *FAULTS):
        # An empty text is no time and no number.
        return None


def value_reader(plan: FieldPlan) -> Convert:
    """Return the reader of the field's value, which is a list where it is repeated; it raises one of FAULTS."""
    scalar = _scalar(plan)
    if not plan.is_repeated:
        return scalar

    def convert(value: Any) -> list[Any]:
        if type(value) is not list:
            raise ValueError(f"is {name_of(value)}, not a list")
        if None in value and plan.kind != "json":
            raise ValueError("has null in its list")
        found = [scalar(element) for element in value]
        # What a filter leaves out, or an empty text that is no time, has no place in a list.
        return [element for element in found if element is not None] if None in found else found

    return convert


def _scalar(plan: FieldPlan) -> Convert:
    if plan.kind == "text":
        return _text(plan)
    low, high = plan.bounds or (-(1 << 63), (1 << 63) - 1)
    if plan.type == "INT64":
        # An unsigned number beyond what INT64 holds has no cell.
        high = min(high, (1 << 63) - 1)
    readers: dict[str, Convert] = {
        "bytes": to_bytes,
        "int": whole_number(low, high),
        "float": to_float if plan.bounds is None else float_within(high),
        "bool": to_bool,
        "enum": enum_name(plan.enum) if plan.type == "STRING" else enum_number(plan.enum),
        "timestamp": to_timestamp,
        "duration": to_seconds,
        "json": to_json,
        "record": to_json,
        "map": to_json,
    }
    read = readers[plan.kind]
    if plan.kind == "enum" and plan.holds_null:
        number = read
        read = lambda value: number(0 if value is None else value)  # noqa: E731
    finish = _finish(plan)
    if finish is None:
        return read
    return lambda value: finish(read(value))


def _text(plan: FieldPlan) -> Convert:
    transform = compile_transforms(plan.options)
    to_type = from_text(plan.type)
    divide = _divide(plan)
    read = scalar_to_text if plan.takes_scalars else to_text
    if transform is None and to_type is None:
        return read

    def convert(value: Any) -> Any:
        given = read(value)
        text = given if transform is None else transform(given)
        if text is None or to_type is None:
            return text
        cell = to_type(text)
        return cell if divide is None or cell is None else divide(cell)

    return convert


def _finish(plan: FieldPlan) -> Convert | None:
    """Return the conversion from the field's type to the column's, None where they are the same."""
    divide = _divide(plan)
    if plan.kind in ("int", "float", "duration"):
        by_type: dict[str, Convert] = {
            "FLOAT64": float,
            "NUMERIC": to_numeric,
            "STRING": lambda value: f"{value}s" if plan.kind == "duration" else number_text(value),
        }
        to_type = by_type.get(plan.type)
        if divide is None or to_type is None:
            return None if (plan.kind, plan.type) == ("float", "FLOAT64") else to_type
        return lambda value: divide(to_type(value))
    if plan.type == "STRING":
        strings: dict[str, Convert] = {
            "bool": lambda value: "true" if value else "false",
            "bytes": lambda value: value.decode(),
            "timestamp": lambda value: value.isoformat().replace("+00:00", "Z"),
        }
        return strings.get(plan.kind)
    return None


def _divide(plan: FieldPlan) -> Convert | None:
    if not plan.options.divide:
        return None
    if plan.type == "NUMERIC":
        exact = Decimal(plan.options.divide)
        return lambda value: to_numeric(EXACT.divide(value, exact))
    divisor = float(plan.options.divide)
    return lambda value: value / divisor


def _nested(plan: FieldPlan) -> _Nested | None:
    if plan.type != "RECORD":
        return None
    if plan.kind == "map":
        return _map(plan)
    record = compile_record(plan.fields, by_column=True)

    def convert_one(value: Any, path: str, findings: Findings) -> Any:
        if type(value) is not dict:
            raise WrongTypeError(f"{path}: is {name_of(value)}, not an object")
        return record(value, f"{path}.", findings)

    if not plan.is_repeated:
        return convert_one

    def convert_all(value: Any, path: str, findings: Findings) -> list[dict[str, Any]]:
        if type(value) is not list:
            raise WrongTypeError(f"{path}: is {name_of(value)}, not a list")
        return [convert_one(element, f"{path}[{at}]", findings) for at, element in enumerate(value)]

    return convert_all


def _map(plan: FieldPlan) -> _Nested:
    key_plan, value_plan = plan.fields
    has_column = not value_plan.options.is_hidden
    read_key = {"bool": to_bool, "text": to_text}.get(key_plan.kind) or _scalar(key_plan)
    nested = _nested(value_plan)
    read_value = None if nested is not None else value_reader(value_plan)

    def convert(value: Any, path: str, findings: Findings) -> list[dict[str, Any]]:
        if type(value) is not dict:
            raise WrongTypeError(f"{path}: is {name_of(value)}, not an object")
        pairs = []
        for key, element in value.items():
            place = map_place(path, key)
            if element is None and value_plan.kind != "json":
                raise WrongTypeError(f"{place}: is null in a map")
            try:
                cell = read_value(element) if read_value else nested(element, place, findings)  # type: ignore[misc]
                pairs.append({"key": read_key(key), "value": cell} if has_column else {"key": read_key(key)})
            except UnknownValueError:
                findings.unknown[place] = element
            except FAULTS as exc:
                raise WrongTypeError(f"{place}: {exc}") from exc
        if len({pair["key"] for pair in pairs}) < len(pairs):
            # As numbers "1" and "01" are one key.
            raise WrongTypeError(f"{path}: a map contains a key twice")
        return pairs

    return convert


def exclusive_fields(plans: Sequence[FieldPlan]) -> list[list[FieldPlan]]:
    """Return the members of each oneof, of which a message may have one."""
    by_name: dict[str, list[FieldPlan]] = {}
    for plan in plans:
        if plan.oneof:
            by_name.setdefault(plan.oneof, []).append(plan)
    # A field that is optional in proto3 has a oneof of its own.
    return [members for members in by_name.values() if len(members) > 1]


def _check_whole(
    source: Mapping[str, Any],
    oneofs: Sequence[Sequence[FieldPlan]],
    required: Sequence[FieldPlan],
    prefix: str,
    findings: Findings,
) -> None:
    """Note the required fields that a message lacks; two members of a oneof are refused: no reader keeps both."""
    for members in oneofs:
        found = [plan.proto_name for plan in members if _is_in(plan, source)]
        if len(found) > 1:
            raise WrongTypeError(
                f"{prefix}{found[0]}: the message also has {found[1]}, another member of the oneof "
                f"{members[0].oneof}"
            )
    for plan in required:
        if all(source.get(name) is None for name in plan.names):
            findings.missing.append(prefix + plan.proto_name)


def _is_in(plan: FieldPlan, source: Mapping[str, Any]) -> bool:
    return any(name in source and (plan.holds_null or source[name] is not None) for name in plan.names)


def _keep_known(plan: FieldPlan, value: Any, path: str, findings: Findings) -> Any:
    """Return the cell of an enum with names that the schema does not know, which are kept as unknown parts."""
    if not plan.is_repeated:
        findings.unknown[path] = value
        return None
    scalar = _scalar(plan)
    known = []
    for at, element in enumerate(value):
        try:
            known.append(scalar(element))
        except UnknownValueError:
            findings.unknown[f"{path}[{at}]"] = element
        except FAULTS as exc:
            raise WrongTypeError(f"{path}[{at}]: {exc}") from exc
    return known


def _coalesces(plan: FieldPlan) -> bool:
    return bool(plan.options.coalesce) and plan.kind != "attributes"


def _coalesce(plan: FieldPlan, plans: Sequence[FieldPlan]) -> Callable[[Mapping[str, Any]], Any]:
    """Return a finder of the first value that counts: not null, not empty, not a default, no year-one date."""
    by_name = {other.proto_name: other for other in plans}
    sources = [by_name[name] for name in listed(plan.options.coalesce)]

    def choose(source: Mapping[str, Any]) -> Any:
        for other in sources:
            for name in other.names:
                value = source.get(name)
                if value is None or value in ("", [], {}) or (not other.has_presence and value in (0, False)):
                    continue
                if not (type(value) is str and value.startswith(_NO_DATE)):
                    return value
        return None

    return choose


def _take_coalesced(values: Any, place: int | str, chosen: Any, read: Convert, path: str) -> None:
    if chosen is None:
        return
    try:
        values[place] = read(chosen)
    except UnknownValueError:
        return
    except FAULTS as exc:
        raise WrongTypeError(f"{path}: the value that coalesce chose {exc}") from exc
