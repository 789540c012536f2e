"""The ids of messages, a row each: made by tasks, carried to the driver, and divided by their tables."""

import json
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from streams.targets import is_topic

# One row a message that an attempt holds.
IDS_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.dictionary(pa.int32(), pa.string())),
        ("subscription", pa.dictionary(pa.int32(), pa.string())),
        ("message_id", pa.string()),
        ("publish_time", pa.timestamp("us", tz="UTC")),
        ("ack_id", pa.string()),
    ]
)

# The same, for a stream that writes several tables: a message is known for the table that has it.
TABLE_IDS_SCHEMA: Final = IDS_SCHEMA.append(pa.field("table", pa.dictionary(pa.int32(), pa.string())))

# The same while it is under way: of a replay also which row of which backfill it is, else an empty text. The
# journal does not keep it: a replay that comes again has the id that it had.
PULLED_IDS_SCHEMA: Final = TABLE_IDS_SCHEMA.append(pa.field("replay", pa.string()))

# The table of ids that name none: those of a stream with one table.
ONLY_TABLE: Final = ""

# What an id takes over from its message.
TAKEN_COLUMNS: Final = ("message_id", "publish_time", "ack_id")


def make_ids(schema: pa.Schema, messages: pa.RecordBatch, **more: str | pa.Array) -> pa.Table:
    """Return the ids of ``messages`` in the columns of ``schema``; ``more`` has those that messages lack."""
    columns = {name: messages.column(name) for name in TAKEN_COLUMNS}
    for name, value in more.items():
        columns[name] = constant(value, messages.num_rows) if isinstance(value, str) else value
    return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


def constant(value: str, count: int) -> pa.DictionaryArray:
    """Return ``value`` as often as ``count`` says."""
    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count), pa.array([value]))


def concat_ids(parts: Sequence[pa.Table], schema: pa.Schema = IDS_SCHEMA) -> pa.Table:
    """Return the rows of all ``parts`` in order, with one dictionary a column; ``schema`` is that of no parts."""
    return pa.concat_tables(parts).unify_dictionaries().combine_chunks() if parts else schema.empty_table()


def tables_of(ids: pa.Table) -> list[str]:
    """Return the tables that the messages of ``ids`` belong to."""
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
    """Return the rows of ``ids`` that belong to tables: a message is pulled and acknowledged by these."""
    names = tables_of(ids)
    tables = [name for name in names if not is_topic(name)]
    return ids if tables == names else ids_of_tables(ids, tables)


def pack_tables(head: Any, *tables: tuple[pa.Table, str | None]) -> bytes:
    """Return the bytes in which a Spark row carries tables, each packed by its codec, and JSON to the driver."""
    sink = pa.BufferOutputStream()
    text = json.dumps(head).encode()
    for table, codec in tables:
        schema = table.schema.with_metadata({"head": text})
        with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
            # In one piece: ids that count up are worth compressing over thousands of rows only.
            writer.write_table(table.combine_chunks())
        text = b""
    return bytes(sink.getvalue())


def unpack_tables(encoded: bytes, count: int) -> tuple[Any, list[pa.Table]]:
    """Return the head and the ``count`` tables that :func:`pack_tables` made bytes of."""
    source = pa.BufferReader(encoded)
    tables = [pa.ipc.open_stream(source).read_all() for _ in range(count)]
    head = json.loads(tables[0].schema.metadata[b"head"])
    return head, [table.replace_schema_metadata(None) for table in tables]
