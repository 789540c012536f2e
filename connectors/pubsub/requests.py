"""Cuts Arrow messages into Publish requests within Pub/Sub's limits and encodes them, in Rust."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import ptars
import pyarrow as pa
import pyarrow.compute as pc

from connectors.pubsub.messages import find_message
from model.message import MAX_PUBLISH_REQUEST_BYTES, MAX_PUBLISH_REQUEST_MESSAGES

ATTRIBUTES_TYPE: Final = pa.map_(pa.string(), pa.string())
MESSAGE_SCHEMA: Final = pa.schema(
    [
        pa.field("data", pa.binary(), nullable=False),
        pa.field("attributes", ATTRIBUTES_TYPE, nullable=False),
        pa.field("ordering_key", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """Rows [start, start + rows) of a batch as the bytes of one PublishRequest; ``key`` is their ordering key."""

    start: int
    rows: int
    body: bytes
    key: str = ""


class RequestCutter:
    """Cuts requests off a batch (MESSAGE_SCHEMA), one after the other.

    A request holds at most 1,000 messages and 10 MB on the wire; only a request of one message can be larger,
    and such a message can't be published at all. With ``by_key`` all messages of a request have one ordering
    key, which is what Pub/Sub demands of messages that have any.
    """

    def __init__(self, batch: pa.RecordBatch, topic_path: str, *, by_key: bool = False) -> None:
        self._batch = batch
        self._topic_path = topic_path
        self._ends = np.cumsum(message_sizes(batch))
        self._room_bytes = MAX_PUBLISH_REQUEST_BYTES - _field_size(len(topic_path.encode()))
        self._keys = batch.column("ordering_key") if by_key else None
        self._key_ends = key_ends(batch.column("ordering_key")) if by_key else None

    def cut(self, start: int, most: int = MAX_PUBLISH_REQUEST_MESSAGES) -> EncodedRequest:
        """Return the largest request that begins with row ``start`` and has ``most`` rows at most."""
        sent = int(self._ends[start - 1]) if start else 0
        fitting = int(np.searchsorted(self._ends, sent + self._room_bytes, side="right"))
        end = max(start + 1, min(fitting, start + min(most, MAX_PUBLISH_REQUEST_MESSAGES)))
        return self.encode(start, min(end, self.key_end(start)))

    def key(self, row: int) -> str:
        """Return the ordering key of ``row``; empty when keys are not looked at."""
        return "" if self._keys is None else self._keys[row].as_py()

    def key_end(self, row: int) -> int:
        """Return where the run of rows that have the ordering key of ``row`` ends."""
        if self._key_ends is None:
            return int(self._batch.num_rows)
        return int(self._key_ends[np.searchsorted(self._key_ends, row, side="right")])

    def encode(self, start: int, end: int) -> EncodedRequest:
        """Encode rows [start, end) as one PublishRequest, in Rust: no object per message."""
        messages = self._batch.slice(start, end - start).to_struct_array()
        rows = pa.ListArray.from_arrays(pa.array([0, end - start], pa.int32()), messages)
        request = pa.record_batch([pa.array([self._topic_path]), rows], names=["topic", "messages"])
        body = _request_handler().record_batch_to_array(request)[0].as_py()
        return EncodedRequest(start, end - start, body, self.key(start))


def encode_requests(batch: pa.RecordBatch, topic_path: str) -> Iterator[EncodedRequest]:
    """Yield ``batch`` as PublishRequests within Pub/Sub's limits, in row order."""
    cutter = RequestCutter(batch, topic_path)
    start = 0
    while start < batch.num_rows:
        request = cutter.cut(start)
        yield request
        start += request.rows


def key_ends(keys: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return where each run of equal keys ends, in order.

    Example:
        >>> key_ends(pa.array(["a", "a", "b"])).tolist()
        [2, 3]
    """
    if len(keys) == 0:
        return np.empty(0, np.int64)
    differs = pc.not_equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
    return np.append(np.flatnonzero(differs) + 1, len(keys)).astype(np.int64)


def message_sizes(batch: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return what each row of ``batch`` takes on the wire inside a PublishRequest, in bytes.

    Exact but for attributes with an empty key or value, which may take two bytes less.
    """
    attributes = batch.column("attributes")
    counts = np.diff(attributes.offsets.to_numpy())
    first, last = attributes.offsets[0].as_py(), attributes.offsets[-1].as_py()
    keys = _lengths(attributes.keys.slice(first, last - first))
    values = _lengths(attributes.items.slice(first, last - first))
    entries = _field_sizes(_field_sizes(keys) + _field_sizes(values))
    ends = np.concatenate([[0], np.cumsum(entries)])
    bounds = np.concatenate([[0], np.cumsum(counts)])
    in_attributes = ends[bounds[1:]] - ends[bounds[:-1]]
    data, ordering = _lengths(batch.column("data")), _lengths(batch.column("ordering_key"))
    body = (
        np.where(data > 0, _field_sizes(data), 0)
        + np.where(ordering > 0, _field_sizes(ordering), 0)
        + in_attributes
    )
    sizes: np.ndarray[Any, np.dtype[np.int64]] = _field_sizes(body)
    return sizes


@cache
def _request_handler() -> Any:
    descriptor = find_message("PublishRequest")
    return ptars.HandlerPool([descriptor.file]).get_for_message(descriptor)


def _lengths(array: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    lengths: np.ndarray[Any, np.dtype[np.int64]] = (
        pc.binary_length(array).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    return lengths


def _field_sizes(lengths: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the wire size of length-delimited fields with these lengths and a one-byte tag."""
    varint = 1 + sum((lengths >= 1 << bits).astype(np.int64) for bits in (7, 14, 21, 28))
    return 1 + varint + lengths


def _field_size(length: int) -> int:
    return int(_field_sizes(np.array([length], np.int64))[0])
