"""Publishes messages that arrive one at a time: those that wait share a request, each gets its own outcome."""

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import grpc
from google.protobuf.message_factory import GetMessageClass

from connectors.pubsub.errors import REFUSED, TRANSIENT, error_from
from connectors.pubsub.messages import find_message
from connectors.pubsub.publish import Publisher
from connectors.wire import bytes_field
from model.errors import MessageRefusedError, PubSubError, PubSubUnavailableError
from model.message import MAX_PUBLISH_REQUEST_BYTES, MAX_PUBLISH_REQUEST_MESSAGES, Message

_FIRST_BACKOFF_SECONDS: Final = 0.1
_MAX_BACKOFF_SECONDS: Final = 5.0
_CALL_SECONDS: Final = 30.0
# Longer than what is tried for ever takes until it fails again.
_ERROR_SECONDS: Final = 60.0


def encode_message(data: bytes, attributes: bytes) -> bytes:
    r"""Return a message as its field of a PublishRequest; ``attributes`` are encoded already.

    Example:
        >>> from connectors.pubsub.encoding import encode_attributes
        >>> encode_message(b"1", encode_attributes([("k", "v")]))
        b'\x12\x0b\n\x011\x12\x06\n\x01k\x12\x01v'
    """
    return bytes_field(2, bytes_field(1, data) + attributes)


def decode_message(message: bytes) -> Message:
    """Return what :func:`encode_message` made ``message`` of."""
    request: Any = GetMessageClass(find_message("PublishRequest")).FromString(message)
    (found,) = request.messages
    return Message(found.data, dict(found.attributes))


@dataclass(slots=True, eq=False)
class _Request:
    """Messages that travel together, each with the future of its outcome."""

    messages: list[tuple[bytes, asyncio.Future[None]]]
    first_sent_at: float
    attempts: int = field(default=0)


class Sender:
    """Publishes to one topic for an event loop; every method must be called on that loop.

    Messages that are sent while ``in_flight`` requests wait for their answers share the next request, so that a
    request grows with the load and nothing waits for a timer. With one request in flight the topic gets the
    messages in the order of :meth:`send`. A transient error is tried again for ``give_up_seconds``, so a message
    may be published twice; with None everything is tried again for ever except messages that Pub/Sub refuses.
    """

    def __init__(
        self, channel: grpc.Channel, topic_path: str, *, give_up_seconds: float | None, in_flight: int = 2
    ) -> None:
        self.topic_path = topic_path
        self._give_up_seconds = give_up_seconds
        seconds = _CALL_SECONDS if give_up_seconds is None else give_up_seconds
        self._publisher = Publisher(channel, topic_path, timeout_seconds=seconds)
        self._in_flight = in_flight
        self._under_way = 0
        self._head = bytes_field(1, topic_path.encode())
        self._room_bytes = MAX_PUBLISH_REQUEST_BYTES - len(self._head)
        self._waiting: deque[tuple[bytes, asyncio.Future[None]]] = deque()
        self._is_scheduled = False
        self._loop = asyncio.get_running_loop()
        self._last_error: tuple[PubSubError, float] | None = None

    @property
    def last_error(self) -> PubSubError | None:
        """The error of the last request, for a minute: an old one says nothing of now, and maybe nobody sends."""
        if self._last_error is None or self._loop.time() >= self._last_error[1] + _ERROR_SECONDS:
            return None
        return self._last_error[0]

    def send(self, message: bytes) -> asyncio.Future[None]:
        """Take one encoded message and return the future of its outcome: None once Pub/Sub has it.

        A message whose future is done before its request begins is not sent.

        The future raises:
            MessageRefusedError: Pub/Sub does not take this message.
            TopicNotFoundError: the topic is gone.
            PubSubUnavailableError: nobody answered for ``give_up_seconds``; the message may have arrived.
            PubSubError: Pub/Sub refuses for another reason, such as a missing permission.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((message, future))
        if not self._is_scheduled and self._under_way < self._in_flight:
            # At the end of this turn of the loop, so that requests that came in together travel together.
            self._is_scheduled = True
            self._loop.call_soon(self._send_waiting)
        return future

    def _send_waiting(self) -> None:
        self._is_scheduled = False
        while self._under_way < self._in_flight and (taken := self._take()):
            self._under_way += 1
            self._call(_Request(taken, self._loop.time()))

    def _take(self) -> list[tuple[bytes, asyncio.Future[None]]]:
        taken: list[tuple[bytes, asyncio.Future[None]]] = []
        size = 0
        while self._waiting and len(taken) < MAX_PUBLISH_REQUEST_MESSAGES:
            message, future = self._waiting[0]
            if not future.done():
                size += len(message)
                if taken and size > self._room_bytes:
                    break
                taken.append((message, future))
            self._waiting.popleft()
        return taken

    def _call(self, request: _Request) -> None:
        request.attempts += 1
        body = b"".join((self._head, *(message for message, _ in request.messages)))
        self._publisher.call(body).add_done_callback(partial(self._hand_over, request))

    def _hand_over(self, request: _Request, call: Any) -> None:
        """Go on in the loop: grpc calls back in a thread of its own."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._end, request, call)

    def _end(self, request: _Request, call: Any) -> None:
        try:
            call.result()
        except grpc.FutureCancelledError:
            self._fail(request, PubSubUnavailableError("The channel to Pub/Sub was closed."))
        except grpc.RpcError as exc:
            if self._is_tried_again(request, exc):
                return
        else:
            self._last_error = None
            for _, future in request.messages:
                if not future.done():
                    future.set_result(None)
        self._under_way -= 1
        self._send_waiting()

    def _is_tried_again(self, request: _Request, exc: grpc.RpcError) -> bool:
        """Whether the request, or a part of it, is sent again; otherwise its messages get the error."""
        code = exc.code()
        if code in REFUSED:
            if len(request.messages) > 1:
                self._halve(request)
                return True
            self._fail(request, MessageRefusedError(f"Pub/Sub refuses the message: {exc.details()}"))
            return False
        error = error_from(exc, f"publish to {self.topic_path}")
        self._last_error = (error, self._loop.time())
        pause = min(_MAX_BACKOFF_SECONDS, _FIRST_BACKOFF_SECONDS * 2 ** min(request.attempts - 1, 10))
        if self._give_up_seconds is not None:
            waited = self._loop.time() - request.first_sent_at
            if code not in TRANSIENT or waited + pause > self._give_up_seconds:
                self._fail(request, error)
                return False
        self._loop.call_later(pause, self._call, request)
        return True

    def _halve(self, request: _Request) -> None:
        """Send both halves, the second one after the first, to find the message that is at fault."""
        middle = len(request.messages) // 2
        first, second = request.messages[:middle], request.messages[middle:]
        # Before everything that waits, and in one request each, so that the order stays.
        self._waiting.extendleft(reversed(second))
        self._call(_Request(first, request.first_sent_at))

    def _fail(self, request: _Request, error: PubSubError) -> None:
        for _, future in request.messages:
            if not future.done():
                future.set_exception(error)


async def outcome_of(future: asyncio.Future[None]) -> PubSubError | None:
    """Return None once Pub/Sub has the message of :meth:`Sender.send`, else the error that it gave."""
    try:
        await future
    except PubSubError as error:
        return error
    return None
