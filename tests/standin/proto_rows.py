"""Rows that come as protocol buffers, as an Arrow batch of the table's columns."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from tests.standin.schemas import arrow_schema, parse_value
from tests.standin.storage_errors import StorageProblem

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def proto_batch(
    descriptor: descriptor_pb2.DescriptorProto, rows: Sequence[bytes], fields: Sequence[Mapping[str, Any]]
) -> pa.RecordBatch:
    """Return ``rows`` as one batch; row by row, for tests that write few.

    Raises:
        StorageProblem: INVALID_ARGUMENT; the descriptor has fields that the table lacks, or a row is no message.
    """
    known = {field["name"].lower(): field for field in fields}
    extra = [field.name for field in descriptor.field if field.name.lower() not in known]
    if extra:
        raise StorageProblem(
            "INVALID_ARGUMENT",
            f"Input schema has more fields than BigQuery schema, extra fields: '{', '.join(extra)}'",
            "SCHEMA_MISMATCH_EXTRA_FIELDS",
        )
    file = descriptor_pb2.FileDescriptorProto(name="row.proto", package="standin", syntax="proto2")
    file.message_type.add().CopyFrom(descriptor)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    message_class = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"standin.{descriptor.name}"))
    try:
        records = [_record(message_class.FromString(row), fields) for row in rows]
    except (DecodeError, ValueError) as exc:
        raise StorageProblem("INVALID_ARGUMENT", f"Can't read a row: {exc}") from exc
    relaxed = pa.schema([field.with_nullable(True) for field in arrow_schema(fields)])
    return pa.RecordBatch.from_pylist(records, schema=relaxed)


def _record(message: Any, fields: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    by_name = {field.name.lower(): field for field in message.DESCRIPTOR.fields}
    record: dict[str, Any] = {}
    for field in fields:
        known = by_name.get(field["name"].lower())
        if known is None:
            record[field["name"]] = [] if field["mode"] == "REPEATED" else None
        elif field["mode"] == "REPEATED":
            record[field["name"]] = [_value(item, field) for item in getattr(message, known.name)]
        else:
            is_set = message.HasField(known.name)
            record[field["name"]] = _value(getattr(message, known.name), field) if is_set else None
    return record


def _value(value: Any, field: Mapping[str, Any]) -> Any:
    kind = field["type"]
    if kind == "RECORD":
        return _record(value, field["fields"])
    # "Supported protocol buffer and Arrow data types": TIMESTAMP is microseconds, DATE days since 1970.
    if kind == "TIMESTAMP" and isinstance(value, int):
        return _EPOCH + timedelta(microseconds=value)
    if kind == "DATE" and isinstance(value, int):
        return date(1970, 1, 1) + timedelta(days=value)
    if kind == "BYTES":
        return value
    return parse_value(value, {**field, "mode": "NULLABLE"})
