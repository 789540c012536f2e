"""Messages as the bytes of a PublishRequest, put together from Arrow columns: no object for each message.

A message stands in the request as a field of its own, and so do its parts::

    12 LENGTH                     PublishRequest.messages (field 2)
      0a LENGTH <data>            PubsubMessage.data (field 1)
      12 LENGTH                   PubsubMessage.attributes (field 2), one entry each
        0a LENGTH <key>
        12 LENGTH <value>
      2a LENGTH <ordering key>    PubsubMessage.ordering_key (field 5)
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

import connectors.arrow  # noqa: F401
from connectors.wire import bytes_field, field_head, varint

ATTRIBUTES_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
MESSAGE_SCHEMA: Final = pa.schema(
    [
        pa.field("data", pa.binary(), nullable=False),
        pa.field("attributes", ATTRIBUTES_TYPE, nullable=False),
        pa.field("ordering_key", pa.string(), nullable=False),
    ]
)

_Lengths = npt.NDArray[np.int64]
# A tag is the field's number times 8, plus 2 for "length-delimited".
_TAG_1: Final = 0x0A
_TAG_2: Final = 0x12
_TAG_5: Final = 0x2A
_NOTHING: Final = pa.scalar(b"", pa.binary())
# A length below is its own varint.
_ONE_BYTE: Final = 1 << 7
# One below is looked up; a longer payload is worth a Python object.
_LISTED_LENGTHS: Final = 1 << 14


def encode_attributes(attributes: Iterable[tuple[str, str]]) -> bytes:
    r"""Return attributes as they stand in a PubsubMessage.

    Example:
        >>> encode_attributes([("k", "v")])
        b'\x12\x06\n\x01k\x12\x01v'
    """
    entries = (bytes_field(1, key.encode()) + bytes_field(2, value.encode()) for key, value in attributes)
    return b"".join(bytes_field(2, entry) for entry in entries)


def encode_fields(number: int, values: pa.Array) -> pa.Array:
    """Return each value, text or bytes, as field ``number`` of a message, in one buffer without gaps."""
    return _join(*_field(number << 3 | 2, values))


def encode_messages(batch: pa.RecordBatch, added: bytes = b"") -> pa.Array:
    """Return each row of ``batch`` as its field of a PublishRequest, in one buffer without gaps.

    ``batch`` is MESSAGE_SCHEMA; a further column of text is an attribute with the column's name, which a message
    has no part of where it is null. ``added`` are encoded attributes that every message gets. Nobody looks whether
    two attributes of a message have the same key: a reader of the message keeps the last.
    """
    parts = [*_field(_TAG_1, batch.column("data")), _own_attributes(batch.column("attributes"))]
    for number in range(len(MESSAGE_SCHEMA), batch.num_columns):
        parts += _attribute(batch.schema.names[number], batch.column(number))
    if pc.any(pc.not_equal(keys := batch.column("ordering_key"), "")).as_py():
        parts += _field(_TAG_5, keys)
    return _join(_heads(_TAG_2, _total(parts) + len(added)), *parts, pa.scalar(added, pa.binary()))


def ends_of(texts: pa.Array) -> npt.NDArray[np.int32]:
    """Return where each element of a binary array begins in its buffer, and where the last one ends."""
    if not len(texts):
        # Arrow leaves it open whether an array of nothing has a buffer.
        return np.zeros(1, np.int32)
    return np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, texts.offset * 4)


def _own_attributes(lists: pa.Array) -> pa.Array:
    """Return each list of attributes, encoded; a list that is null is empty."""
    entries = lists.flatten()
    parts = [*_field(_TAG_1, entries.field("key")), *_field(_TAG_2, entries.field("value"))]
    encoded = _join(_heads(_TAG_2, _total(parts)), *parts)
    counts = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    return _binary(ends_of(encoded)[np.concatenate([[0], np.cumsum(counts)])], encoded.buffers()[2])


def _attribute(name: str, values: pa.Array) -> list[pa.Array]:
    """Return the head of each attribute, its key among it, and its value; both null where it is."""
    key = bytes_field(1, name.encode())

    def head(length: int) -> bytes:
        return field_head(2, len(key) + len(value := field_head(2, length)) + length) + key + value

    heads = _each(_lengths(values), head)
    return [heads if values.null_count == 0 else pc.if_else(values.is_valid(), heads, None), _as_bytes(values)]


def _field(tag: int, values: pa.Array) -> list[pa.Array]:
    """Return the head of each value's field, and the value."""
    return [_heads(tag, _lengths(values)), _as_bytes(values)]


def _heads(tag: int, lengths: _Lengths) -> pa.Array:
    """Return the heads of fields of these lengths."""
    longest = int(lengths.max(initial=0))
    if longest < _ONE_BYTE:
        pairs = np.empty((len(lengths), 2), np.uint8)
        pairs[:, 0], pairs[:, 1] = tag, lengths
        ends = np.arange(0, pairs.size + 1, 2, dtype=np.int32)
        return _binary(ends, pa.py_buffer(pairs))
    if longest < _LISTED_LENGTHS:
        return _listed_heads(tag).take(pa.array(lengths))
    return _each(lengths, lambda length: bytes((tag,)) + varint(length))


@functools.cache
def _listed_heads(tag: int) -> pa.Array:
    return pa.array([bytes((tag,)) + varint(length) for length in range(_LISTED_LENGTHS)], pa.binary())


def _each(lengths: _Lengths, make: Callable[[int], bytes]) -> pa.Array:
    """Return the result of ``make`` for each length; equal ones are made once."""
    least, most = int(lengths.min(initial=_LISTED_LENGTHS)), int(lengths.max(initial=0))
    if most - least < _ONE_BYTE:
        # Nearly alike, as ids are: no need to sort them.
        return pa.array([make(n) for n in range(least, most + 1)], pa.binary()).take(pa.array(lengths - least))
    found, places = np.unique(lengths, return_inverse=True)
    return pa.array([make(int(n)) for n in found], pa.binary()).take(pa.array(places))


def _join(*parts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*parts, _NOTHING, null_handling="replace", null_replacement="")


def _as_bytes(values: pa.Array) -> pa.Array:
    return values.cast(pa.binary())


def _lengths(values: pa.Array) -> _Lengths:
    """Return each value's length in bytes, 0 for null."""
    if values.null_count:
        found: _Lengths = pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        return found
    return np.diff(ends_of(values)).astype(np.int64)


def _binary(ends: npt.NDArray[np.int32], content: pa.Buffer) -> pa.Array:
    return pa.Array.from_buffers(
        pa.binary(), len(ends) - 1, [None, pa.py_buffer(np.ascontiguousarray(ends)), content]
    )


def _total(parts: Sequence[pa.Array]) -> _Lengths:
    """Return the length of each row's parts together."""
    return functools.reduce(np.add, map(_lengths, parts))
