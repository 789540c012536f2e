"""StreamingPull: deliveries within a consumer's flow control, acknowledgements on the way back."""

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from google.pubsub_v1 import types

from local.configs import MAX_ACK_DEADLINE_SECONDS
from local.resources import Resources
from local.status import StatusError
from local.subscription import Subscription
from local.wire import AckIds, parse_ack_ids

_MIN_STREAM_DEADLINE_SECONDS: Final = 10
# Smaller than a Pull's: flow control acts between responses.
_MAX_RESPONSE_BYTES: Final = 1_000_000
_MAX_RESPONSE_MESSAGES: Final = 1000
# An empty response now and then shows the client that the stream lives.
_HEARTBEAT_SECONDS: Final = 15.0
_UNLIMITED: Final = 1 << 62

_Request: Final[Any] = types.StreamingPullRequest.pb()
_Response: Final[Any] = types.StreamingPullResponse.pb()
_stream_numbers = itertools.count(1)


class StreamSlots:
    """How many of the server's threads may be kept by calls that wait, so that the others always find one.

    ``closed`` ends those calls, since the server stops.
    """

    def __init__(self, slots: int) -> None:
        self.closed = False
        self._slots = slots
        self._used = 0
        self._lock = threading.Lock()

    def may_wait(self) -> bool:
        """Whether one more call may wait."""
        return self._used < self._slots and not self.closed

    @contextmanager
    def waiting(self) -> Iterator[bool]:
        """Hold a slot for a while; False is yielded where there was none left to hold."""
        with self._lock:
            self._used += 1
            has_slot = self._used <= self._slots
        try:
            yield has_slot
        finally:
            with self._lock:
                self._used -= 1


class _Stream:
    """One open stream: its settings from the first request, what its later requests ask for."""

    def __init__(self, subscription: Subscription, first: Any) -> None:
        self.number = next(_stream_numbers)
        self._subscription = subscription
        self.max_messages = first.max_outstanding_messages if first.max_outstanding_messages > 0 else _UNLIMITED
        self.max_bytes = first.max_outstanding_bytes if first.max_outstanding_bytes > 0 else _UNLIMITED
        self.deadline_seconds = first.stream_ack_deadline_seconds
        self.ended = False
        self.bell = threading.Event()
        self.confirmations: deque[bytes] = deque()
        self.error: StatusError | None = None

    def apply(self, request: Any) -> None:
        """Do what a request of the stream asks for."""
        if request.stream_ack_deadline_seconds:
            self.deadline_seconds = _check_deadline(request.stream_ack_deadline_seconds)
        if request.ack_ids:
            self._settle(request.ack_ids, self._subscription.acknowledge, "acknowledge_confirmation")
        if request.modify_deadline_ack_ids:
            if len(request.modify_deadline_ack_ids) != len(request.modify_deadline_seconds):
                raise StatusError.invalid(
                    "modify_deadline_ack_ids and modify_deadline_seconds must have the same length."
                )
            by_seconds: dict[int, list[str]] = {}
            for ack_id, seconds in zip(
                request.modify_deadline_ack_ids, request.modify_deadline_seconds, strict=True
            ):
                by_seconds.setdefault(seconds, []).append(ack_id)
            for seconds, ack_ids in by_seconds.items():
                if not 0 <= seconds <= MAX_ACK_DEADLINE_SECONDS:
                    raise StatusError.invalid(f"Invalid ack deadline given ({seconds} seconds).")
                modify = partial(self._subscription.modify_ack_deadline, seconds=seconds)
                self._settle(ack_ids, modify, "modify_ack_deadline_confirmation")

    def _settle(self, ack_ids: Sequence[str], call: Callable[[AckIds], None], confirmation: str) -> None:
        """Make a call about ``ack_ids``; exactly-once delivery answers which of them counted."""
        refused: set[str] = set()
        try:
            call(parse_ack_ids(ack_ids))
        except StatusError as exc:
            if not exc.ack_ids:
                raise
            refused.update(exc.ack_ids)
        if self._subscription.rules.exactly_once:
            answer = _Response()
            confirmed = getattr(answer, confirmation)
            confirmed.ack_ids.extend(set(ack_ids) - refused)
            confirmed.invalid_ack_ids.extend(refused)
            self.confirmations.append(answer.SerializeToString())
            self.bell.set()

    def read_requests(self, requests: Iterator[bytes]) -> None:
        """Apply the requests until the client stops sending; runs on a thread of its own."""
        try:
            for raw in requests:
                self.apply(_Request.FromString(raw))
        except StatusError as exc:
            self.error = exc
        except DecodeError:
            self.error = StatusError.invalid("The request is not a StreamingPullRequest.")
        except Exception:  # noqa: BLE001 - grpc raises a bare Exception here when the call is over
            self.error = None
        finally:
            self.end()

    def end(self) -> None:
        """Let the stream's thread go: the client has ended the call, or is gone."""
        self.ended = True
        self.bell.set()

    def take(self) -> bytes:
        """Return the next messages that flow control allows; empty when there are none or no room."""
        held_messages, held_bytes = self._subscription.outstanding(self.number)
        messages, size = self.max_messages - held_messages, self.max_bytes - held_bytes
        if messages <= 0 or size <= 0:
            return b""
        return self._subscription.take(
            min(messages, _MAX_RESPONSE_MESSAGES),
            min(size, _MAX_RESPONSE_BYTES),
            deadline_seconds=self.deadline_seconds or None,
            stream=self.number,
        )

    def has_room(self) -> bool:
        """Whether flow control allows another message."""
        held_messages, held_bytes = self._subscription.outstanding(self.number)
        return held_messages < self.max_messages and held_bytes < self.max_bytes


def run_streaming_pull(
    resources: Resources, slots: StreamSlots, requests: Iterator[bytes], context: grpc.ServicerContext
) -> Iterator[bytes]:
    """Yield StreamingPullResponses until the client ends the stream.

    Raises:
        StatusError: the first request names no subscription, another is wrong, or the subscription was deleted; or
            too many calls wait.
    """
    # From here on: a client that never sends a first request keeps a thread as well.
    with slots.waiting() as has_slot:
        if not has_slot or slots.closed:
            raise StatusError.unavailable("The local server has no thread left for another stream.")
        yield from _run(resources, slots, requests, context)


def _run(
    resources: Resources, slots: StreamSlots, requests: Iterator[bytes], context: grpc.ServicerContext
) -> Iterator[bytes]:
    try:
        first = _Request.FromString(next(requests, b""))
    except DecodeError as exc:
        raise StatusError.invalid("The request is not a StreamingPullRequest.") from exc
    entry = resources.subscription(first.subscription)
    _check_deadline(first.stream_ack_deadline_seconds)
    subscription = entry.working
    stream = _Stream(subscription, first)
    properties = types.StreamingPullResponse.pb()()
    properties.subscription_properties.message_ordering_enabled = entry.config.enable_message_ordering
    properties.subscription_properties.exactly_once_delivery_enabled = entry.config.enable_exactly_once_delivery
    tail = properties.SerializeToString()
    stream.apply(first)
    reader = threading.Thread(
        target=stream.read_requests, args=(requests,), name=f"stream-{stream.number}", daemon=True
    )
    reader.start()
    context.add_callback(stream.end)
    try:
        yield from _deliver(stream, subscription, tail, lambda: context.is_active() and not slots.closed)
    finally:
        subscription.forget_stream(stream.number)
    if stream.error is not None:
        raise stream.error
    if subscription.deleted:
        raise StatusError.not_found(first.subscription)
    if slots.closed:
        raise StatusError.unavailable("The local server stops.")


def _deliver(
    stream: _Stream, subscription: Subscription, tail: bytes, is_wanted: Callable[[], bool]
) -> Iterator[bytes]:
    def is_over() -> bool:
        return stream.ended or subscription.deleted or not is_wanted()

    last_sent = time.monotonic()
    while not is_over():
        # Before the look at all that it rings for: what comes later is seen at the next turn.
        stream.bell.clear()
        messages = stream.take()
        while stream.confirmations:
            yield stream.confirmations.popleft() + tail
        quiet_seconds = _HEARTBEAT_SECONDS - (time.monotonic() - last_sent)
        if messages or quiet_seconds <= 0:
            yield messages + tail
            last_sent = time.monotonic()
        elif stream.has_room():
            subscription.wait(stream.bell, quiet_seconds, is_over)
        else:
            subscription.wait_for_room(
                stream.number, stream.bell, quiet_seconds, lambda: is_over() or stream.has_room()
            )


def _check_deadline(seconds: int) -> int:
    if not _MIN_STREAM_DEADLINE_SECONDS <= seconds <= MAX_ACK_DEADLINE_SECONDS:
        raise StatusError.invalid(
            f"Invalid stream_ack_deadline_seconds given ({seconds}): it must be between "
            f"{_MIN_STREAM_DEADLINE_SECONDS} and {MAX_ACK_DEADLINE_SECONDS} seconds."
        )
    return seconds
