"""What goes between a query's process and the one that asks: JSON there, Arrow back, never an object's pickle.

The process runs a stranger's query, so nothing that comes out of it may be more than data.
"""

import base64
import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from connectors.lake.archive import DataFile
from connectors.lake.query import ArchiveSnapshot, QueryLimits
from connectors.lake.query_tables import TableColumn, TableFile, TableSnapshot
from model.errors import QueryError, QueryStoppedError, QueryTooLargeError

HEAD: Final = struct.Struct(">Ic")
LENGTH: Final = struct.Struct(">I")
READY: Final = b"r"
BATCH: Final = b"b"
END: Final = b"e"
DONE: Final = b"d"
ERROR: Final = b"x"
MAX_FRAME_BYTES: Final = 1 << 30

_ERRORS: Final = {error.code: error for error in (QueryError, QueryStoppedError, QueryTooLargeError)}
_MAX_MESSAGE_CHARACTERS: Final = 2000


def render_frame(kind: bytes, body: bytes = b"") -> bytes:
    """Return one frame of the answer."""
    return HEAD.pack(len(body), kind) + body


def render_batch(batch: pa.RecordBatch) -> bytes:
    """Return one batch with its schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def read_batches(body: bytes) -> list[pa.RecordBatch]:
    """Return the batches of a frame.

    Raises:
        QueryError: it holds something else.
    """
    try:
        with pa.ipc.open_stream(body) as reader:
            return list(reader)
    except (pa.ArrowException, OSError) as exc:
        raise QueryError(f"The query's process gave an answer that can't be read: {exc}") from exc


def render_error(error: QueryError) -> bytes:
    """Return an error of the query."""
    return json.dumps({"code": error.code, "message": error.message[:_MAX_MESSAGE_CHARACTERS]}).encode()


def read_error(body: bytes) -> QueryError:
    """Return the error of a frame."""
    try:
        found = json.loads(body)
        return _ERRORS[found["code"]](str(found["message"])[:_MAX_MESSAGE_CHARACTERS])
    except (ValueError, KeyError, TypeError):
        return QueryError("The query's process gave an answer that can't be read.")


def render_request(
    snapshot: ArchiveSnapshot, statements: Iterable[tuple[str, Mapping[str, Any]]], limits: QueryLimits
) -> bytes:
    """Return the request, its length before it."""
    document = {
        "snapshot": {
            "files": [[f.path, f.size_bytes, f.rows, f.partition.isoformat()] for f in snapshot.files],
            "partitioning": snapshot.partitioning,
            "tables": [asdict(table) for table in snapshot.tables],
        },
        "statements": [
            [sql, {name: _render_value(value) for name, value in parameters.items()}]
            for sql, parameters in statements
        ],
        "limits": {**asdict(limits), "temp_folder": str(limits.temp_folder)},
    }
    body = json.dumps(document).encode()
    return LENGTH.pack(len(body)) + body


def read_request(body: bytes) -> tuple[ArchiveSnapshot, list[tuple[str, dict[str, Any]]], QueryLimits]:
    """Return what :func:`render_request` was given."""
    document = json.loads(body)
    found = document["snapshot"]
    snapshot = ArchiveSnapshot(
        [
            DataFile(path, size, rows, datetime.fromisoformat(partition))
            for path, size, rows, partition in found["files"]
        ],
        found["partitioning"],
        tuple(_read_table(table) for table in found["tables"]),
    )
    statements = [
        (sql, {name: _read_value(value) for name, value in parameters.items()})
        for sql, parameters in document["statements"]
    ]
    limits = document["limits"]
    return snapshot, statements, QueryLimits(**{**limits, "temp_folder": Path(limits["temp_folder"])})


def _read_table(found: dict[str, Any]) -> TableSnapshot:
    return TableSnapshot(
        found["view"],
        tuple(TableColumn(**column) for column in found["columns"]),
        tuple(found["partitions"]),
        tuple(TableFile(f["path"], f["size_bytes"], tuple(f["values"])) for f in found["files"]),
        found["partitioning"],
        found["select"],
    )


def _render_value(value: Any) -> Any:
    """Return a parameter's value as JSON, tagged where JSON has no such type."""
    match value:
        case bytes():
            return {"bytes": base64.b64encode(value).decode()}
        case datetime():
            return {"moment": value.astimezone(UTC).isoformat()}
        case date():
            return {"date": value.isoformat()}
        case list() | tuple():
            return [_render_value(item) for item in value]
        case _:
            return value


def _read_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_read_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, text),) = value.items()
    if kind == "bytes":
        return base64.b64decode(text)
    return datetime.fromisoformat(text) if kind == "moment" else date.fromisoformat(text)
