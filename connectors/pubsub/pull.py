"""Pulling from many subscriptions at once, response bytes straight to Arrow."""

import queue
import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final, NamedTuple

import grpc
import pyarrow as pa
import pyarrow.compute as pc
from ptars import HandlerPool, PtarsConfig

from connectors.pubsub.ack_deadline import AckDeadline
from connectors.pubsub.acks import extend_each
from connectors.pubsub.errors import error_from
from connectors.pubsub.messages import find_message
from connectors.wire import bytes_field, varint
from model.errors import PubSubError

_PULL: Final = "/google.pubsub.v1.Subscriber/Pull"
MAX_PULL_MESSAGES: Final = 1000
# Four Pulls in flight keep one connection busy; more only fill memory. Measured on loopback: 1 gives half.
MAX_IN_FLIGHT_PER_SUBSCRIPTION: Final = 4
MAX_IN_FLIGHT: Final = 512
# Google's front end takes 100 calls at a time on one connection and lets others wait, after Pulls that wait for
# messages: https://github.com/googleapis/google-cloud-java, docs/grpc_channel_pool_guide.md.
MAX_SUBSCRIPTIONS_PER_CONNECTION: Final = 64
_POLL_SECONDS: Final = 0.1
# A stream's next batch begins a quarter of a second after the last one.
_REST_SECONDS: Final = 2.0
_CANCEL_SECONDS: Final = 0.5
_LONGEST_PULL_SECONDS: Final = 30.0
# With more subscriptions than Pulls in flight, those that have nothing make room for others.
_SHORT_PULL_SECONDS: Final = 3.0
# A Pull or an Acknowledge costs some tenths of a millisecond whatever it carries, so a process with many
# subscriptions asks each of them less often, and makes larger batches.
_PULLS_PER_SECOND: Final = 200
_SUBSCRIPTIONS_PER_SECOND: Final = 100
_LONGEST_STRETCH_SECONDS: Final = 5.0
# "The Pub/Sub system may return fewer than the number specified" (PullRequest.max_messages), or none, while more
# wait. So there is a backlog while answers bring a tenth of a full one on average, and come soon after each other.
_QUICK_SECONDS: Final = 0.2
# A process that looks at its answers less often than this may have stood still.
_STALL_SECONDS: Final = 1.0
_BACKLOG_FULLNESS: Final = 0.1
_AVERAGED_PULLS: Final = 4
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
    """The messages of one Pull, a row each, in :data:`PULLED_SCHEMA`, and whether more are likely to wait."""

    target: PullTarget
    rows: pa.RecordBatch
    is_backlog: bool = False


@dataclass(slots=True, eq=False)
class _Lane:
    """One subscription's Pulls in flight, how many there may be, and how full the last ones came back."""

    target: PullTarget
    request: bytes
    call: Any
    allowed: int = 1
    in_flight: int = 0
    ask_at: float = 0.0
    failures: int = 0
    # From 0 to 1, an average of the last Pulls.
    fullness: float = 0.0

    def note(self, fullness: float, *, is_quick: bool) -> bool:
        """Count how full a Pull came back, set how many may be in flight, and return whether a backlog waits.

        One Pull is enough for an idle subscription, two for one that answers at once, four for a backlog.
        """
        if fullness == 1 or not (fullness or is_quick):
            # A full answer means more messages wait; an empty answer after a wait means none do.
            self.fullness = fullness
        else:
            self.fullness += (fullness - self.fullness) / _AVERAGED_PULLS
        if self.fullness >= _BACKLOG_FULLNESS:
            self.allowed = min(self.allowed + 1, MAX_IN_FLIGHT_PER_SUBSCRIPTION)
            return True
        self.allowed = 2 if is_quick and fullness else 1
        return False


class _Answer(NamedTuple):
    """A Pull that has ended, how long it took, and since when at most its messages are leased."""

    lane: _Lane
    future: Any
    seconds: float
    leased_at: float


@dataclass(frozen=True, slots=True)
class PullLimits:
    """When a batch ends: nothing for ``idle_seconds``, else ``linger_seconds`` after the first message.

    That message may be another task's of the same batch: Spark waits for all of them.
    Once it has met messages that waited for longer than that, a batch goes on until ``backlog_seconds`` while the
    last Pull's subscription has a backlog: a larger batch costs less a message. So does one of many subscriptions,
    which lasts a second for each hundred, up to five. ``max_bytes`` ends it in any case, give or take the Pulls in
    flight. Where messages waited for longer than ``backlog_seconds``, a batch lasts as long as they waited, up to
    ``longest_seconds``.
    """

    idle_seconds: float
    linger_seconds: float
    backlog_seconds: float
    max_bytes: int
    longest_seconds: float = 0.0


class Puller:
    """Pulls for one batch after the other, in one process; its Pulls in flight outlive a batch.

    A Pull that is cancelled may have been answered already: its messages then come again only when their lease
    runs out. So Pulls are left in flight when a batch ends, and what they bring goes into this process's next
    batch. When there is none within two seconds the messages are given back, for other processes to have.
    """

    def __init__(self, connect: Callable[[], grpc.Channel]) -> None:
        """Open connections with ``connect``: one for leases, and one for each group of subscriptions' Pulls."""
        self.leases = connect()
        self._connect = connect
        self._calls: list[Any] = []
        self._lanes: dict[PullTarget, _Lane] = {}
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._flying: set[Any] = set()
        self._lock = threading.Lock()
        self._rest_timer: threading.Timer | None = None
        # When answers were last looked at, and the last time without a look that was too long.
        self._looked_at = 0.0
        self._stall = 0.0, 0.0

    def warm_up(self) -> None:
        """Build the decoder of answers, before the first one comes."""
        _pull_response_handler()

    def start_batch(self, targets: Sequence[PullTarget]) -> "BatchPull":
        """Return a pull of one batch from ``targets``; one batch at a time."""
        with self._lock:
            if self._rest_timer is not None:
                self._rest_timer.cancel()
                self._rest_timer = None
            return BatchPull(self, [self._lanes.get(target) or self._open_lane(target) for target in targets])

    def _open_lane(self, target: PullTarget) -> _Lane:
        connection = len(self._lanes) // MAX_SUBSCRIPTIONS_PER_CONNECTION
        if connection == len(self._calls):
            call = self._connect().unary_unary(_PULL, request_serializer=None, response_deserializer=None)
            self._calls.append(call)
        lane = self._lanes[target] = _Lane(target, _pull_request(target.path), self._calls[connection])
        return lane

    def give_back(self) -> None:
        """End the Pulls in flight and give back the messages that they brought."""
        with self._lock:
            self._give_back()

    def _send_more(self, waiting: deque[_Lane]) -> float:
        """Send the Pulls of the lanes that wait, in turn, as far as there is room; the others go on waiting.

        Return for how many seconds there is nothing more to send, if no answer makes room.
        """
        now = time.monotonic()
        soonest = now + _POLL_SECONDS
        seconds = _LONGEST_PULL_SECONDS if len(self._lanes) <= MAX_IN_FLIGHT else _SHORT_PULL_SECONDS
        for _ in range(len(waiting)):
            if len(self._flying) >= MAX_IN_FLIGHT:
                break
            lane = waiting.popleft()
            if now < lane.ask_at:
                waiting.append(lane)
                soonest = min(soonest, lane.ask_at)
                continue
            while lane.in_flight < lane.allowed:
                future = lane.call.future(lane.request, timeout=seconds)
                lane.in_flight += 1
                self._flying.add(future)
                future.add_done_callback(partial(self._answer, lane, now))
        return soonest - now

    def _answer(self, lane: _Lane, asked_at: float, future: Any) -> None:
        now = time.monotonic()
        leased_at = max(asked_at, self._came_at(now) - _STALL_SECONDS)
        self._answers.put(_Answer(lane, future, now - asked_at, leased_at))

    def _came_at(self, now: float) -> float:
        """Return when an answer came to this machine at the earliest: it may have waited for a stalled process."""
        began, ended = self._stall
        if now - self._looked_at > _STALL_SECONDS:
            return self._looked_at
        return began if now < ended + _STALL_SECONDS else now

    def _receive(self, wait_seconds: float) -> _Answer | None:
        self._note_look()
        try:
            answer = self._answers.get(timeout=wait_seconds)
        except queue.Empty:
            return None
        finally:
            self._note_look()
        self._flying.discard(answer.future)
        answer.lane.in_flight -= 1
        return answer

    def _note_look(self) -> None:
        before, self._looked_at = self._looked_at, time.monotonic()
        if self._looked_at - before > _STALL_SECONDS:
            began, ended = self._stall
            self._stall = began if before < ended + _STALL_SECONDS else before, self._looked_at

    def _rest(self) -> None:
        """Wait for the next batch, but not for long."""
        with self._lock:
            timer = threading.Timer(_REST_SECONDS, self._end_rest)
            timer.daemon = True
            self._rest_timer = timer
            timer.start()

    def _end_rest(self) -> None:
        with self._lock:
            # A batch that began in this moment has taken the timer away, and keeps what there is.
            if self._rest_timer is threading.current_thread():
                self._rest_timer = None
                self._give_back()

    def _give_back(self) -> None:
        for future in self._flying:
            future.cancel()
        held: dict[PullTarget, list[pa.Array]] = defaultdict(list)
        while self._flying and (answer := self._receive(_CANCEL_SECONDS)) is not None:
            lane, future = answer.lane, answer.future
            if not future.cancelled() and future.exception() is None and (response := future.result()):
                held[lane.target].append(decode_pull_response(response).column("ack_id"))
        self._flying.clear()
        self._lanes.clear()
        leases = ((target.path, pa.concat_arrays(ack_ids), 0) for target, ack_ids in held.items())
        # Where this fails the leases run out by themselves.
        deque(extend_each(self.leases, leases), maxlen=0)


class BatchPull:
    """One batch's pull, and the leases of what it brought, which it extends until the batch is handed on.

    A subscription that fails is tried again with back-off and named in ``faults``; the others go on.
    """

    def __init__(self, puller: Puller, lanes: Sequence[_Lane]) -> None:
        self.faults: dict[str, PubSubError] = {}
        self.received_bytes = 0
        self.deadline = AckDeadline()
        self._puller = puller
        self._lanes = frozenset(lanes)
        # Not always the same first: a process that does not live for long would never reach the last ones.
        self._waiting = deque(random.sample(lanes, len(lanes)))
        self._ack_ids: dict[PullTarget, list[pa.Array]] = defaultdict(list)
        self._shortest_seconds = 0
        self._extended_at = 0.0

    def pull(
        self,
        limits: PullLimits,
        is_stopping: Callable[[], bool],
        has_begun: Callable[[], bool] = lambda: False,
    ) -> Iterator[PulledBatch]:
        """Yield batches as they arrive until ``limits`` or ``is_stopping`` end it.

        ``has_begun`` says whether another task of the same batch has a message.
        """
        stretch_seconds = min(len(self._lanes) / _SUBSCRIPTIONS_PER_SECOND, _LONGEST_STRETCH_SECONDS)
        linger_seconds = max(limits.linger_seconds, stretch_seconds)
        backlog_seconds = max(limits.backlog_seconds, stretch_seconds)
        ends_at = time.monotonic() + limits.idle_seconds
        first_at: float | None = None
        backlog_until, is_late, longest_wait_seconds = 0.0, False, 0.0
        while time.monotonic() < ends_at and self.received_bytes < limits.max_bytes and not is_stopping():
            wait_seconds = self._puller._send_more(self._waiting)  # noqa: SLF001 - one thing with two lifetimes
            answer = self._puller._receive(wait_seconds)  # noqa: SLF001
            batch = None if answer is None else self._take(answer)
            if batch is not None:
                first_at = first_at or time.monotonic()
                yield batch
                # What short batches keep up with is no backlog: to wait for more of it would only make it late.
                waited_seconds = _waited_seconds(batch.rows, time.time())
                longest_wait_seconds = max(longest_wait_seconds, min(waited_seconds, limits.longest_seconds))
                is_late = is_late or waited_seconds > linger_seconds
                # A backlog is over when nothing comes at once any more.
                backlog_until = time.monotonic() + _QUICK_SECONDS if batch.is_backlog and is_late else 0.0
            elif first_at is None and has_begun():
                first_at = time.monotonic()
            if first_at is not None:
                is_backlog = time.monotonic() < backlog_until
                longest_seconds = max(backlog_seconds, longest_wait_seconds) if is_backlog else linger_seconds
                ends_at = first_at + longest_seconds
            self.extend_leases()
        if is_stopping():
            self._puller.give_back()
        else:
            self._puller._rest()  # noqa: SLF001

    def extend_leases(self, *, at_once: bool = False) -> None:
        """Extend every lease taken, when a third of the shortest deadline has gone by, or ``at_once``."""
        if not self._ack_ids:
            return
        now = time.monotonic()
        if not at_once and now - self._extended_at < self._shortest_seconds / 3:
            return
        self._extended_at = now
        self.deadline.extend(self._shortest_seconds, self._extend_all)

    def _extend_all(self) -> bool:
        leases = (
            (target.path, pa.concat_arrays(ack_ids), target.ack_deadline_seconds)
            for target, ack_ids in self._ack_ids.items()
        )
        # Where this fails the leases may run out; then the messages come twice and are recognised by their ids.
        answers = list(extend_each(self._puller.leases, leases))
        failed = {path.rpartition("/")[2]: error for path, error in answers if error is not None}
        self.faults |= failed
        return not failed

    def _take(self, answer: _Answer) -> PulledBatch | None:
        lane, future = answer.lane, answer.future
        # What a batch before this one was still waiting for may come now: it is taken, and not asked for again.
        if lane in self._lanes:
            self._waiting.append(lane)
        try:
            response: bytes = future.result()
        except (grpc.RpcError, grpc.FutureCancelledError) as exc:
            if isinstance(exc, grpc.RpcError) and exc.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return None
            lane.failures += 1
            lane.ask_at = time.monotonic() + min(5.0, 0.05 * 2**lane.failures)
            if isinstance(exc, grpc.RpcError):
                self.faults[lane.target.subscription] = error_from(
                    exc, f"Pull from subscription {lane.target.subscription}"
                )
            return None
        lane.failures = 0
        is_quick = answer.seconds < _QUICK_SECONDS
        if not response:
            lane.note(0.0, is_quick=is_quick)
            return None
        rows = decode_pull_response(response)
        self.received_bytes += len(response)
        is_backlog = lane.note(_fullness(rows.num_rows, len(response)), is_quick=is_quick)
        batch = PulledBatch(lane.target, rows, is_backlog=is_backlog)
        if not is_backlog:
            lane.ask_at = time.monotonic() + len(self._lanes) / _PULLS_PER_SECOND
        deadline_seconds = lane.target.ack_deadline_seconds
        if not self._ack_ids:
            self._extended_at, self._shortest_seconds = time.monotonic(), deadline_seconds
        self._shortest_seconds = min(self._shortest_seconds, deadline_seconds)
        self._ack_ids[lane.target].append(rows.column("ack_id"))
        self.deadline.begin(deadline_seconds, age_seconds=time.monotonic() - answer.leased_at)
        return batch


def decode_pull_response(response: bytes) -> pa.RecordBatch:
    """Return a PullResponse's messages in :data:`PULLED_SCHEMA`; 0.5 us a message of 1 KB."""
    # Of one response they are all the values of the list: flatten() would copy them.
    received = _pull_response_handler().list_to_record_batch([response]).column(0).values
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


def _waited_seconds(rows: pa.RecordBatch, now: float) -> float:
    """Return how long ago the newest message of an answer was published, by this machine's clock."""
    newest = pc.max(rows.column("publish_time").cast(pa.int64())).as_py()
    return 0.0 if newest is None else now - newest / 1e6


def _fullness(messages: int, size_bytes: int) -> float:
    """Return the share of a Pull's limits that it brought: 1 for all, so that more is likely to wait."""
    return min(1.0, max(messages / MAX_PULL_MESSAGES, size_bytes / _FULL_RESPONSE_BYTES))


def _pull_request(path: str) -> bytes:
    return bytes_field(1, path.encode()) + b"\x18" + varint(MAX_PULL_MESSAGES)


@cache
def _pull_response_handler() -> Any:
    descriptor = find_message("PullResponse")
    pool = HandlerPool([descriptor.file], config=PtarsConfig(timestamp_unit="us"))
    return pool.get_for_message(descriptor)
