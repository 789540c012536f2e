"""Acknowledging and extending leases, many thousand ids a call, without a Python object for each."""

from collections.abc import Iterator
from typing import Final

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connectors.pubsub.errors import error_from, read_refused_ack_ids
from connectors.wire import bytes_field, varint

# Pub/Sub "Quotas and limits": 512 KiB a request for Acknowledge and ModifyAckDeadline; the rest is head room
# for the subscription's name.
MAX_ACK_REQUEST_BYTES: Final = 500 * 1024
_TIMEOUT_SECONDS: Final = 30.0
_ACKNOWLEDGE: Final = "/google.pubsub.v1.Subscriber/Acknowledge"
_MODIFY_ACK_DEADLINE: Final = "/google.pubsub.v1.Subscriber/ModifyAckDeadline"
_ATTEMPTS: Final = 3


def acknowledge(channel: grpc.Channel, subscription_path: str, ack_ids: pa.Array) -> None:
    """Acknowledge all of ``ack_ids`` (a string array); every request was answered when this returns.

    An acknowledgement of a lease that has run out is taken without an error and may have no effect: the
    message then comes again. With exactly-once delivery it surely has none.

    Raises:
        PubSubError: a request was refused, or failed three times; some ids may be acknowledged.
    """
    head = bytes_field(1, subscription_path.encode())
    _send(channel, _ACKNOWLEDGE, [head + ids for ids in _encoded_ids(ack_ids, field=2)])


def extend_leases(channel: grpc.Channel, subscription_path: str, ack_ids: pa.Array, seconds: int) -> None:
    """Give the leases of ``ack_ids`` another ``seconds`` from now (0 to 600; 0 gives the messages back).

    Raises:
        PubSubError: a request was refused, or failed three times.
    """
    head = bytes_field(1, subscription_path.encode()) + b"\x18" + varint(seconds)
    _send(channel, _MODIFY_ACK_DEADLINE, [head + ids for ids in _encoded_ids(ack_ids, field=4)])


def _encoded_ids(ack_ids: pa.Array, field: int) -> Iterator[bytes]:
    """Yield the ids as repeated string fields, each piece below the limit; their order is not kept."""
    lengths = pc.binary_length(ack_ids).to_numpy(zero_copy_only=False)
    for length in np.unique(lengths):
        same = ack_ids.filter(pa.array(lengths == length))
        prefix = bytes([field << 3 | 2]) + varint(int(length))
        joined = pc.binary_join_element_wise(pa.scalar(prefix), same.cast(pa.binary()), pa.scalar(b""))
        stride = len(prefix) + int(length)
        start = np.frombuffer(joined.buffers()[1], dtype=np.int32)[joined.offset]
        encoded = memoryview(joined.buffers()[2])[start : start + stride * len(joined)]
        step = stride * max(1, MAX_ACK_REQUEST_BYTES // stride)
        for at in range(0, len(encoded), step):
            yield bytes(encoded[at : at + step])


def _send(channel: grpc.Channel, method: str, requests: list[bytes]) -> None:
    call = channel.unary_unary(method, request_serializer=None, response_deserializer=None)
    waiting = requests
    for attempt in range(_ATTEMPTS):
        futures = [(request, call.future(request, timeout=_TIMEOUT_SECONDS)) for request in waiting]
        failed: list[tuple[bytes, grpc.RpcError]] = []
        waiting = []
        for request, future in futures:
            try:
                future.result()
            except grpc.RpcError as exc:
                refused = read_refused_ack_ids(exc)
                if not refused:
                    failed.append((request, exc))
                elif any(reason.startswith("TRANSIENT_") for reason in refused.values()):
                    waiting.append(request)
        if not failed and not waiting:
            return
        if failed:
            error = error_from(failed[0][1], f"{len(failed)} of {len(requests)} requests to {method} failed")
            if attempt == _ATTEMPTS - 1 or not error.is_transient:
                raise error from failed[0][1]
        waiting += [request for request, _ in failed]
