"""Rows on their way to BigQuery: Arrow columns, cut into requests, never Python objects."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from connectors.bigquery.tables.specs import DEAD_LETTER_ROWS
from connectors.columns import arrow_schema
from model.table import ARCHIVE_COLUMNS, ColumnType

_ARROW_TYPES: Final[Mapping[ColumnType, pa.DataType]] = {
    "BYTES": pa.binary(),
    "STRING": pa.string(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "ATTRIBUTES": pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])),
}

ARCHIVE_SCHEMA: Final = pa.schema([(column.name, _ARROW_TYPES[column.type]) for column in ARCHIVE_COLUMNS])

DEAD_LETTER_SCHEMA: Final = arrow_schema(DEAD_LETTER_ROWS)

# Google's "Storage Write API best practices": a request of a megabyte or more is worth its round trip.
_GROUP_BYTES: Final = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that BigQuery refuses for good, as a batch of one, and what it says against it."""

    row: pa.RecordBatch
    reason: str


def archive_batch(topic: str, subscription: str, rows: pa.RecordBatch, ingest_time: datetime) -> pa.RecordBatch:
    """Return pulled ``rows`` in :data:`ARCHIVE_SCHEMA`; payload columns are the same buffers."""
    constants = {"topic": topic, "subscription": subscription, "ingest_time": ingest_time}
    columns = [
        pa.repeat(pa.scalar(constants[field.name], field.type), rows.num_rows)
        if field.name in constants
        else rows.column(field.name)
        for field in ARCHIVE_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARCHIVE_SCHEMA)


def dead_letter_batch(refusals: Sequence[RefusedRow], failed_at: datetime) -> pa.RecordBatch:
    """Return refused rows of the archive in :data:`DEAD_LETTER_SCHEMA`, whole, as Arrow IPC streams."""

    def text(row: pa.RecordBatch, name: str) -> Any:
        return row.column(name)[0].as_py()

    rows = [
        {
            **{name: text(refusal.row, name) for name in ("topic", "subscription", "message_id")},
            "reason": refusal.reason,
            "row": encode_rows(refusal.row),
            "failed_at": failed_at,
        }
        for refusal in refusals
    ]
    return pa.RecordBatch.from_pylist(rows, schema=DEAD_LETTER_SCHEMA)


def encode_rows(rows: pa.RecordBatch | pa.Table, *, compression: str | None = None) -> bytes:
    """Return ``rows`` as an Arrow IPC stream, its buffers compressed or not; a reader need not know which."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write(rows)
    return bytes(sink.getvalue())


def cut(batches: Sequence[pa.RecordBatch], max_bytes: int) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """Return batches that each fit a request of ``max_bytes``, and the rows, one each, that fit none.

    Small batches are joined, so that a request is worth its round trip.
    """
    fitting: list[pa.RecordBatch] = []
    large: list[pa.RecordBatch] = []
    for group in _groups(batches, min(_GROUP_BYTES, max_bytes // 2)):
        _halve(group, max_bytes, fitting, large)
    return fitting, large


def _groups(batches: Sequence[pa.RecordBatch], enough_bytes: int) -> Iterator[pa.RecordBatch]:
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    for batch in batches:
        if waiting and waiting_bytes + batch.nbytes > enough_bytes:
            yield _joined(waiting)
            waiting, waiting_bytes = [], 0
        waiting.append(batch)
        waiting_bytes += batch.nbytes
    if waiting:
        yield _joined(waiting)


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _halve(
    batch: pa.RecordBatch, max_bytes: int, fitting: list[pa.RecordBatch], large: list[pa.RecordBatch]
) -> None:
    if batch.nbytes <= max_bytes:
        if batch.num_rows:
            fitting.append(batch)
    elif batch.num_rows == 1:
        large.append(batch)
    else:
        middle = batch.num_rows // 2
        _halve(batch.slice(0, middle), max_bytes, fitting, large)
        _halve(batch.slice(middle), max_bytes, fitting, large)
