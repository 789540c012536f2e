"""Pulling from many subscriptions at once, response bytes straight to Arrow."""

import queue
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import grpc
import pyarrow as pa
from ptars import HandlerPool, PtarsConfig

from connectors.pubsub.acks import extend_leases
from connectors.pubsub.errors import error_from
from connectors.pubsub.messages import find_message
from connectors.pubsub.wire import bytes_field, varint
from model.errors import PubSubError

_PULL: Final = "/google.pubsub.v1.Subscriber/Pull"
MAX_PULL_MESSAGES: Final = 1000
# Four Pulls in flight keep one connection busy; more only fill memory. Measured on loopback: 1 gives 60 %.
MAX_IN_FLIGHT_PER_SUBSCRIPTION: Final = 4
MAX_IN_FLIGHT: Final = 512
_POLL_SECONDS: Final = 0.1
# At the end of a batch a Pull in flight may hold messages already: cancelled now, they would come again only
# when their lease runs out.
_LAST_RESPONSES_SECONDS: Final = 0.15
_LONGEST_PULL_SECONDS: Final = 30.0
# Pub/Sub ends a response of large messages near 10 MB.
_FULL_RESPONSE_BYTES: Final = 8 * 1000 * 1000

_ATTRIBUTES: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))

PULLED_SCHEMA: Final = pa.schema(
    [
        ("data", pa.binary()),
        ("attributes", _ATTRIBUTES),
        ("message_id", pa.string()),
        ("publish_time", pa.timestamp("us", tz="UTC")),
        ("ordering_key", pa.string()),
        ("ack_id", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class PullTarget:
    """A subscription to pull from; ``path`` is its full name, ``subscription`` and ``topic`` are ids."""

    path: str
    subscription: str
    topic: str
    ack_deadline_seconds: int


@dataclass(frozen=True, slots=True)
class PulledBatch:
    """What one Pull brought: one row a message, in :data:`PULLED_SCHEMA`."""

    target: PullTarget
    rows: pa.RecordBatch


@dataclass(slots=True)
class _Lane:
    """One subscription's Pulls in flight, how many there may be, and whether any brought messages."""

    target: PullTarget
    request: bytes
    allowed: int = 1
    in_flight: int = 0
    retry_at: float = 0.0
    failures: int = 0
    is_active: bool = False


@dataclass(frozen=True, slots=True)
class PullLimits:
    """When a batch ends: nothing for ``idle_seconds``, else ``linger_seconds`` after the first message.

    While every subscription's Pulls come back full there is a backlog, and the batch goes on until
    ``backlog_seconds``: a larger batch costs less a message. ``max_bytes`` ends it in any case, give or take
    the Pulls in flight.
    """

    idle_seconds: float
    linger_seconds: float
    backlog_seconds: float
    max_bytes: int


class Puller:
    """Pulls one batch from all of ``targets``; make a new one for each batch.

    It holds every lease it takes: they are extended while :meth:`pull` runs and by :meth:`extend_leases`.
    A subscription that fails is tried again with back-off and named in ``faults``; the others go on.
    """

    def __init__(self, channel: grpc.Channel, targets: Sequence[PullTarget]) -> None:
        self.faults: dict[str, PubSubError] = {}
        self.received_bytes = 0
        self._channel = channel
        self._call = channel.unary_unary(_PULL, request_serializer=None, response_deserializer=None)
        self._lanes = [_Lane(target, _pull_request(target.path)) for target in targets]
        self._answers: queue.SimpleQueue[tuple[_Lane, Any]] = queue.SimpleQueue()
        self._flying: set[Any] = set()
        self._ack_ids: dict[PullTarget, list[pa.Array]] = defaultdict(list)
        self._extended_at = 0.0

    def pull(self, limits: PullLimits, is_stopping: Callable[[], bool]) -> Iterator[PulledBatch]:
        """Yield batches as they arrive until ``limits`` or ``is_stopping`` end it."""
        ends_at = time.monotonic() + limits.idle_seconds
        first_at: float | None = None
        try:
            while time.monotonic() < ends_at and self.received_bytes < limits.max_bytes and not is_stopping():
                self._send_more()
                batch = self._receive(_POLL_SECONDS)
                # A backlog is over when nothing comes at once any more.
                is_backlog = batch is not None and _is_full(batch.rows)
                if batch is not None:
                    first_at = first_at or time.monotonic()
                    yield batch
                if first_at is not None:
                    ends_at = first_at + (limits.backlog_seconds if is_backlog else limits.linger_seconds)
                self.extend_leases()
            give_up_at = time.monotonic() + _LAST_RESPONSES_SECONDS
            while self._expects_more() and (left := give_up_at - time.monotonic()) > 0:
                batch = self._receive(left)
                if batch is not None:
                    yield batch
        finally:
            for future in self._flying:
                future.cancel()

    def _send_more(self) -> None:
        now = time.monotonic()
        for lane in self._lanes:
            while lane.in_flight < lane.allowed and now >= lane.retry_at and len(self._flying) < MAX_IN_FLIGHT:
                future = self._call.future(lane.request, timeout=_LONGEST_PULL_SECONDS)
                lane.in_flight += 1
                self._flying.add(future)
                future.add_done_callback(partial(self._answer, lane))

    def _answer(self, lane: _Lane, future: Any) -> None:
        self._answers.put((lane, future))

    def _receive(self, wait_seconds: float) -> PulledBatch | None:
        try:
            lane, future = self._answers.get(timeout=wait_seconds)
        except queue.Empty:
            return None
        self._flying.discard(future)
        lane.in_flight -= 1
        return self._take(lane, future)

    def _expects_more(self) -> bool:
        """Say whether a Pull is in flight to a subscription that had messages in this batch."""
        return any(lane.in_flight and lane.is_active for lane in self._lanes)

    def extend_leases(self, *, at_once: bool = False) -> None:
        """Extend every lease taken, when a third of the shortest deadline has gone by, or ``at_once``."""
        if not self._ack_ids:
            return
        now = time.monotonic()
        shortest = min(target.ack_deadline_seconds for target in self._ack_ids)
        if not at_once and now - self._extended_at < shortest / 3:
            return
        self._extended_at = now
        for target, ack_ids in self._ack_ids.items():
            try:
                extend_leases(self._channel, target.path, pa.concat_arrays(ack_ids), target.ack_deadline_seconds)
            except PubSubError as exc:
                # The leases may run out; then the messages come twice and are told apart by their ids.
                self.faults[target.subscription] = exc

    def _take(self, lane: _Lane, future: Any) -> PulledBatch | None:
        try:
            response: bytes = future.result()
        except (grpc.RpcError, grpc.FutureCancelledError) as exc:
            if isinstance(exc, grpc.RpcError) and exc.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return None
            lane.failures += 1
            lane.retry_at = time.monotonic() + min(5.0, 0.05 * 2**lane.failures)
            if isinstance(exc, grpc.RpcError):
                self.faults[lane.target.subscription] = error_from(
                    exc, f"Pull from subscription {lane.target.subscription}"
                )
            return None
        lane.failures = 0
        if not response:
            return None
        lane.is_active = True
        rows = decode_pull_response(response)
        self.received_bytes += len(response)
        lane.allowed = min(lane.allowed + 1, MAX_IN_FLIGHT_PER_SUBSCRIPTION) if _is_full(rows) else 1
        if not self._ack_ids:
            self._extended_at = time.monotonic()
        self._ack_ids[lane.target].append(rows.column("ack_id"))
        return PulledBatch(lane.target, rows)


def decode_pull_response(response: bytes) -> pa.RecordBatch:
    """Return a PullResponse's messages in :data:`PULLED_SCHEMA`; 0.5 us a message of 1 KB."""
    received = _pull_response_handler().list_to_record_batch([response]).column(0).flatten()
    message = received.field("message")
    # A map is stored as a list of (key, value) already: the same buffers, another name.
    attributes = message.field("attributes")
    pairs = pa.StructArray.from_arrays([attributes.keys, attributes.items], fields=list(_ATTRIBUTES.value_type))
    return pa.RecordBatch.from_arrays(
        [
            message.field("data"),
            pa.ListArray.from_arrays(attributes.offsets, pairs),
            message.field("message_id"),
            message.field("publish_time"),
            message.field("ordering_key"),
            received.field("ack_id"),
        ],
        schema=PULLED_SCHEMA,
    )


def _is_full(rows: pa.RecordBatch) -> bool:
    """Say whether a Pull brought as much as one may, so that more is likely to wait."""
    return bool(rows.num_rows >= MAX_PULL_MESSAGES or rows.nbytes >= _FULL_RESPONSE_BYTES)


def _pull_request(path: str) -> bytes:
    return bytes_field(1, path.encode()) + b"\x18" + varint(MAX_PULL_MESSAGES)


def _pull_response_handler() -> Any:
    # Built once a process.
    if not _HANDLERS:
        descriptor = find_message("PullResponse")
        pool = HandlerPool([descriptor.file], config=PtarsConfig(timestamp_unit="us"))
        _HANDLERS.append(pool.get_for_message(descriptor))
    return _HANDLERS[0]


_HANDLERS: list[Any] = []
