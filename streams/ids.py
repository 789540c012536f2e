"""Tables of message ids, one row for each message: made by tasks, sent to the driver, and split by table."""

import json
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from streams.targets import is_topic

# One row for each message of an attempt.
IDS_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.dictionary(pa.int32(), pa.string())),
        ("subscription", pa.dictionary(pa.int32(), pa.string())),
        ("message_id", pa.string()),
        ("publish_time", pa.timestamp("us", tz="UTC")),
        ("ack_id", pa.string()),
    ]
)

# The same for a stream with several tables: the table is part of a message's key.
TABLE_IDS_SCHEMA: Final = IDS_SCHEMA.append(pa.field("table", pa.dictionary(pa.int32(), pa.string())))

# The same from the pull to the commit: for a replay also its backfill and row, otherwise an empty text. The
# journal does not keep this, because a redelivered replay has the same message id as before.
PULLED_IDS_SCHEMA: Final = TABLE_IDS_SCHEMA.append(pa.field("replay", pa.string()))

# The table of ids without the column, in a stream with one table.
ONLY_TABLE: Final = ""

# The columns that an id has from its message.
TAKEN_COLUMNS: Final = ("message_id", "publish_time", "ack_id")


def make_ids(schema: pa.Schema, messages: pa.RecordBatch, **more: str | pa.Array) -> pa.Table:
    """Return the ids of ``messages`` with the columns of ``schema``; ``more`` has columns that messages lack."""
    columns = {name: messages.column(name) for name in TAKEN_COLUMNS}
    for name, value in more.items():
        columns[name] = constant(value, messages.num_rows) if isinstance(value, str) else value
    return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


def constant(value: str, count: int) -> pa.DictionaryArray:
    """Return an array with ``value`` ``count`` times."""
    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count), pa.array([value]))


def concat_ids(parts: Sequence[pa.Table], schema: pa.Schema = IDS_SCHEMA) -> pa.Table:
    """Concatenate ``parts``, with one dictionary for each column; without parts the result has ``schema``."""
    return pa.concat_tables(parts).unify_dictionaries().combine_chunks() if parts else schema.empty_table()


def tables_of(ids: pa.Table) -> list[str]:
    """Return the tables of the messages in ``ids``."""
    if "table" not in ids.column_names:
        return [ONLY_TABLE]
    return [str(name) for name in pc.unique(ids.column("table").cast(pa.string())).to_pylist()]


def ids_of_tables(ids: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the rows of ``ids`` whose table is among ``names``."""
    if "table" not in ids.column_names:
        return ids if ONLY_TABLE in names else ids.slice(0, 0)
    wanted = pa.array(list(names), pa.string())
    return ids.filter(pc.is_in(ids.column("table").cast(pa.string()), value_set=wanted))


def without_topics(ids: pa.Table) -> pa.Table:
    """Return the rows of ``ids`` of tables, not of topics: messages are acknowledged by these rows."""
    names = tables_of(ids)
    tables = [name for name in names if not is_topic(name)]
    return ids if tables == names else ids_of_tables(ids, tables)


def pack_tables(head: Any, *tables: tuple[pa.Table, str | None]) -> bytes:
    """Return tables, each compressed by its codec, and a JSON head as bytes for one Spark row."""
    sink = pa.BufferOutputStream()
    text = json.dumps(head).encode()
    for table, codec in tables:
        schema = table.schema.with_metadata({"head": text})
        with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
            # As one batch, because counting ids compress well only over thousands of rows.
            writer.write_table(table.combine_chunks())
        text = b""
    return bytes(sink.getvalue())


def unpack_tables(encoded: bytes, count: int) -> tuple[Any, list[pa.Table]]:
    """Return the head and the ``count`` tables in the bytes of :func:`pack_tables`."""
    source = pa.BufferReader(encoded)
    tables = [pa.ipc.open_stream(source).read_all() for _ in range(count)]
    head = json.loads(tables[0].schema.metadata[b"head"])
    return head, [table.replace_schema_metadata(None) for table in tables]
