"""Whether a writer's schema fits a table, and which rows of a batch do not."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tests.standin.storage_errors import StorageProblem


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind))


# "Stream data using the Storage Write API with Arrow format", table of supported types.
_FITTING: Final = {
    "STRING": _is_text,
    "JSON": _is_text,
    "GEOGRAPHY": _is_text,
    "BYTES": _is_bytes,
    "INTEGER": pt.is_integer,
    "FLOAT": lambda kind: pt.is_floating(kind) or pt.is_integer(kind),
    "BOOLEAN": pt.is_boolean,
    "TIMESTAMP": lambda kind: pt.is_timestamp(kind) and kind.tz is not None and kind.unit == "us",
    "DATETIME": lambda kind: pt.is_timestamp(kind) and kind.tz is None and kind.unit == "us",
    "DATE": pt.is_date32,
    "TIME": lambda kind: pt.is_time64(kind) and kind.unit == "us",
    "NUMERIC": pt.is_decimal,
    "BIGNUMERIC": pt.is_decimal,
    "RECORD": pt.is_struct,
}


def check_writer_schema(schema: Sequence[pa.Field], fields: Sequence[Mapping[str, Any]], where: str) -> None:
    """Refuse a schema with other fields or types than the table's.

    Raises:
        StorageProblem: INVALID_ARGUMENT.
    """
    known = {field["name"].lower(): field for field in fields}
    for column in schema:
        field = known.get(column.name.lower())
        if field is None:
            raise StorageProblem(
                "INVALID_ARGUMENT",
                f"Input schema has more fields than BigQuery schema, extra fields: '{column.name}'",
                "SCHEMA_MISMATCH_EXTRA_FIELDS",
                where,
            )
        kind = column.type
        if field["mode"] == "REPEATED":
            if not (pt.is_list(kind) or pt.is_large_list(kind)):
                raise _mismatch(column, field)
            kind = kind.value_type
        if not _FITTING[field["type"]](kind):
            raise _mismatch(column, field)
        if field["type"] == "RECORD":
            check_writer_schema(list(kind), field["fields"], where)
    given = {column.name.lower() for column in schema}
    for name, field in known.items():
        if field["mode"] == "REQUIRED" and name not in given:
            raise StorageProblem(
                "INVALID_ARGUMENT", f"Required field {field['name']} is missing in the input schema"
            )


def _mismatch(column: pa.Field, field: Mapping[str, Any]) -> StorageProblem:
    return StorageProblem(
        "INVALID_ARGUMENT",
        f"Schema mismatch: field {column.name} of type {column.type} can't be written to {field['mode']} "
        f"{field['type']} field {field['name']}",
    )


def bad_rows(batch: pa.RecordBatch, fields: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Return the rows that BigQuery refuses, with the reason: NULL where a value is required, broken UTF-8."""
    found: dict[int, str] = {}
    required = {field["name"].lower() for field in fields if field["mode"] == "REQUIRED"}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name.lower() in required and column.null_count:
            for row in _true_rows(column.is_null()):
                found[row] = f"Field {name} is required but was not set"
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            for row in _broken_texts(column):
                found.setdefault(row, f"Field {name} has invalid UTF-8")
            if not found:
                raise StorageProblem("INVALID_ARGUMENT", f"Malformed Arrow data in {name}") from None
    return found


def _true_rows(mask: pa.Array) -> list[int]:
    return [int(row) for row in pc.indices_nonzero(mask).to_pylist()]


def _broken_texts(array: pa.Array) -> set[int]:
    """Return the rows of which a text, however deep, is no UTF-8."""
    kind = array.type
    if pt.is_list(kind) or pt.is_large_list(kind):
        parents = pc.list_parent_indices(array).to_pylist()
        return {parents[row] for row in _broken_texts(array.flatten())}
    if pt.is_struct(kind):
        return {row for child in array.flatten() for row in _broken_texts(child)}
    if not _is_text(kind):
        return set()
    raw = array.view(pa.large_binary() if pt.is_large_string(kind) else pa.binary())
    return {row for row, value in enumerate(raw) if not _is_utf8(value.as_py())}


def _is_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True
