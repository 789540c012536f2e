"""Publishes messages: Arrow columns to wire bytes to raw Publish calls, several in flight, retried."""

import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import grpc
import numpy as np
import ptars
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message_factory import GetMessageClass

from connectors.pubsub.errors import TRANSIENT, error_from
from connectors.pubsub.messages import find_message
from model.errors import MessageRefusedError, PubSubUnavailableError
from model.message import MAX_PUBLISH_REQUEST_BYTES, MAX_PUBLISH_REQUEST_MESSAGES, Message

_METHOD: Final = "/google.pubsub.v1.Publisher/Publish"
_IN_FLIGHT: Final = 4
# What a publisher of a task may have on its way without an answer.
MAX_UNCONFIRMED_MESSAGES: Final = _IN_FLIGHT * MAX_PUBLISH_REQUEST_MESSAGES
_FIRST_BACKOFF_SECONDS: Final = 0.1
_MAX_BACKOFF_SECONDS: Final = 10.0

# One bad message refuses the whole request it travels in.
_REFUSED: Final = frozenset({grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE})

ATTRIBUTES_TYPE: Final = pa.map_(pa.string(), pa.string())
MESSAGE_SCHEMA: Final = pa.schema(
    [
        pa.field("data", pa.binary(), nullable=False),
        pa.field("attributes", ATTRIBUTES_TYPE, nullable=False),
        pa.field("ordering_key", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A message that Pub/Sub does not take: its row in the batch, and why."""

    row: int
    reason: str


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What became of rows [start, start + rows) of a batch.

    ``bytes`` counts what was sent and taken; ``repeated`` how many messages may have gone out twice because
    the answer to an attempt was lost; ``message_ids`` is filled only when they were asked for.
    """

    start: int
    rows: int
    bytes: int
    refused: tuple[Refusal, ...] = ()
    repeated: int = 0
    message_ids: tuple[str, ...] = ()


@dataclass(slots=True)
class _Request:
    """One Publish call under way."""

    start: int
    rows: int
    body: bytes
    call: Any = None
    attempts: int = 0
    repeated: int = 0
    first_sent_at: float = field(default_factory=time.monotonic)


class Publisher:
    """Publishes to one topic over a channel that the caller owns.

    Up to ``in_flight`` requests wait for their answers at once, so that is also what may go out a second time
    when the process dies. A transient error is retried with backoff for ``give_up_seconds``.

    Raises:
        TopicNotFoundError: any call, when the topic is gone.
        PubSubUnavailableError: any call, when nobody answered for ``give_up_seconds``.
        PubSubError: any call, when Pub/Sub refuses for another reason, such as a missing permission.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        topic_path: str,
        *,
        in_flight: int = _IN_FLIGHT,
        timeout_seconds: float = 60.0,
        give_up_seconds: float = 300.0,
    ) -> None:
        self.topic_path = topic_path
        self.in_flight = in_flight
        self._timeout_seconds = timeout_seconds
        self._give_up_seconds = give_up_seconds
        self._publish = channel.unary_unary(_METHOD, request_serializer=None, response_deserializer=None)

    @property
    def max_unconfirmed_messages(self) -> int:
        """How many messages may be on their way without an answer at any moment."""
        return self.in_flight * MAX_PUBLISH_REQUEST_MESSAGES

    def publish(self, messages: Sequence[Message]) -> list[str]:
        """Publish ``messages`` and return their ids, in order.

        Messages with an ordering key go out one request after the other, so that their order holds.

        Raises:
            MessageRefusedError: Pub/Sub does not take one of them; ``details["row"]`` says which. Others may
                have been published.
        """
        batch = pa.record_batch(
            [
                pa.array([m.data for m in messages], pa.binary()),
                pa.array([list(m.attributes.items()) for m in messages], ATTRIBUTES_TYPE),
                pa.array([m.ordering_key for m in messages], pa.string()),
            ],
            schema=MESSAGE_SCHEMA,
        )
        in_flight = 1 if any(m.ordering_key for m in messages) else self.in_flight
        ids: list[str] = []
        for confirmed in self._send(batch, in_flight, lambda: True, with_ids=True):
            for refusal in confirmed.refused:
                raise MessageRefusedError(
                    f"Pub/Sub does not take message {refusal.row}: {refusal.reason}", row=refusal.row
                )
            ids.extend(confirmed.message_ids)
        return ids

    def publish_arrow(
        self, batch: pa.RecordBatch, *, may_send: Callable[[], bool] = lambda: True
    ) -> Iterator[Confirmation]:
        """Publish the rows of ``batch`` (MESSAGE_SCHEMA) and yield what became of them, in row order.

        Before each request ``may_send`` is asked; once it says no, nothing more is sent, the requests under way
        are waited for, and the iteration ends early. The next request goes out only after the caller has taken
        the confirmation before it, so a caller that records each one bounds what a crash can repeat.
        """
        return self._send(batch, self.in_flight, may_send, with_ids=False)

    def _send(
        self, batch: pa.RecordBatch, in_flight: int, may_send: Callable[[], bool], *, with_ids: bool
    ) -> Iterator[Confirmation]:
        under_way: deque[_Request] = deque()
        try:
            for request in encode_requests(batch, self.topic_path):
                while len(under_way) >= in_flight:
                    yield self._confirm(batch, under_way.popleft(), with_ids=with_ids)
                if not may_send():
                    break
                if len(request.body) > MAX_PUBLISH_REQUEST_BYTES:
                    while under_way:
                        yield self._confirm(batch, under_way.popleft(), with_ids=with_ids)
                    reason = f"message_too_large: {len(request.body)} bytes, {MAX_PUBLISH_REQUEST_BYTES} fit"
                    yield Confirmation(request.start, request.rows, 0, (Refusal(request.start, reason),))
                    continue
                self._start(request)
                under_way.append(request)
            while under_way:
                yield self._confirm(batch, under_way.popleft(), with_ids=with_ids)
        finally:
            for request in under_way:
                request.call.cancel()

    def _start(self, request: _Request) -> None:
        request.attempts += 1
        request.call = self._publish.future(request.body, timeout=self._timeout_seconds)

    def _confirm(self, batch: pa.RecordBatch, request: _Request, *, with_ids: bool) -> Confirmation:
        """Wait for the answer to ``request``; sends it again, or in halves, until every row has an answer."""
        while True:
            try:
                answer = request.call.result()
            except grpc.RpcError as exc:
                if exc.code() in _REFUSED:
                    return self._bisect(batch, request, str(exc.details()), with_ids=with_ids)
                self._wait_before_retry(request, exc)
                # The answer was lost, not necessarily the messages.
                request.repeated += request.rows
                self._start(request)
                continue
            ids = tuple(_parse_response(answer).message_ids) if with_ids else ()
            return Confirmation(
                request.start, request.rows, len(request.body), repeated=request.repeated, message_ids=ids
            )

    def _bisect(self, batch: pa.RecordBatch, request: _Request, text: str, *, with_ids: bool) -> Confirmation:
        """Find the messages that make Pub/Sub refuse the request; the others are published."""
        if request.rows == 1:
            refusal = Refusal(request.start, f"refused_by_pubsub: {text}")
            return Confirmation(request.start, 1, 0, (refusal,), request.repeated)
        middle = request.start + request.rows // 2
        halves: list[Confirmation] = []
        for start, end in ((request.start, middle), (middle, request.start + request.rows)):
            half = _encode(batch, self.topic_path, start, end)
            self._start(half)
            halves.append(self._confirm(batch, half, with_ids=with_ids))
        first, second = halves
        return Confirmation(
            request.start,
            request.rows,
            first.bytes + second.bytes,
            first.refused + second.refused,
            request.repeated + first.repeated + second.repeated,
            first.message_ids + second.message_ids,
        )

    def _wait_before_retry(self, request: _Request, exc: grpc.RpcError) -> None:
        code = exc.code()
        if code not in TRANSIENT:
            raise error_from(exc, f"publish to {self.topic_path}") from exc
        waited = time.monotonic() - request.first_sent_at
        pause = min(_MAX_BACKOFF_SECONDS, _FIRST_BACKOFF_SECONDS * 2 ** (request.attempts - 1))
        if waited + pause > self._give_up_seconds:
            raise PubSubUnavailableError(
                f"Pub/Sub did not take messages for {self.topic_path} in {waited:.0f} s "
                f"({request.attempts} attempts): {code.name}: {exc.details()}"
            ) from exc
        # Full jitter: many tasks that fail together must not come back together.
        time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311


def encode_requests(batch: pa.RecordBatch, topic_path: str) -> Iterator[_Request]:
    """Yield ``batch`` as PublishRequests within Pub/Sub's limits, in row order.

    A request holds at most 1,000 messages and 10 MB on the wire; only a request of one message can be larger,
    and such a message can't be published at all.
    """
    sizes = message_sizes(batch)
    ends = np.cumsum(sizes)
    room = MAX_PUBLISH_REQUEST_BYTES - _field_size(len(topic_path.encode()))
    start, sent = 0, 0
    while start < batch.num_rows:
        fitting = int(np.searchsorted(ends, sent + room, side="right"))
        end = max(start + 1, min(fitting, start + MAX_PUBLISH_REQUEST_MESSAGES))
        yield _encode(batch, topic_path, start, end)
        start, sent = end, int(ends[end - 1])


def _encode(batch: pa.RecordBatch, topic_path: str, start: int, end: int) -> _Request:
    """Encode rows [start, end) as one PublishRequest, in Rust: no object per message."""
    messages = batch.slice(start, end - start).to_struct_array()
    rows = pa.ListArray.from_arrays(pa.array([0, end - start], pa.int32()), messages)
    request = pa.record_batch([pa.array([topic_path]), rows], names=["topic", "messages"])
    body = _request_handler().record_batch_to_array(request)[0].as_py()
    return _Request(start, end - start, body)


def _parse_response(answer: bytes) -> Any:
    return GetMessageClass(find_message("PublishResponse")).FromString(answer)


@cache
def _request_handler() -> Any:
    descriptor = find_message("PublishRequest")
    return ptars.HandlerPool([descriptor.file]).get_for_message(descriptor)


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
