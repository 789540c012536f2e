"""Acknowledging and extending leases, many thousand ids a call, without a Python object for each."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

import grpc
import numpy as np
import pyarrow as pa

from connectors.pubsub.encoding import encode_fields, ends_of
from connectors.pubsub.errors import error_from, read_refused_ack_ids
from connectors.wire import bytes_field, varint
from model.errors import PubSubError

# Pub/Sub "Quotas and limits": 512 KiB a request for Acknowledge and ModifyAckDeadline; the rest is head room
# for the subscription's name.
MAX_ACK_REQUEST_BYTES: Final = 500 * 1024
_TIMEOUT_SECONDS: Final = 30.0
_ACKNOWLEDGE: Final = "/google.pubsub.v1.Subscriber/Acknowledge"
_MODIFY_ACK_DEADLINE: Final = "/google.pubsub.v1.Subscriber/ModifyAckDeadline"
_ATTEMPTS: Final = 3
_MAX_IN_FLIGHT: Final = 64

# A subscription's full name and some of its ack ids, a string array.
Held = tuple[str, pa.Array]
# A subscription's full name, and what kept one of its requests.
Answer = tuple[str, PubSubError | None]


def acknowledge(channel: grpc.Channel, subscription_path: str, ack_ids: pa.Array) -> None:
    """Acknowledge all of ``ack_ids`` (a string array); every request was answered when this returns.

    An acknowledgement of a lease that has run out is taken without an error and may have no effect: the
    message then comes again. With exactly-once delivery it is refused.

    Raises:
        PubSubError: a request or some of its ids were refused, or it failed three times; ids may be acknowledged.
    """
    errors = [error for _, error in acknowledge_each(channel, [(subscription_path, ack_ids)]) if error is not None]
    if errors:
        raise errors[0]


def acknowledge_each(channel: grpc.Channel, held: Iterable[Held]) -> Iterator[Answer]:
    """Acknowledge the ids of many subscriptions, many requests at a time, and yield each answer.

    One subscription's failure keeps no other's ids from being acknowledged. Nothing is sent that is not asked
    for: go through all answers.
    """
    return _send(channel, _ACKNOWLEDGE, _requests(((path, ack_ids, b"") for path, ack_ids in held), field=2))


def extend_each(channel: grpc.Channel, held: Iterable[tuple[str, pa.Array, int]]) -> Iterator[Answer]:
    """Extend the leases of many subscriptions, as :func:`acknowledge_each` acknowledges.

    Each has its own seconds from now: 0 to 600, and 0 gives the messages back. Ids that exactly-once delivery
    refuses, because their leases have run out or they are acknowledged, are no failure of the others.
    """
    parts = ((path, ack_ids, b"\x18" + varint(seconds)) for path, ack_ids, seconds in held)
    return _send(channel, _MODIFY_ACK_DEADLINE, _requests(parts, field=4))


def _requests(held: Iterable[tuple[str, pa.Array, bytes]], field: int) -> Iterator[tuple[str, bytes]]:
    """Yield requests of a size that Pub/Sub takes: subscription, its further fields, and the ids as ``field``.

    All ids are encoded at once: many subscriptions with a few each would else be many small arrays.
    """
    parts = [(path, ack_ids, more) for path, ack_ids, more in held if len(ack_ids)]
    if not parts:
        return
    encoded = encode_fields(field, pa.concat_arrays([ack_ids for _, ack_ids, _ in parts]))
    content, ends = memoryview(encoded.buffers()[2]), ends_of(encoded)
    start = 0
    for path, ack_ids, more in parts:
        head = bytes_field(1, path.encode()) + more
        end = start + len(ack_ids)
        while start < end:
            fitting = int(np.searchsorted(ends, int(ends[start]) + MAX_ACK_REQUEST_BYTES, side="right")) - 1
            stop = max(start + 1, min(end, fitting))
            yield path, b"".join((head, content[ends[start] : ends[stop]]))
            start = stop


def _send(channel: grpc.Channel, method: str, requests: Iterable[tuple[str, bytes]]) -> Iterator[Answer]:
    """Send the requests, and yield for each how it ended for good."""
    call = channel.unary_unary(method, request_serializer=None, response_deserializer=None)
    for attempt in range(_ATTEMPTS):
        again: list[tuple[str, bytes]] = []
        for path, request, failure in _answers(call, requests):
            if failure is None:
                yield path, None
                continue
            refused = read_refused_ack_ids(failure)
            error = error_from(failure, f"{method.rpartition('/')[2]} for {path.rpartition('/')[2]}")
            is_passing = error.is_transient or any(why.startswith("TRANSIENT_") for why in refused.values())
            if is_passing and attempt < _ATTEMPTS - 1:
                again.append((path, request))
            elif refused and method == _MODIFY_ACK_DEADLINE:
                yield path, None
            else:
                error.__cause__ = failure
                yield path, error
        requests = again


def _answers(
    call: Any, requests: Iterable[tuple[str, bytes]]
) -> Iterator[tuple[str, bytes, grpc.RpcError | None]]:
    """Yield each request with its failure; a call that waits alone costs twice the CPU time of one among many."""
    flying: deque[tuple[str, bytes, Any]] = deque()

    def land() -> tuple[str, bytes, grpc.RpcError | None]:
        path, request, future = flying.popleft()
        try:
            future.result()
        except grpc.RpcError as exc:
            return path, request, exc
        return path, request, None

    for path, request in requests:
        if len(flying) >= _MAX_IN_FLIGHT:
            yield land()
        flying.append((path, request, call.future(request, timeout=_TIMEOUT_SECONDS)))
    while flying:
        yield land()
