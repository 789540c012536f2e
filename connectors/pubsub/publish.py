"""Publishes messages: raw Publish calls, several in flight, retried, at the pace that the caller allows."""

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import pyarrow as pa
from google.protobuf.message_factory import GetMessageClass

from connectors.pubsub.encoding import ATTRIBUTES_TYPE, MESSAGE_SCHEMA
from connectors.pubsub.errors import REFUSED, TRANSIENT, error_from
from connectors.pubsub.messages import find_message
from connectors.pubsub.requests import EncodedRequest, RequestCutter
from model.errors import MessageRefusedError, PubSubUnavailableError
from model.message import MAX_PUBLISH_REQUEST_BYTES, MAX_PUBLISH_REQUEST_MESSAGES, Message

_METHOD: Final = "/google.pubsub.v1.Publisher/Publish"
_IN_FLIGHT: Final = 4
# What a publisher of a task may have on its way without an answer.
MAX_UNCONFIRMED_MESSAGES: Final = _IN_FLIGHT * MAX_PUBLISH_REQUEST_MESSAGES
# A request has messages of one ordering key, so that many small ones are needed to keep the line busy.
_IN_FLIGHT_BY_KEY: Final = 64
_FIRST_BACKOFF_SECONDS: Final = 0.1
_MAX_BACKOFF_SECONDS: Final = 10.0
# How often a caller that allows nothing at the moment is asked again.
_ASK_AGAIN_SECONDS: Final = 0.02
# A waiting publisher looks this often whether it is still to wait.
_LOOK_SECONDS: Final = 0.2
# What one part of a request that was given up on may still take.
_GIVE_UP_PART_SECONDS: Final = 30.0

# Why a message is refused that must not overtake another one of its key.
KEY_STOPPED: Final = "ordering_key_stopped: an earlier message of the same ordering key could not be published"
# How the reason begins of a message that was tried for long enough while others were taken.
GAVE_UP: Final = "gave_up"

# The number of the next row -> how many rows from there may go out now; 0 not yet, None nothing more ever.
Room = Callable[[int], int | None]


@dataclass(frozen=True, slots=True)
class RefusedMessage:
    """A message that Pub/Sub does not take: its row in the batch, and why."""

    row: int
    reason: str


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The outcome of rows [start, start + rows) of a batch.

    ``bytes`` counts what was sent and taken; ``repeated`` how many messages may have gone out twice, or will
    when they are sent again, because an answer was lost; ``message_ids`` is filled only when they were asked for.
    """

    start: int
    rows: int
    bytes: int
    refused: tuple[RefusedMessage, ...] = ()
    repeated: int = 0
    message_ids: tuple[str, ...] = ()


@dataclass(slots=True)
class _Flight:
    """One Publish call under way; ``since`` is when it was first sent, as part of a larger one perhaps."""

    request: EncodedRequest
    give_up_seconds: float
    since: float = 0.0
    call: Any = None
    attempts: int = 0
    repeated: int = 0
    first_sent_at: float = field(default_factory=time.monotonic)


class Publisher:
    """Publishes to one topic over a channel that the caller owns.

    Up to ``in_flight`` requests wait for their answers at once, so that is also what may go out a second time
    when the process dies. A transient error is retried with backoff for ``give_up_seconds``; a request that
    fails for that long while others are taken is cut down to the messages that are at fault.

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
        self.give_up_seconds = give_up_seconds
        self._timeout_seconds = timeout_seconds
        self._publish = channel.unary_unary(_METHOD, request_serializer=None, response_deserializer=None)

    @property
    def max_unconfirmed_messages(self) -> int:
        """How many messages may be on their way without an answer at any moment."""
        return self.in_flight * MAX_PUBLISH_REQUEST_MESSAGES

    def call(self, body: bytes) -> Any:
        """Send one PublishRequest and return the future of its answer."""
        return self._publish.future(body, timeout=self._timeout_seconds)

    def publish(self, messages: Sequence[Message]) -> list[str]:
        """Publish ``messages`` and return their ids, in order.

        Messages with the same ordering key go out one request after the other, so that their order holds.

        Raises:
            MessageRefusedError: Pub/Sub does not take one of them; ``details["row"]`` says which. Others may
                have been published.
        """
        batch = make_batch(messages)
        by_key = any(m.ordering_key for m in messages)
        ids: list[str] = []
        cutter = RequestCutter(batch, self.topic_path, by_key=by_key)
        for confirmed in _Sending(self, cutter, _no_limit, with_ids=True).confirmations():
            for refusal in confirmed.refused:
                raise MessageRefusedError(
                    f"Pub/Sub refuses message {refusal.row}: {refusal.reason}", row=refusal.row
                )
            ids.extend(confirmed.message_ids)
        return ids

    def publish_arrow(
        self,
        batch: pa.RecordBatch,
        *,
        added: Iterable[tuple[str, str]] = (),
        room: Room | None = None,
        by_key: bool = False,
    ) -> Iterator[Confirmation]:
        """Publish the rows of ``batch`` and yield their outcomes, in row order.

        ``batch`` is as :func:`connectors.pubsub.encoding.encode_messages` wants it, and ``added`` are attributes
        that every message gets.

        Before each request, also before it is sent again, ``room`` is asked how many rows from the next one on
        may go out: a request holds no more. While it says 0 the answers under way are handed out and it is asked
        again; once it says None nothing more is sent, the requests under way are waited for, and the iteration
        ends early. The next request goes out only after the caller has taken the confirmation before it, so a
        caller that records each one bounds what a crash can repeat.

        With ``by_key`` a message goes out only when those before it that have its ordering key are confirmed.
        Once one of a key is refused, the key's later messages in the batch are refused too, without being sent.
        """
        cutter = RequestCutter(batch, self.topic_path, added=added, by_key=by_key)
        return _Sending(self, cutter, room or _no_limit).confirmations()


def make_batch(messages: Sequence[Message]) -> pa.RecordBatch:
    """Return the messages as :meth:`Publisher.publish_arrow` takes them."""
    return pa.record_batch(
        [
            pa.array([message.data for message in messages], pa.binary()),
            pa.array([list(message.attributes.items()) for message in messages], ATTRIBUTES_TYPE),
            pa.array([message.ordering_key for message in messages], pa.string()),
        ],
        schema=MESSAGE_SCHEMA,
    )


class _StoppedError(Exception):
    """The caller wants nothing more sent, not even again."""


class _Sending:
    """The publishing of one batch."""

    def __init__(self, publisher: Publisher, cutter: RequestCutter, room: Room, *, with_ids: bool = False) -> None:
        self._publisher = publisher
        self._cutter = cutter
        self._room = room
        self._max_requests = _IN_FLIGHT_BY_KEY if cutter.is_by_key else publisher.in_flight
        self._with_ids = with_ids
        self._under_way: deque[_Flight] = deque()
        self._stopped_key = ""
        self._answered_at = 0.0

    def confirmations(self) -> Iterator[Confirmation]:
        """Publish, and yield the outcomes of the rows, in their order."""
        start = 0
        try:
            while start < self._cutter.rows:
                if self._must_wait(start):
                    yield self._confirm_next()
                    continue
                room = self._room(start)
                if room is None:
                    break
                if room <= 0:
                    yield from self._wait()
                    continue
                following = self._cut(start, room)
                if isinstance(following, EncodedRequest):
                    self._under_way.append(self._send(following, self._publisher.give_up_seconds))
                else:
                    yield from self._drain()
                    self._stopped_key = self._cutter.key(start)
                    yield following
                start += following.rows
            yield from self._drain()
        except _StoppedError:
            # They may have arrived, and will be sent again.
            unknown = sum(flight.request.rows + flight.repeated for flight in self._under_way)
            yield Confirmation(start, 0, 0, repeated=unknown)
        finally:
            for flight in self._under_way:
                flight.call.cancel()

    def _drain(self) -> Iterator[Confirmation]:
        while self._under_way:
            yield self._confirm_next()

    def _wait(self) -> Iterator[Confirmation]:
        if self._under_way:
            yield self._confirm_next()
        else:
            time.sleep(_ASK_AGAIN_SECONDS)

    def _cut(self, start: int, room: int) -> EncodedRequest | Confirmation:
        """Return the next request, or the refusal of rows that are not to be sent."""
        if self._stopped_key and self._cutter.key(start) == self._stopped_key:
            end = self._cutter.key_end(start)
            return Confirmation(start, end - start, 0, _held(start, end))
        request = self._cutter.cut(start, room)
        if len(request.body) <= MAX_PUBLISH_REQUEST_BYTES:
            return request
        reason = f"message_too_large: {len(request.body)} bytes, {MAX_PUBLISH_REQUEST_BYTES} fit"
        return Confirmation(start, request.rows, 0, (RefusedMessage(start, reason),))

    def _must_wait(self, start: int) -> bool:
        """Whether an answer must come first: too much is under way, or a message of the same key."""
        flights = self._under_way
        if not flights:
            return False
        key = self._cutter.key(start)
        if key and any(flight.request.key == key for flight in flights):
            return True
        rows = sum(flight.request.rows for flight in flights)
        size = sum(len(flight.request.body) for flight in flights)
        most = self._publisher.in_flight - 1
        return (
            len(flights) >= self._max_requests
            or rows > most * MAX_PUBLISH_REQUEST_MESSAGES
            or size > most * MAX_PUBLISH_REQUEST_BYTES
        )

    def _send(self, request: EncodedRequest, give_up_seconds: float, since: float | None = None) -> _Flight:
        flight = _Flight(request, give_up_seconds)
        flight.since = flight.first_sent_at if since is None else since
        self._send_again(flight)
        return flight

    def _send_again(self, flight: _Flight) -> None:
        flight.attempts += 1
        flight.call = self._publisher.call(flight.request.body)

    def _confirm_next(self) -> Confirmation:
        confirmed = self._confirm(self._under_way[0])
        # Only now: a stop meanwhile finds it under way.
        flight = self._under_way.popleft()
        if confirmed.refused:
            self._stopped_key = flight.request.key
        return confirmed

    def _confirm(self, flight: _Flight) -> Confirmation:
        """Wait for the answer; sends again, or in halves, until every row has one."""
        request = flight.request
        while True:
            try:
                answer = flight.call.result()
            except grpc.RpcError as exc:
                if exc.code() in REFUSED:
                    return self._bisect(flight, f"refused_by_pubsub: {exc.details()}")
                flight.repeated += request.rows
                if self._is_given_up(flight, exc):
                    return self._bisect(flight, f"{GAVE_UP}: {exc.code().name}: {exc.details()}")
                self._send_again(flight)
                continue
            self._answered_at = time.monotonic()
            ids = tuple(_parse_response(answer).message_ids) if self._with_ids else ()
            return Confirmation(
                request.start, request.rows, len(request.body), repeated=flight.repeated, message_ids=ids
            )

    def _bisect(self, flight: _Flight, reason: str) -> Confirmation:
        """Find the messages that make Pub/Sub refuse the request; the others are published.

        Of an ordering key, what comes after the first of them is not.
        """
        request = flight.request
        start, end = request.start, request.start + request.rows
        if request.rows == 1:
            return Confirmation(start, 1, 0, (RefusedMessage(start, reason),), flight.repeated)
        middle = start + request.rows // 2
        first = self._confirm_part(flight, start, middle)
        if first.refused and request.key:
            second = Confirmation(middle, end - middle, 0, _held(middle, end))
        else:
            second = self._confirm_part(flight, middle, end)
        return Confirmation(
            start,
            request.rows,
            first.bytes + second.bytes,
            first.refused + second.refused,
            flight.repeated + first.repeated + second.repeated,
            first.message_ids + second.message_ids,
        )

    def _confirm_part(self, whole: _Flight, start: int, end: int) -> Confirmation:
        if self._room(start) is None:
            raise _StoppedError
        seconds = min(whole.give_up_seconds, _GIVE_UP_PART_SECONDS)
        return self._confirm(self._send(self._cutter.encode(start, end), seconds, whole.since))

    def _is_given_up(self, flight: _Flight, exc: grpc.RpcError) -> bool:
        """Wait before the next attempt and return False, or say that the messages themselves are at fault."""
        code, topic = exc.code(), self._publisher.topic_path
        if code not in TRANSIENT:
            raise error_from(exc, f"publish to {topic}") from exc
        waited = time.monotonic() - flight.first_sent_at
        pause = min(_MAX_BACKOFF_SECONDS, _FIRST_BACKOFF_SECONDS * 2 ** (flight.attempts - 1))
        if waited + pause > flight.give_up_seconds:
            # A quota says nothing about messages, and neither does a service that takes none.
            if code is not grpc.StatusCode.RESOURCE_EXHAUSTED and self._took_others(flight.since):
                return True
            raise PubSubUnavailableError(
                f"Pub/Sub did not accept messages for {topic} within {waited:.0f} s "
                f"({flight.attempts} attempts): {code.name}: {exc.details()}"
            ) from exc
        # Full jitter: many tasks that fail together must not come back together.
        until = time.monotonic() + pause * random.uniform(0.5, 1.0)  # noqa: S311
        while True:
            if self._room(flight.request.start) is None:
                raise _StoppedError
            if (left := until - time.monotonic()) <= 0:
                return False
            time.sleep(min(left, _LOOK_SECONDS))

    def _took_others(self, since: float) -> bool:
        others = (other.call for other in self._under_way if other.attempts == 1)
        return self._answered_at > since or any(
            call.done() and call.code() is grpc.StatusCode.OK for call in others
        )


def _held(start: int, end: int) -> tuple[RefusedMessage, ...]:
    return tuple(RefusedMessage(row, KEY_STOPPED) for row in range(start, end))


def _no_limit(_start: int) -> int:
    return MAX_PUBLISH_REQUEST_MESSAGES


def _parse_response(answer: bytes) -> Any:
    return GetMessageClass(find_message("PublishResponse")).FromString(answer)
