"""Rows as the messages of a topic: their columns as JSON, and attributes that describe each row."""

import base64
import hashlib
import json
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from model.message import MAX_PUBLISH_REQUEST_BYTES, REPLAY_ATTRIBUTE, REPLAY_TAGS
from model.schema import Field
from pipeline.registry import Source
from pipeline.schema import INGEST_TIME
from pipeline.values import numeric_text
from streams.topics import TOPIC_SCHEMA

# The code of a dead letter whose row is in its table, and can't be published.
PUBLISH_REFUSED: Final = "publish_refused"
# What attributes, ordering key and the request around a message may take; ours have less than this.
_BESIDE_DATA_BYTES: Final = 16 * 1024
MAX_DATA_BYTES: Final = MAX_PUBLISH_REQUEST_BYTES - _BESIDE_DATA_BYTES
# Pub/Sub "Quotas and limits": resource limits of an ordering key.
# https://docs.cloud.google.com/pubsub/quotas#resource_limits
_MAX_KEY_BYTES: Final = 1024
# A row's own attribute stands before ours: a collector gives an event's repeats the same.
_OWN: Final = ("uuid", "timestamp")
# The token is that of the source's topic: it is no replay to the backup of another one, and nobody else's to know.
_TAGS: Final = tuple(tag for tag in REPLAY_TAGS if tag != REPLAY_ATTRIBUTE)

_Encode = Callable[[Any], str]
_text: Final = json.JSONEncoder(ensure_ascii=False).encode


def render_messages(
    source: Source, fields: Sequence[Field], rows: pa.RecordBatch, messages: pa.RecordBatch, *, token: str
) -> pa.RecordBatch:
    """Return a message for each of ``rows``, which have these ``fields`` and were made of ``messages``, in order.

    The data is a JSON object with the columns of the row, all but ``ingest_time``, which only the written file
    knows. Numbers have all their digits. A replay of the source's topic is recognised by ``token``.
    """
    names = [name for name in rows.schema.names if name != INGEST_TIME]
    by_name = {field.name.lower(): field for field in fields}
    cells = {name: rows.column(name).to_pylist() for name in names}
    encoded = {name: list(map(encoder(by_name[name.lower()]), found)) for name, found in cells.items()}
    heads = [f"{_text(name)}:" for name in names]
    datas = [
        f"{{{','.join(map(str.__add__, heads, row))}}}".encode()
        for row in zip(*(encoded[name] for name in names), strict=True)
    ]
    attributes = [
        _attributes(source.name, {name: cells[name][at] for name in _META if name in cells}, own, token)
        for at, own in enumerate(messages.column("attributes").to_pylist())
    ]
    keys = [""] * rows.num_rows
    if source.is_published_by_key and all(name in cells for name in source.key):
        by_key = [zip(cells[name], encoded[name], strict=True) for name in source.key]
        keys = [_ordering_key(pairs) for pairs in zip(*by_key, strict=True)]
    columns = {"data": datas, "attributes": attributes, "ordering_key": keys}
    arrays = [
        pa.array(columns[kind.name], kind.type) if kind.name in columns else messages.column(kind.name)
        for kind in TOPIC_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=TOPIC_SCHEMA)


def find_unpublishable(messages: pa.Table, refused: Mapping[str, str]) -> dict[int, str]:
    """Return the places of ``messages`` that Pub/Sub does not take, with the reason.

    ``refused`` are those of which it said so, by the id of the message that the row was made of.
    """
    sizes = pc.binary_length(messages.column("data"))
    large = pc.indices_nonzero(pc.greater(sizes, MAX_DATA_BYTES)).to_pylist()
    found = {
        place: f"The row is {sizes[place]} bytes of JSON. At most {MAX_DATA_BYTES} bytes can be published."
        for place in large
    }
    if refused:
        ids = messages.column("message_id").to_pylist()
        found |= {place: refused[name] for place, name in enumerate(ids) if name in refused}
    return found


def encoder(field: Field) -> _Encode:
    """Return a function from a cell of ``field`` to its JSON; null is null.

    Example:
        >>> encoder(Field("n", "INT64"))(9007199254740993)
        '9007199254740993'
        >>> encoder(Field("n", "FLOAT64", "REPEATED"))([1.5, float("nan")])
        '[1.5,"NaN"]'
    """
    if field.mode == "REPEATED":
        single = _single(field)
        return lambda cells: "null" if cells is None else f"[{','.join(map(single, cells))}]"
    return _single(field)


def _single(field: Field) -> _Encode:
    if field.type == "RECORD":
        parts = [(child.name, f"{_text(child.name)}:", encoder(child)) for child in field.fields]
        return _or_null(
            lambda cell: f"{{{','.join(head + encode(cell.get(name)) for name, head, encode in parts)}}}"
        )
    return _or_null(_SCALARS.get(field.type, _text))


def _or_null(encode: _Encode) -> _Encode:
    return lambda cell: "null" if cell is None else encode(cell)


def _number(cell: float) -> str:
    """Return a FLOAT64; protobuf's JSON and BigQuery's write a number that is not finite as a text."""
    if math.isfinite(cell):
        return repr(cell)
    return '"NaN"' if math.isnan(cell) else f'"{"-" if cell < 0 else ""}Infinity"'


def _rfc_3339(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


_SCALARS: Final[Mapping[str, _Encode]] = {
    "INT64": str,
    "FLOAT64": _number,
    "NUMERIC": numeric_text,
    "BOOL": lambda cell: "true" if cell else "false",
    "BYTES": lambda cell: f'"{base64.b64encode(cell).decode()}"',
    "TIMESTAMP": lambda cell: f'"{_rfc_3339(cell)}"',
    "DATE": lambda cell: f'"{cell.isoformat()}"',
    "DATETIME": lambda cell: f'"{cell.isoformat()}"',
    # The text of a JSON column is JSON already, and not a digit of it may change.
    "JSON": str,
}
_META: Final = ("_topic", "_message_id", "_publish_time", "_schema_version", "_operation")


def _attributes(
    source: str, row: Mapping[str, Any], pairs: Sequence[Mapping[str, str]] | None, token: str
) -> list[tuple[str, str]]:
    message = {pair["key"]: pair["value"] for pair in pairs or ()}
    found = {
        "source": source,
        # The same for a message that is published twice: by it a reader tells repeats.
        "uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, f"pubsub:{row['_topic']}/{row['_message_id']}")),
        "timestamp": _rfc_3339(row["_publish_time"]),
    }
    found |= {name: message[name] for name in _OWN if message.get(name)}
    for name in ("_schema_version", "_operation"):
        if row.get(name):
            found[name[1:]] = row[name]
    if message.get(REPLAY_ATTRIBUTE) == token:
        found |= {tag: message[tag] for tag in _TAGS if tag in message}
    return list(found.items())


def _ordering_key(cells: Sequence[tuple[Any, str]]) -> str:
    """Return the text of an entity's key; empty, which is no order, where a part of it is null."""
    if any(cell is None for cell, _ in cells):
        return ""
    if len(cells) == 1:
        cell, encoded = cells[0]
        text = cell if isinstance(cell, str) else encoded
    else:
        text = f"[{','.join(encoded for _, encoded in cells)}]"
    return text if len(text.encode()) <= _MAX_KEY_BYTES else hashlib.sha256(text.encode()).hexdigest()
