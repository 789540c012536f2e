"""Cuts Arrow messages into Publish requests within Pub/Sub's limits."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connectors.pubsub.encoding import encode_attributes, encode_messages, ends_of
from connectors.wire import bytes_field
from model.message import MAX_PUBLISH_REQUEST_BYTES, MAX_PUBLISH_REQUEST_MESSAGES


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """Rows [start, start + rows) of a batch as the bytes of one PublishRequest; ``key`` is their ordering key."""

    start: int
    rows: int
    body: bytes
    key: str = ""


class RequestCutter:
    """Cuts requests off a batch, one after the other.

    A request holds at most 1,000 messages and 10 MB on the wire; only a request of one message can be larger,
    and such a message can't be published at all. With ``by_key`` all messages of a request have one ordering
    key, which is what Pub/Sub demands of messages that have any. The batch is as
    :func:`connectors.pubsub.encoding.encode_messages` wants it; ``added`` are attributes of every message.
    """

    def __init__(
        self,
        batch: pa.RecordBatch,
        topic_path: str,
        *,
        added: Iterable[tuple[str, str]] = (),
        by_key: bool = False,
    ) -> None:
        self.rows: int = batch.num_rows
        self.is_by_key = by_key
        self._head = bytes_field(1, topic_path.encode())
        self._room_bytes = MAX_PUBLISH_REQUEST_BYTES - len(self._head)
        messages = encode_messages(batch, encode_attributes(added))
        self._content = memoryview(messages.buffers()[2] or b"")
        self._ends = ends_of(messages)
        self._keys = batch.column("ordering_key") if by_key else None
        self._key_ends = key_ends(batch.column("ordering_key")) if by_key else None

    def cut(self, start: int, most: int = MAX_PUBLISH_REQUEST_MESSAGES) -> EncodedRequest:
        """Return the largest request that begins with row ``start`` and has ``most`` rows at most."""
        wanted = min(start + min(most, MAX_PUBLISH_REQUEST_MESSAGES), self.key_end(start))
        fitting = int(np.searchsorted(self._ends, int(self._ends[start]) + self._room_bytes, side="right")) - 1
        return self.encode(start, max(start + 1, min(wanted, fitting)))

    def key(self, row: int) -> str:
        """Return the ordering key of ``row``; empty when keys are not looked at."""
        return "" if self._keys is None else self._keys[row].as_py()

    def key_end(self, row: int) -> int:
        """Return where the run of rows that have the ordering key of ``row`` ends."""
        if self._key_ends is None:
            return self.rows
        return int(self._key_ends[np.searchsorted(self._key_ends, row, side="right")])

    def encode(self, start: int, end: int) -> EncodedRequest:
        """Return rows [start, end) as one PublishRequest."""
        body = b"".join((self._head, self._content[self._ends[start] : self._ends[end]]))
        return EncodedRequest(start, end - start, body, self.key(start))


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
