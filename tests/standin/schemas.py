"""BigQuery's schemas and values as Arrow's, and back."""

import base64
import binascii
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tests.standin.problems import Problem

# The API answers with the legacy names, whichever were given ("REST Resource: tables", TableFieldSchema.type).
_LEGACY_NAMES: Final = {"INT64": "INTEGER", "FLOAT64": "FLOAT", "BOOL": "BOOLEAN", "STRUCT": "RECORD"}
_SCALARS: Final = {
    "STRING": pa.string(),
    "BYTES": pa.binary(),
    "INTEGER": pa.int64(),
    "FLOAT": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "DATETIME": pa.timestamp("us"),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "NUMERIC": pa.decimal128(38, 9),
    "BIGNUMERIC": pa.decimal256(76, 38),
    "JSON": pa.string(),
    "GEOGRAPHY": pa.string(),
}
_MODES: Final = ("NULLABLE", "REQUIRED", "REPEATED")

Field = Mapping[str, Any]


def normalise_fields(fields: Sequence[Field], path: str = "") -> list[dict[str, Any]]:
    """Return the fields as the API stores them: legacy type names, a mode each.

    Raises:
        Problem: ``invalid``; a name, type or mode is wrong.
    """
    result: list[dict[str, Any]] = []
    names: set[str] = set()
    for field in fields:
        name = str(field.get("name") or "")
        kind = str(field.get("type") or "").upper()
        kind = _LEGACY_NAMES.get(kind, kind)
        mode = str(field.get("mode") or "NULLABLE").upper()
        if not name or name.upper().startswith("_PARTITION"):
            raise Problem("invalid", f"Invalid field name {path}{name!r}.")
        if name.lower() in names:
            raise Problem("invalid", f"Duplicate field name {path}{name}.")
        if kind != "RECORD" and kind not in _SCALARS:
            raise Problem("invalid", f"Invalid value for type: {kind or '(none)'} is not a valid value")
        if mode not in _MODES:
            raise Problem("invalid", f"Invalid mode {mode} of field {path}{name}.")
        names.add(name.lower())
        stored = {**field, "name": name, "type": kind, "mode": mode}
        if kind == "RECORD":
            stored["fields"] = normalise_fields(field.get("fields") or [], f"{path}{name}.")
            if not stored["fields"]:
                raise Problem("invalid", f"Field {path}{name} is type RECORD but has no schema")
        result.append(stored)
    return result


def check_change(old: Sequence[Field], new: Sequence[Field]) -> None:
    """Refuse what "Modifying table schemas" doesn't allow: fields may be added at the end and modes relaxed.

    Raises:
        Problem: ``invalid``.
    """
    by_name = {field["name"].lower(): field for field in new}
    for field in old:
        name = field["name"]
        match = by_name.pop(name.lower(), None)
        if match is None:
            raise Problem(
                "invalid", f"Provided Schema does not match Table. Field {name} is missing in new schema"
            )
        if match["type"] != field["type"]:
            raise Problem(
                "invalid",
                f"Provided Schema does not match Table. Field {name} has changed type "
                f"from {field['type']} to {match['type']}",
            )
        relaxed = field["mode"] == "REQUIRED" and match["mode"] == "NULLABLE"
        if match["mode"] != field["mode"] and not relaxed:
            raise Problem(
                "invalid",
                f"Provided Schema does not match Table. Field {name} has changed mode "
                f"from {field['mode']} to {match['mode']}",
            )
        if field["type"] == "RECORD":
            check_change(field["fields"], match["fields"])
    for field in by_name.values():
        if field["mode"] == "REQUIRED":
            raise Problem(
                "invalid",
                f"Provided Schema does not match Table. Cannot add required fields to an existing schema. "
                f"(field: {field['name']})",
            )


def arrow_field(field: Field) -> pa.Field:
    """Return the Arrow field that the Storage Read API gives for ``field``."""
    if field["type"] == "RECORD":
        kind: pa.DataType = pa.struct([arrow_field(child) for child in field["fields"]])
    else:
        kind = _SCALARS[field["type"]]
    if field["mode"] == "REPEATED":
        kind = pa.list_(pa.field("item", kind))
    return pa.field(field["name"], kind, nullable=field["mode"] != "REQUIRED")


def arrow_schema(fields: Sequence[Field]) -> pa.Schema:
    return pa.schema([arrow_field(field) for field in fields])


def fields_of(schema: pa.Schema) -> list[dict[str, Any]]:
    """Return the BigQuery fields of an Arrow schema, all NULLABLE or REPEATED."""
    return [_field_of(field.name, field.type) for field in schema]


def _field_of(name: str, kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return {**_field_of(name, kind.value_type), "mode": "REPEATED"}
    field: dict[str, Any] = {"name": name, "mode": "NULLABLE", "type": _type_name(kind)}
    if pa.types.is_struct(kind):
        field["fields"] = [_field_of(child.name, child.type) for child in kind]
    return field


def _type_name(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        # A sum of INT64 is a HUGEINT of the engine.
        return "INTEGER" if kind.scale == 0 else "NUMERIC"
    if pa.types.is_timestamp(kind):
        return "TIMESTAMP" if kind.tz else "DATETIME"
    if isinstance(kind, pa.BaseExtensionType):
        return "JSON" if "json" in kind.extension_name else _type_name(kind.storage_type)
    checks = (
        (pa.types.is_struct, "RECORD"),
        (pa.types.is_boolean, "BOOLEAN"),
        (pa.types.is_integer, "INTEGER"),
        (pa.types.is_floating, "FLOAT"),
        (pa.types.is_date, "DATE"),
        (pa.types.is_time, "TIME"),
        (pa.types.is_binary, "BYTES"),
        (pa.types.is_large_binary, "BYTES"),
    )
    return next((name for is_it, name in checks if is_it(kind)), "STRING")


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return ``batch`` with the columns of ``schema``, in its order and types; what it lacks is null."""
    if batch.schema.equals(schema):
        return batch
    places = {name.lower(): number for number, name in enumerate(batch.schema.names)}
    columns = []
    for field in schema:
        place = places.get(field.name.lower())
        columns.append(
            pa.nulls(batch.num_rows, field.type)
            if place is None
            else conform_array(batch.column(place), field.type)
        )
    relaxed = pa.schema([field.with_nullable(True) for field in schema])
    return pa.RecordBatch.from_arrays(columns, schema=relaxed)


def conform_array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return ``array`` as ``kind``; fields of structs go by name."""
    if array.type.equals(kind):
        return array
    if isinstance(array, pa.ExtensionArray):
        return conform_array(array.storage, kind)
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        places = {child.name.lower(): number for number, child in enumerate(array.type)}
        children = [
            conform_array(array.field(places[child.name.lower()]), child.type)
            if child.name.lower() in places
            else pa.nulls(len(array), child.type)
            for child in kind
        ]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if pa.types.is_list(kind) and (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        values = conform_array(array.flatten(), kind.value_type)
        counts = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        offsets = pa.array([0, *counts.cumsum().tolist()], pa.int32())
        mask = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(offsets, values, type=kind, mask=mask)
    return array.cast(kind)


def conform_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    relaxed = pa.schema([field.with_nullable(True) for field in schema])
    return pa.Table.from_batches([conform(b, schema).cast(relaxed) for b in table.to_batches()], relaxed)


def column_bytes(array: pa.Array) -> int:
    """Return what the page "BigQuery pricing", section data size calculation, counts for a column."""
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return column_bytes(array.flatten())
    if pa.types.is_struct(kind):
        return sum(column_bytes(child) for child in array.flatten())
    filled = len(array) - array.null_count
    if any(check(kind) for check in (pa.types.is_string, pa.types.is_binary)) or pa.types.is_large_binary(kind):
        return 2 * filled + int(pc.sum(pc.binary_length(array)).as_py() or 0)
    if pa.types.is_boolean(kind):
        return filled
    return (16 if pa.types.is_decimal(kind) else 8) * filled


def rows_of(table: pa.Table, fields: Sequence[Field], *, int_timestamps: bool) -> list[dict[str, Any]]:
    """Return rows as ``{"f": [{"v": ...}]}``, the way of tabledata.list and getQueryResults."""
    columns = [
        [_cell(value, field, int_timestamps=int_timestamps) for value in table.column(number).to_pylist()]
        for number, field in enumerate(fields)
    ]
    return [{"f": list(cells)} for cells in zip(*columns, strict=True)] if columns else []


def _cell(value: Any, field: Field, *, int_timestamps: bool) -> dict[str, Any]:
    if field["mode"] == "REPEATED":
        single = {**field, "mode": "NULLABLE"}
        return {"v": [_cell(item, single, int_timestamps=int_timestamps) for item in value or ()]}
    if value is None:
        return {"v": None}
    if field["type"] == "RECORD":
        cells = [
            _cell(value.get(child["name"]), child, int_timestamps=int_timestamps) for child in field["fields"]
        ]
        return {"v": {"f": cells}}
    return {"v": _text(value, field["type"], int_timestamps=int_timestamps)}


def _text(value: Any, kind: str, *, int_timestamps: bool) -> str:
    if kind == "BYTES":
        return base64.b64encode(value).decode()
    if kind == "BOOLEAN":
        return "true" if value else "false"
    if kind == "TIMESTAMP":
        micros = microseconds(value)
        return str(micros) if int_timestamps else repr(micros / 1e6)
    if kind == "INTEGER":
        return str(int(value))
    if kind in {"DATETIME", "DATE", "TIME"}:
        return str(value.isoformat())
    return str(value)


def microseconds(moment: datetime) -> int:
    """Return the microseconds since 1970, exact."""
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86400 + delta.seconds) * 1_000_000 + delta.microseconds


def parse_rows(
    rows: Iterable[Mapping[str, Any]], fields: Sequence[Field], *, json_is_text: bool = True
) -> pa.Table:
    """Return JSON rows (newline-delimited JSON, insertAll) as an Arrow table.

    ``json_is_text`` says that a text for a JSON column is JSON's own text, else it is a JSON string.

    Raises:
        ValueError: a value is not of its field; ``args`` are the row's number and the reason.
    """
    parsed = []
    for number, row in enumerate(rows):
        try:
            parsed.append(_parse_record(row, fields, json_is_text=json_is_text))
        except (ValueError, TypeError, binascii.Error, ArithmeticError) as exc:
            raise ValueError(number, str(exc)) from exc
    relaxed = pa.schema([field.with_nullable(True) for field in arrow_schema(fields)])
    return pa.Table.from_pylist(parsed, schema=relaxed)


def _parse_record(row: Mapping[str, Any], fields: Sequence[Field], *, json_is_text: bool = True) -> dict[str, Any]:
    known = {field["name"].lower(): field for field in fields}
    result: dict[str, Any] = {}
    for name, value in row.items():
        field = known.get(name.lower())
        if field is None:
            raise ValueError(f"no such field: {name}.")
        result[field["name"]] = parse_value(value, field, json_is_text=json_is_text)
    for field in fields:
        if field["mode"] == "REQUIRED" and result.get(field["name"]) is None:
            raise ValueError(f"Missing required field: {field['name']}.")
        if field["mode"] == "REPEATED" and result.get(field["name"]) is None:
            result[field["name"]] = []
    return result


def parse_value(value: Any, field: Field, *, json_is_text: bool = True) -> Any:
    if field["mode"] == "REPEATED":
        single = {**field, "mode": "NULLABLE"}
        return [parse_value(item, single, json_is_text=json_is_text) for item in value or ()]
    if value is None:
        return None
    if field["type"] == "RECORD":
        return _parse_record(value, field["fields"], json_is_text=json_is_text)
    if field["type"] == "JSON" and not json_is_text:
        return json.dumps(value)
    return _PARSERS[field["type"]](value)


def _parse_timestamp(value: Any) -> datetime:
    if isinstance(value, (int, float)):
        return datetime.fromtimestamp(value, UTC)
    text = str(value).strip().removesuffix(" UTC").replace("Z", "+00:00")
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _parse_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() in {"true", "false"}:
        return str(value).lower() == "true"
    raise ValueError(f"Bad bool value: {value}")


def _parse_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


_PARSERS: Final = {
    "STRING": _parse_text,
    "BYTES": lambda value: base64.b64decode(value, validate=True),
    "INTEGER": int,
    "FLOAT": float,
    "BOOLEAN": _parse_bool,
    "TIMESTAMP": _parse_timestamp,
    "DATETIME": lambda value: datetime.fromisoformat(str(value)),
    "DATE": lambda value: date.fromisoformat(str(value)),
    "TIME": lambda value: time.fromisoformat(str(value)),
    "NUMERIC": lambda value: Decimal(str(value)),
    "BIGNUMERIC": lambda value: Decimal(str(value)),
    "JSON": _parse_text,
    "GEOGRAPHY": str,
}
