"""The Arrow types of rows in every warehouse; JSON, TIME and GEOGRAPHY are texts, because Delta lacks them."""

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

import connectors.arrow  # noqa: F401
from model.schema import Field, FieldType, RowSchema

_TYPES: Final[Mapping[FieldType, pa.DataType]] = {
    "STRING": pa.string(),
    "BYTES": pa.binary(),
    "INT64": pa.int64(),
    "FLOAT64": pa.float64(),
    "NUMERIC": pa.decimal128(38, 9),
    "BOOL": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "DATE": pa.date32(),
    "TIME": pa.string(),
    "DATETIME": pa.timestamp("us"),
    "GEOGRAPHY": pa.string(),
    "JSON": pa.string(),
}


def arrow_schema(schema: RowSchema) -> pa.Schema:
    """Return the Arrow schema with the columns of ``schema``, in their order."""
    return pa.schema([arrow_field(field) for field in schema.fields])


def arrow_field(field: Field) -> pa.Field:
    """Return one column; REPEATED is a list, RECORD a struct."""
    kind = (
        pa.struct([arrow_field(child) for child in field.fields]) if field.type == "RECORD" else _TYPES[field.type]
    )
    return pa.field(field.name, pa.list_(kind) if field.mode == "REPEATED" else kind)
