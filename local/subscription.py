"""One subscription at work: delivery, leases, acknowledgements and seeks, over the log of its topic."""

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from local.acklog import AckLog
from local.backlog import AckState, WaitingMessages
from local.damage import DamagedError
from local.leases import LeaseBook
from local.ordering import OrderedBacklog
from local.segments import MessageLog
from local.seqset import NOTHING, Seqs, SeqSet, read_runs
from local.status import StatusError
from local.wire import ACK_NUMBERS, AckIds, add_delivery_attempts, fill_ack_ids
from model.filters import Filter

# One response holds at most this many messages, whatever was asked for.
MAX_RESPONSE_MESSAGES: Final = 20_000


@dataclass(frozen=True, slots=True)
class Rules:
    """What of a subscription's configuration its deliveries follow.

    ``max_delivery_attempts`` is None without a dead-letter policy.
    """

    ack_deadline_seconds: int
    retention_seconds: float
    exactly_once: bool = False
    max_delivery_attempts: int | None = None


@dataclass(frozen=True, slots=True)
class Backpressure:
    """Numbers an operator looks at; with a filter, messages not looked at yet count as undelivered."""

    undelivered_messages: int
    leased_messages: int
    oldest_unacked_seconds: float


@dataclass(slots=True)
class LateSeek:
    """A seek on disk that deliveries do not follow yet: until ``until`` they follow ``acked``."""

    acked: SeqSet
    until: float


class Subscription:
    """The working half of a subscription; safe to use from many threads.

    ``number`` goes into its ack ids, so that an id of another subscription does no harm. ``bury`` takes records
    that came back too often, and how often, to the dead-letter topic; it is called without any lock held.
    """

    def __init__(
        self,
        number: int,
        log: MessageLog,
        acks: AckLog,
        message_filter: Filter,
        rules: Rules,
        *,
        ordered: bool,
        bury: Callable[[Sequence[bytes], Sequence[int]], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.number = number
        # Two subscriptions may share this number: a request to acknowledge names its subscription anyway.
        self._ack_number = number % ACK_NUMBERS
        self.log = log
        self.rules = rules
        self.deleted = False
        self.detached = False
        self._acks = acks
        self._clock = clock
        self._ordered = ordered
        self._filter = message_filter
        self._backlog = self._open_backlog(acks)
        self._late: LateSeek | None = None
        # Numbered by time, so that an id from before a restart is never one of a lease of today.
        self._leases = LeaseBook(time.time_ns() // 1000)
        # Ids of leases below this number were made before a seek and no longer count.
        self._first_valid_lease = 0
        self._bury = bury
        # How often each message came back; kept in memory only, as Google's count is "best effort".
        self._returns: dict[int, int] = {}
        self._doomed: deque[Seqs] = deque()
        self._lock = threading.RLock()
        # The bells of the consumers that wait for messages, longest first. One rings for what is new, and whoever
        # leaves some of it rings the next: a publish that wakes hundreds takes the interpreter from everybody.
        self._waiting: deque[threading.Event] = deque()

    def _open_backlog(self, acks: AckState) -> OrderedBacklog | WaitingMessages:
        return (OrderedBacklog if self._ordered else WaitingMessages)(self.log, acks, self._filter)

    # -- delivery

    def take(
        self, max_messages: int, max_bytes: int, *, deadline_seconds: float | None = None, stream: int = 0
    ) -> bytes:
        """Lease messages and return them as the bytes of ``received_messages`` fields; empty when there are none.

        ``max_bytes`` is passed by a first message that is larger alone. ``deadline_seconds`` is the subscription's
        unless given; ``stream`` names the StreamingPull whose flow control counts them.

        Raises:
            StatusError: the log can't be read, or the subscription was detached.
        """
        while True:
            try:
                return self._take(max_messages, max_bytes, deadline_seconds, stream)
            except DamagedError as exc:
                # Each round acknowledges some, so that this ends.
                self._pass_over(exc.seqs)

    def _take(self, max_messages: int, max_bytes: int, deadline_seconds: float | None, stream: int) -> bytes:
        attempts: list[int] = []
        with self._lock:
            if self.detached:
                raise StatusError.failed_precondition("The subscription was detached from its topic.")
            now = self._clock()
            self._expire(now)
            seqs, lengths = self._backlog.take(min(max_messages, MAX_RESPONSE_MESSAGES), max_bytes)
            if len(seqs):
                deadline = now + (deadline_seconds or self.rules.ack_deadline_seconds)
                lease = self._leases.add(seqs, lengths, deadline, stream)
                if self.rules.max_delivery_attempts is not None:
                    attempts = [self._returns.get(seq, 0) + 1 for seq in seqs.tolist()]
                if self._backlog.has_some:
                    self.notify()
        self.bury_doomed()
        if not len(seqs):
            return b""
        try:
            buffer = self.log.read(seqs, lengths)
        except DamagedError:
            with self._lock:
                self._come_back(self._leases.take_back(seqs))
            raise
        fill_ack_ids(buffer, lengths, seqs, lease, self._ack_number)
        return (
            add_delivery_attempts(buffer.tobytes(), lengths.tolist(), attempts) if attempts else buffer.tobytes()
        )

    def _pass_over(self, damaged: Seqs) -> None:
        """Hold messages that are damaged on disk for done; the log has reported them."""
        with self._lock:
            self._leases.take_back(damaged)
            self._record(damaged)
            self._backlog.confirm(damaged, damaged)

    def wait(
        self, bell: threading.Event, timeout_seconds: float, is_over: Callable[[], bool] = lambda: False
    ) -> None:
        """Return when a ``take`` may find something, when the bell rings, or when it is over.

        The caller clears the bell before it looks for messages, and calls ``notify`` when it goes away instead of
        looking again: the bell may have rung for a message that another consumer could have.
        """
        # First in line, then the look: a publish in between rings.
        self._waiting.append(bell)
        try:
            if not (self._backlog.has_some or self.deleted or self.detached or is_over()):
                bell.wait(timeout_seconds)
        finally:
            with contextlib.suppress(ValueError):
                self._waiting.remove(bell)

    def wait_for_room(
        self, stream: int, bell: threading.Event, timeout_seconds: float, is_over: Callable[[], bool]
    ) -> None:
        """Return when the consumer of ``stream`` holds less, when the bell rings, or when it is over."""
        with self._lock:
            self._leases.outstanding(stream).bell = bell
        try:
            if not (self.deleted or self.detached or is_over()):
                bell.wait(timeout_seconds)
        finally:
            with self._lock:
                self._leases.outstanding(stream).bell = None

    def notify(self) -> None:
        """Wake a waiting consumer: there may be something to take. Never waits for the subscription's lock."""
        with contextlib.suppress(IndexError):
            self._waiting.popleft().set()

    def wake(self) -> None:
        """Let every waiting consumer look around."""
        for _ in range(len(self._waiting)):
            self.notify()
        with self._lock:
            self._leases.ring()

    def outstanding(self, stream: int) -> tuple[int, int]:
        """Return the messages and bytes that the consumer of ``stream`` holds."""
        with self._lock:
            counter = self._leases.outstanding(stream)
            return counter.messages, counter.size_bytes

    def forget_stream(self, stream: int) -> None:
        """A stream has ended; what its consumer holds comes back at its deadline."""
        with self._lock:
            self._leases.forget_stream(stream)
        self.notify()

    def expire_leases(self) -> None:
        """Take messages back whose deadline is over, and let a late seek take effect; cheap otherwise."""
        late = self._late
        if self._leases.is_due(self._clock()) or (late is not None and self._clock() >= late.until):
            with self._lock:
                self._expire(self._clock())
            self.bury_doomed()

    def _expire(self, now: float) -> None:
        if self._late is not None and now >= self._late.until:
            self._late = None
            self._backlog = self._open_backlog(self._acks)
            self._deliver_again()
        expired = self._leases.expire(now)
        if len(expired):
            self._come_back(self._without_doomed(expired))

    def _without_doomed(self, seqs: Seqs) -> Seqs:
        """Count a delivery that failed for each of ``seqs``, and keep back those that have had their last."""
        limit = self.rules.max_delivery_attempts
        if limit is None:
            return seqs
        for seq in seqs.tolist():
            self._returns[seq] = self._returns.get(seq, 0) + 1
        doomed = np.array(sorted(seq for seq in seqs.tolist() if self._returns[seq] >= limit), dtype=np.int64)
        if not len(doomed):
            return seqs
        # Leased to nobody, so that no consumer gets them on their way to the dead-letter topic.
        self._leases.add(doomed, self.log.read_lengths(doomed), math.inf)
        self._doomed.append(doomed)
        return np.setdiff1d(seqs, doomed)

    def bury_doomed(self) -> None:
        """Take what came back too often to the dead-letter topic and acknowledge it; must be called unlocked.

        Where that can't be done (no such topic, a full disk) the messages go on being delivered. A crash in
        between lets a message be dead-lettered twice, as Google's service may.
        """
        while self._doomed and self._bury is not None:
            with self._lock:
                if not self._doomed:
                    return
                seqs = self._doomed.popleft()
                counts = [self._returns.get(seq, 0) for seq in seqs.tolist()]
            is_buried = True
            try:
                lengths = self.log.read_lengths(seqs)
                joined = self.log.read(seqs, lengths).tobytes()
                ends = np.cumsum(lengths).tolist()
                records = [joined[end - n : end] for end, n in zip(ends, lengths.tolist(), strict=True)]
                self._bury(records, counts)
            except StatusError:
                is_buried = False
            with self._lock:
                held = self._leases.take_back(seqs)
                if is_buried:
                    self._finish(held, NOTHING)
                elif len(held):
                    self._come_back(held)
            if not is_buried:
                return

    def _come_back(self, seqs: Seqs) -> None:
        if not len(seqs):
            return
        self._leases.take_back(self._backlog.come_back(seqs))
        self.notify()

    # -- what consumers send

    def acknowledge(self, ids: AckIds) -> None:
        """Take messages for done; ids of another subscription or from before a seek do nothing.

        Raises:
            StatusError: the disk did not take it, and the messages will be delivered again; or, with exactly-once
                delivery, some leases are over: their messages are not done, the others are.
        """
        with self._lock:
            ids, refused = self._accepted(ids)
            held, late = self._leases.release(ids)
            # A message that went out again meanwhile is done too: its acknowledgement is answered as taken.
            held = np.concatenate((held, self._leases.take_back(late)))
            self._finish(held, late)
        if refused:
            raise StatusError.ack_ids_expired(refused)

    def modify_ack_deadline(self, ids: AckIds, seconds: int) -> None:
        """Give consumers ``seconds`` from now; 0 gives the messages back at once.

        Raises:
            StatusError: with exactly-once delivery, some leases are over; the others are changed.
        """
        with self._lock:
            ids, refused = self._accepted(ids)
            if seconds:
                self._leases.extend(ids, self._clock() + seconds)
            else:
                held, _ = self._leases.release(ids)
                if len(held):
                    self._come_back(self._without_doomed(held))
        self.bury_doomed()
        if refused:
            raise StatusError.ack_ids_expired(refused)

    def _finish(self, held: Seqs, late: Seqs) -> None:
        done = self._backlog.acknowledge(held, late)
        if len(done):
            try:
                self._record(done)
            except BaseException:
                self._come_back(held)
                raise
            self._backlog.confirm(done, late)
            if self._returns:
                for seq in done.tolist():
                    self._returns.pop(seq, None)
        if self._backlog.has_some:
            self.notify()

    def _record(self, done: Seqs) -> None:
        runs = read_runs(done)
        self._acks.record(runs)
        if self._late is not None:
            for start, end in runs:
                self._late.acked.add(start, end)

    def _accepted(self, ids: AckIds) -> tuple[AckIds, list[str]]:
        """Return the ids that count, and those that exactly-once delivery refuses: an ended lease is no lease."""
        own = self._own(ids)
        if not self.rules.exactly_once:
            return own, []
        self._expire(self._clock())
        live = self._leases.holds(own)
        refused = [*own.select(~live).render(), *ids.select(~self._is_own(ids)).render()]
        return own.select(live), refused

    def _own(self, ids: AckIds) -> AckIds:
        own = self._is_own(ids)
        return ids if own.all() else ids.select(own)

    def _is_own(self, ids: AckIds) -> npt.NDArray[np.bool_]:
        is_here = ids.subscription == self._ack_number
        own: npt.NDArray[np.bool_] = is_here & (ids.leases >= self._first_valid_lease)
        return own

    # -- seeks, retention, numbers

    def read_state(self) -> SeqSet:
        """Return a copy of what is acknowledged: what a snapshot keeps."""
        with self._lock:
            return SeqSet(self._acks.acked.floor, self._acks.acked.runs())

    def seek(self, state: SeqSet, *, effect_seconds: float = 0.0) -> None:
        """Make ``state`` what is acknowledged; everything else is delivered again.

        For the next ``effect_seconds`` deliveries follow what was acknowledged before: messages that the seek
        holds for done may still come, and those that it brings back come later. The seek itself is on disk when
        this returns, and a restart ends the delay.

        Raises:
            StatusError: the disk did not take it; nothing has changed.
        """
        with self._lock:
            before = self._acks.acked if self._late is None else self._late.acked
            state.add(state.floor, self.log.first_seq)
            self._acks.replace(state)
            self._late = None
            if effect_seconds:
                acked = SeqSet(before.floor, before.runs())
                self._late = LateSeek(acked, self._clock() + effect_seconds)
            self._backlog = self._open_backlog(self._acks if self._late is None else self._late)
            self._deliver_again()

    def _deliver_again(self) -> None:
        self._leases.clear()
        self._first_valid_lease = self._leases.next_number
        self._returns.clear()
        self._doomed.clear()
        self._backlog.reset()
        self.wake()

    def seek_to_time(self, publish_time_us: int, first_retained_seq: int, *, effect_seconds: float = 0.0) -> None:
        """Hold what was published before that time for done, the rest from ``first_retained_seq`` on for undone.

        Messages below ``first_retained_seq`` keep their state: those that are done are gone.
        """
        with self._lock:
            target = self.log.first_seq_since(publish_time_us)
            state = SeqSet(target)
            acked = self._acks.acked
            for start, end in [(target, acked.floor), *acked.runs()]:
                state.add(start, min(end, first_retained_seq))
            self.seek(state, effect_seconds=effect_seconds)

    def drop_expired(self, now_us: int, topic_retention_us: int = 0) -> None:
        """Hold what is older than its own and its topic's retention for done, and bring the ack log up to date."""
        with self._lock:
            acked = self._acks.acked
            retention_us = max(int(self.rules.retention_seconds * 1_000_000), topic_retention_us)
            keep = self.log.first_seq_since(now_us - retention_us)
            acked.add(acked.floor, keep)
            self._acks.record_floor()
            self._expire(self._clock())
        self.bury_doomed()

    @property
    def floor(self) -> int:
        """The first message that is not acknowledged."""
        return self._acks.acked.floor

    def read_backpressure(self) -> Backpressure:
        """Return how much is undelivered and how old the oldest of it is."""
        with self._lock:
            self._expire(self._clock())
            if self.detached:
                return Backpressure(0, 0, 0.0)
            undelivered = self._acks.acked.count_missing(self.log.next_seq)
            leased = self._leases.held_messages
            oldest = 0.0
            if undelivered:
                seq = max(self._acks.acked.floor, self.log.first_seq)
                oldest = max(0.0, time.time() - self.log.publish_time(seq) / 1_000_000)
            return Backpressure(undelivered, leased, oldest)

    def detach(self) -> None:
        """Drop every message, now and from now on, and let waiting consumers go."""
        with self._lock:
            self.detached = True
            self._leases.clear()
            self._first_valid_lease = self._leases.next_number
            self._backlog.reset()
            self.wake()

    def close(self, *, deleted: bool = False) -> None:
        """Let waiting consumers go and close the ack log."""
        with self._lock:
            self.deleted = deleted
            self.wake()
            self._acks.close()
