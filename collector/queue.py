"""Events on disk until Pub/Sub has them: a log of segments for each topic, drained in its order."""

import asyncio
import fcntl
import os
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import structlog

from collector.delivery import Delivery, TopicDirectory, TopicState
from collector.refused import MAX_REFUSED_BYTES, RefusedFile
from connectors.pubsub.client import PubSub
from connectors.pubsub.sending import Sender, decode_message, outcome_of
from local.acklog import AckLog
from local.damage import DamagedError
from local.files import sync_folder
from local.segments import MessageLog
from local.status import StatusError
from local.wire import read_message
from model.errors import (
    LeaseHeldError,
    MessageRefusedError,
    PubSubError,
    QueueFullError,
    RefeedError,
    TopicUnreadError,
)
from model.message import MAX_PUBLISH_REQUEST_MESSAGES, is_resource_id

_LOG: Final = structlog.get_logger()
SEGMENT_BYTES: Final = 8 * 1024 * 1024
# A log numbers its messages with ids of 16 digits; the queue does not use them.
_FIRST_ID: Final = 10**15
_LENGTH: Final = struct.Struct("<I")
# What a topic reads at once to publish it.
_BATCH_BYTES: Final = 8_000_000
# What a topic keeps in memory of what it has just written.
_FRESH_BYTES: Final = 8_000_000
# How long an end waits for what Pub/Sub could still take.
_DRAIN_SECONDS: Final = 5.0
_FAULT_SECONDS: Final = 5.0
_RECORD_BYTES: Final = 100
# Names of files that the collector itself keeps in the folder. A topic may have one of them, in any case of its
# letters where the disk knows none; its folder then begins with what no topic's name begins with.
_OWN_FILES: Final = ("refused.ndjson", "unsubscribed.json", "unsubscribed.json.new")
_OWN_MARK: Final = "_"
_UNWRITABLE: Final = "The queue can't be written."
_NOTHING_TAKEN: Final = "No event of this request was accepted."


class QueueDelivery(Delivery):
    """Answers for an event once it is on disk, and publishes it after that.

    Every event goes through the disk, so those of a topic are published in the order in which they were answered,
    also when some of them had to wait. An event is published at least once, with the uuid that its sender was
    told, over kill -9 at any point; what was under way may be published twice. ``max_bytes`` bounds what waits;
    on disk there is up to a segment (8 MB) a topic more. Where the queue ``is_shared``, a topic may hold no more
    bytes than stay free, so one alone fills half of it and another one always finds room. A message that Pub/Sub
    refuses goes to ``refused.ndjson`` in ``folder`` until that has ``max_refused_bytes``; then it stays queued.
    With a ``directory``, events of a topic that nothing subscribes to stay queued until something does.

    Raises:
        LeaseHeldError: another process has the queue.
    """

    status = 202

    def __init__(
        self,
        pubsub: PubSub,
        folder: Path,
        *,
        max_bytes: int,
        directory: TopicDirectory | None = None,
        is_shared: bool = False,
        segment_bytes: int = SEGMENT_BYTES,
        max_refused_bytes: int = MAX_REFUSED_BYTES,
    ) -> None:
        self._pubsub = pubsub
        self._is_shared = is_shared
        self._directory = directory
        self._refused = RefusedFile(folder / "refused.ndjson", max_refused_bytes)
        self._folder = folder
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self._topics: dict[str, _TopicQueue] = {}
        _make_folder(folder)
        self._lock = _lock(folder)
        for name in _OWN_FILES:
            # A release that did not know this kept a topic's events there.
            if (folder / name).is_dir():
                (folder / name).rename(folder / _folder_name(name))
                sync_folder(folder)

    @property
    def waiting_bytes(self) -> int:
        """How many bytes wait for Pub/Sub, or for the disk."""
        return sum(queue.held_bytes for queue in self._topics.values())

    async def start(self) -> None:
        """Open the logs of all topics and go on with what they hold."""
        for path in sorted(self._folder.iterdir()):
            topic = path.name.removeprefix(_OWN_MARK)
            if path.is_dir() and is_resource_id(topic):
                queue = await asyncio.to_thread(self._open, topic)
                self._begin(queue)

    async def stop(self) -> None:
        """Publish for a few seconds what Pub/Sub takes, then leave the rest to the next process."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                await asyncio.gather(*(queue.drained() for queue in self._topics.values()))
        for queue in self._topics.values():
            await queue.stop()
        os.close(self._lock)

    async def deliver(self, topic: str, messages: Sequence[bytes]) -> list[RefeedError | None]:
        """Write ``messages`` to disk and return what became of each; when there is no room, none is written."""
        size = sum(map(len, messages)) + _RECORD_BYTES * len(messages)
        queue = self._topics.get(topic)
        free = self._max_bytes - self.waiting_bytes - size
        held = size + (queue.held_bytes if queue is not None else 0)
        if free < 0 or (self._is_shared and held > free):
            what = "The collector's queue" if free < 0 else f"What the collector's queue may hold of {topic}"
            return [QueueFullError(f"{what} is full. No event of this request was accepted.")] * len(messages)
        if queue is None:
            try:
                queue = self._begin(self._open(topic))
            except OSError as exc:
                _LOG.error("the queue can't be written", topic=topic, reason=str(exc))
                return [QueueFullError(f"{_UNWRITABLE} {_NOTHING_TAKEN}")] * len(messages)
        # Counted before they are on disk: many requests may be on their way there.
        queue.arriving_bytes += size
        try:
            error = await queue.write(messages) if messages else None
        finally:
            queue.arriving_bytes -= size
        return [error] * len(messages)

    def problems(self) -> Mapping[str, str]:
        """Return the error of each topic that published nothing since, of the last minute."""
        senders = {name: queue.sender for name, queue in self._topics.items()}
        return {name: error.message for name, each in senders.items() if each and (error := each.last_error)}

    def waiting_events(self) -> dict[str, int]:
        """Return how many events of each topic wait for Pub/Sub."""
        return {name: queue.waiting for name, queue in self._topics.items()}

    def _open(self, topic: str) -> "_TopicQueue":
        return _TopicQueue(
            self._folder,
            topic,
            segment_bytes=self._segment_bytes,
            refused=self._refused,
            directory=self._directory,
        )

    def _begin(self, queue: "_TopicQueue") -> "_TopicQueue":
        self._topics[queue.topic] = queue
        sender = Sender(
            self._pubsub.channel, self._pubsub.topic_path(queue.topic), give_up_seconds=None, in_flight=1
        )
        queue.start(sender)
        return queue


class _Batch(NamedTuple):
    """Events that are published together: all that wait in [start, end), by number, bytes on disk and message."""

    start: int
    end: int
    seqs: list[int]
    lengths: list[int]
    messages: list[bytes]


class _TopicQueue:
    """One topic's log: who writes waits for the disk together with others, one task publishes."""

    def __init__(
        self,
        folder: Path,
        topic: str,
        *,
        segment_bytes: int,
        refused: RefusedFile,
        directory: TopicDirectory | None = None,
    ) -> None:
        self.topic = topic
        self._directory = directory
        self._refused = refused
        self.arriving_bytes = 0
        self.sender: Sender | None = None
        self._log = MessageLog(
            folder / _folder_name(topic),
            _FIRST_ID,
            owner=f"queue of {topic}",
            segment_bytes=segment_bytes,
            fsync=True,
        )
        # Without fsync: what it loses in a power cut is published again.
        self._published = AckLog(self._log.folder / "published", self._log.first_seq, owner=f"queue of {topic}")
        self._log.claim(self._published.acked.floor)
        self._log.fill_missing(self._published.acked)
        # Where the events end that are on disk and counted: what a write has just put there is not published yet.
        self._end = self._log.next_seq
        waiting = self._find_waiting(self._published.acked.floor, self._end)
        self.stored_bytes = int(self._log.read_lengths(waiting).sum())
        self._writing: list[tuple[Sequence[bytes], asyncio.Future[RefeedError | None]]] = []
        # Where the next batch is looked for: after those that are refused and have no room, until the end.
        self._next = 0
        # Events that are on disk, by number, with their bytes there: to keep them costs less than to read them.
        self._fresh: dict[int, tuple[bytes, int]] = {}
        self._fresh_bytes = 0
        self._to_write = asyncio.Event()
        self._to_publish = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def held_bytes(self) -> int:
        """How many bytes wait for Pub/Sub, or for the disk."""
        return self.arriving_bytes + self.stored_bytes

    @property
    def waiting(self) -> int:
        """How many events are on disk and not published."""
        return self._published.acked.count_missing(self._end)

    def _find_waiting(self, start: int, end: int, most: int | None = None) -> Any:
        """Return the numbers in [start, end) that are neither published nor lost to damage, ``most`` of them."""
        # After damage at its end a log continues with much higher numbers; the gap is skipped, not listed.
        found: list[Any] = [np.empty(0, np.int64)]
        for a, b in self._published.acked.gaps(start, end):
            stop = b if most is None else min(b, a + most - sum(map(len, found)))
            found.append(np.arange(a, stop, dtype=np.int64))
        return np.concatenate(found)[:most]

    def start(self, sender: Sender) -> None:
        """Begin to write and to publish."""
        self.sender = sender
        if self.waiting:
            _LOG.info("the queue has events from an earlier run", topic=self.topic, events=self.waiting)
            self._to_publish.set()
        self._tasks = [asyncio.create_task(self._write_all()), asyncio.create_task(self._publish_all())]

    async def stop(self) -> None:
        """End; a publish under way is forgotten, and done again by the next process."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._published.close()

    async def drained(self) -> None:
        """Return once nothing waits."""
        while self.waiting or self._writing:  # noqa: ASYNC110  asked once, at the end
            await asyncio.sleep(0.02)

    async def write(self, messages: Sequence[bytes]) -> RefeedError | None:
        """Return once the messages are on disk, or why they are not."""
        future: asyncio.Future[RefeedError | None] = asyncio.get_running_loop().create_future()
        self._writing.append((messages, future))
        self._to_write.set()
        return await future

    async def _write_all(self) -> None:
        while True:
            await self._to_write.wait()
            self._to_write.clear()
            # All that came while the disk was busy goes with the next flush.
            taken, self._writing = self._writing, []
            bodies = [_LENGTH.pack(len(message)) + message for messages, _ in taken for message in messages]
            error: RefeedError | None = None
            try:
                first, lengths = await asyncio.to_thread(self._append, bodies)
                self._end = first + len(bodies)
                self.stored_bytes += sum(lengths)
                self._remember(first, [message for messages, _ in taken for message in messages], lengths)
            except StatusError as exc:
                error = QueueFullError(f"{exc.text} {_NOTHING_TAKEN}")
                _LOG.error("the queue can't be written", topic=self.topic, reason=exc.text)
            except Exception:  # noqa: BLE001  a task that ends would leave every later request without an answer
                error = QueueFullError(f"{_UNWRITABLE} {_NOTHING_TAKEN}")
                _LOG.exception("the queue can't be written", topic=self.topic)
            for _, future in taken:
                if not future.done():
                    future.set_result(error)
            self._to_publish.set()

    def _append(self, bodies: Sequence[bytes]) -> tuple[int, list[int]]:
        """Write events to disk; return the first one's number and the bytes that each has there."""
        first = self._log.append(bodies)
        return first, self._log.read_lengths(np.arange(first, first + len(bodies), dtype=np.int64)).tolist()

    def _remember(self, first: int, messages: Sequence[bytes], lengths: Sequence[int]) -> None:
        """Keep events that are on disk in memory too, where there is room: they are published in a moment."""
        if self._fresh_bytes + sum(lengths) <= _FRESH_BYTES:
            self._fresh_bytes += sum(lengths)
            self._fresh.update(
                zip(range(first, first + len(messages)), zip(messages, lengths, strict=True), strict=True)
            )

    def _forget(self, seq: int) -> tuple[bytes, int] | None:
        found = self._fresh.pop(seq, None)
        if found is not None:
            self._fresh_bytes -= found[1]
        return found

    async def _publish_all(self) -> None:
        while True:
            await self._to_publish.wait()
            self._to_publish.clear()
            while self.waiting:
                try:
                    await self._publish_batch()
                except (OSError, StatusError, PubSubError, QueueFullError) as exc:
                    # Nothing is lost, and the next look may find the disk well.
                    _LOG.error("events can't be read from the queue", topic=self.topic, reason=str(exc))
                    await asyncio.sleep(_FAULT_SECONDS)
                except Exception:  # noqa: BLE001  the same
                    _LOG.exception("events can't be read from the queue", topic=self.topic)
                    await asyncio.sleep(_FAULT_SECONDS)

    async def _check_read(self) -> None:
        """Return unless Pub/Sub says that nothing subscribes to the topic.

        Raises:
            TopicUnreadError: it does; what would be published is gone.
        """
        state = None
        if self._directory is not None:
            # Where Pub/Sub does not answer, the publish says so.
            with suppress(PubSubError):
                state = await self._directory.find(self.topic)
        if state is TopicState.UNREAD:
            raise TopicUnreadError(f"The topic {self.topic} has no subscription, so its events stay in the queue.")

    async def _publish_batch(self) -> None:
        await self._check_read()
        batch = self._take_fresh()
        if batch is None:
            batch = await asyncio.to_thread(self._read_batch)
        for seq in batch.seqs if self._fresh else ():
            self._forget(seq)
        assert self.sender is not None
        # Awaited one after the other: most are done when the first one is.
        futures = [self.sender.send(message) for message in batch.messages]
        outcomes = [await outcome_of(future) for future in futures]
        left: list[int] = []
        fault: BaseException | None = None
        for at, outcome in enumerate(outcomes):
            if isinstance(outcome, MessageRefusedError) and fault is None:
                try:
                    await asyncio.to_thread(self._set_aside, batch.messages[at], outcome.message)
                except (OSError, QueueFullError) as exc:
                    fault = exc
            elif outcome is not None and not isinstance(outcome, MessageRefusedError):
                raise outcome
            if isinstance(outcome, MessageRefusedError) and fault is not None:
                left.append(at)
        self._note(batch, left)
        if fault is not None:
            # The others are published, and noted: these alone are tried again.
            raise fault

    def _take_fresh(self) -> _Batch | None:
        """Return the next events when they are in memory, None when the disk has to be read."""
        start, end = self._published.acked.floor, self._end
        if start not in self._fresh or self._published.acked.count_missing(end) != end - start:
            return None
        seqs: list[int] = []
        found: list[tuple[bytes, int]] = []
        for seq in range(start, start + MAX_PUBLISH_REQUEST_MESSAGES):
            if (each := self._forget(seq)) is None:
                break
            seqs.append(seq)
            found.append(each)
        return _Batch(start, start + len(seqs), seqs, [size for _, size in found], [each for each, _ in found])

    def _read_batch(self) -> _Batch:
        """Return the next events to publish."""
        floor, end = self._published.acked.floor, self._end
        start = self._next if floor < self._next < end else floor
        seqs = self._find_waiting(start, end, MAX_PUBLISH_REQUEST_MESSAGES)
        end = int(seqs[-1]) + 1 if len(seqs) else end
        while len(seqs):
            try:
                lengths = self._log.read_lengths(seqs)
                fitting = max(1, int(np.searchsorted(np.cumsum(lengths), _BATCH_BYTES, side="right")))
                if fitting < len(seqs):
                    seqs, lengths = seqs[:fitting], lengths[:fitting]
                    end = int(seqs[-1]) + 1
                raw = self._log.read(seqs, lengths).tobytes()
            except DamagedError as exc:
                # The log has reported them and kept their bytes aside.
                _LOG.error("events are damaged on disk", topic=self.topic, events=len(exc.seqs))
                seqs = seqs[~np.isin(seqs, exc.seqs)]
                continue
            ends = np.cumsum(lengths).tolist()
            records = (raw[b - n : b] for n, b in zip(lengths.tolist(), ends, strict=True))
            messages = [_message_of(read_message(record)) for record in records]
            return _Batch(start, end, seqs.tolist(), lengths.tolist(), messages)
        return _Batch(start, end, [], [], [])

    def _set_aside(self, message: bytes, reason: str) -> None:
        """Keep a message that Pub/Sub does not take; durable."""
        self._refused.append(self.topic, decode_message(message), reason)
        _LOG.error("Pub/Sub refuses an event", topic=self.topic, reason=reason, kept=str(self._refused.path))

    def _note(self, batch: _Batch, left: Sequence[int]) -> None:
        """Note that a batch is published but for those ``left``, and delete the segments that hold no others."""
        self._next = batch.end
        runs = _runs_between(batch.start, batch.end, [batch.seqs[at] for at in left])
        try:
            self._published.record(runs)
        except StatusError as exc:
            # On a full disk it counts for this process alone: segments that are deleted make room, and after a
            # kill these events are published again.
            _LOG.error("the queue's position can't be written", topic=self.topic, reason=exc.text)
            for start, end in runs:
                self._published.acked.add(start, end)
        self._log.delete_before(self._published.acked.floor)
        done = sum(batch.lengths) - sum(batch.lengths[at] for at in left)
        # Measured where damage has taken some: they would be counted for ever.
        self.stored_bytes = self.stored_bytes - done if self.waiting else 0


def _runs_between(start: int, end: int, gaps: Sequence[int]) -> list[tuple[int, int]]:
    """Return the runs of numbers in [start, end) around single ones.

    Example:
        >>> _runs_between(0, 9, [3, 4])
        [(0, 3), (5, 9)]
    """
    edges = [start - 1, *gaps, end]
    return [(a + 1, b) for a, b in pairwise(edges) if a + 1 < b]


def _message_of(body: bytes) -> bytes:
    (length,) = _LENGTH.unpack_from(body)
    return body[_LENGTH.size : _LENGTH.size + length]


def _folder_name(topic: str) -> str:
    """Return the name of the folder of a topic's events.

    Example:
        >>> _folder_name("orders"), _folder_name("Refused.ndjson")
        ('orders', '_Refused.ndjson')
    """
    return f"{_OWN_MARK}{topic}" if topic.lower() in _OWN_FILES else topic


def _make_folder(folder: Path) -> None:
    """Make a folder whose name, and those of the folders that it needs, survive a power cut."""
    missing = [each for each in folder.parents if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    # The folder's own name always: a kill may have come between the two before.
    for each in (folder, *missing):
        sync_folder(each.parent)


def _lock(folder: Path) -> int:
    # No topic's name begins with a dot, and each topic has a folder here.
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        os.close(descriptor)
        raise LeaseHeldError(
            f"Another collector uses the queue in {folder}. Give each collector its own home."
        ) from exc
    return descriptor
