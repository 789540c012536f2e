"""Events on disk until Pub/Sub has them: a log of segments for each topic, drained in its order."""

import asyncio
import base64
import fcntl
import json
import os
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import structlog

from connectors.pubsub.client import PubSub
from connectors.pubsub.sending import Sender, decode_message
from local.acklog import AckLog
from local.damage import DamagedError
from local.files import sync_folder
from local.segments import MessageLog
from local.status import StatusError
from local.wire import read_message
from model.errors import (
    InvalidNameError,
    LeaseHeldError,
    MessageRefusedError,
    PubSubError,
    QueueFullError,
    RefeedError,
)
from model.message import MAX_PUBLISH_REQUEST_MESSAGES, parse_resource_id

_LOG: Final = structlog.get_logger()
SEGMENT_BYTES: Final = 8 * 1024 * 1024
# A log numbers its messages with ids of 16 digits; the queue does not use them.
_FIRST_ID: Final = 10**15
_LENGTH: Final = struct.Struct("<I")
# What a topic reads at once to publish it.
_BATCH_BYTES: Final = 8_000_000
# How long an end waits for what Pub/Sub could still take.
_DRAIN_SECONDS: Final = 5.0
_FAULT_SECONDS: Final = 5.0
_RECORD_BYTES: Final = 100


class QueueDelivery:
    """Answers for an event once it is on disk, and publishes it after that.

    Every event goes through the disk, so those of a topic are published in the order in which they were answered,
    also when some of them had to wait. An event is published at least once, with the uuid that its sender was
    told, over kill -9 at any point; what was under way may be published twice. ``max_bytes`` bounds what waits; on
    disk there is up to a segment (8 MB) a topic more. A message that Pub/Sub refuses goes to ``refused.ndjson`` in
    ``folder``.

    Raises:
        LeaseHeldError: another process has the queue.
    """

    status = 202

    def __init__(
        self, pubsub: PubSub, folder: Path, *, max_bytes: int, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self._pubsub = pubsub
        self._folder = folder
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        # Counted before they are on disk: many requests may be on their way there.
        self._arriving_bytes = 0
        self._topics: dict[str, _TopicQueue] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(folder)

    @property
    def waiting_bytes(self) -> int:
        """How many bytes wait for Pub/Sub, or for the disk."""
        return self._arriving_bytes + sum(queue.stored_bytes for queue in self._topics.values())

    async def start(self) -> None:
        """Open the logs of all topics and go on with what they hold."""
        for path in sorted(self._folder.iterdir()):
            if path.is_dir() and _is_topic(path.name):
                queue = await asyncio.to_thread(self._open, path.name)
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
        if self.waiting_bytes + size > self._max_bytes:
            full = QueueFullError("The collector's queue is full; nothing of this request was taken.")
            return [full] * len(messages)
        queue = self._topics.get(topic)
        if queue is None:
            queue = self._begin(self._open(topic))
        self._arriving_bytes += size
        try:
            error = await queue.write(messages) if messages else None
        finally:
            self._arriving_bytes -= size
        return [error] * len(messages)

    def problems(self) -> Mapping[str, str]:
        """Return the last error of each topic that has published nothing since."""
        senders = {name: queue.sender for name, queue in self._topics.items()}
        return {name: each.last_error.message for name, each in senders.items() if each and each.last_error}

    def waiting_events(self) -> dict[str, int]:
        """Return how many events of each topic wait for Pub/Sub."""
        return {name: queue.waiting for name, queue in self._topics.items()}

    def _open(self, topic: str) -> "_TopicQueue":
        queue = _TopicQueue(self._folder, topic, segment_bytes=self._segment_bytes)
        sync_folder(self._folder)
        return queue

    def _begin(self, queue: "_TopicQueue") -> "_TopicQueue":
        self._topics[queue.topic] = queue
        sender = Sender(
            self._pubsub.channel, self._pubsub.topic_path(queue.topic), give_up_seconds=None, in_flight=1
        )
        queue.start(sender)
        return queue


class _TopicQueue:
    """One topic's log: who writes waits for the disk together with others, one task publishes."""

    def __init__(self, folder: Path, topic: str, *, segment_bytes: int) -> None:
        self.topic = topic
        self.sender: Sender | None = None
        self._refused_path = folder / "refused.ndjson"
        self._log = MessageLog(
            folder / topic, _FIRST_ID, owner=f"queue of {topic}", segment_bytes=segment_bytes, fsync=True
        )
        # Without fsync: what it loses in a power cut is published again.
        self._published = AckLog(folder / topic / "published", self._log.first_seq, owner=f"queue of {topic}")
        self._log.claim(self._published.acked.floor)
        self._log.fill_missing(self._published.acked)
        self.stored_bytes = self._measure(self._published.acked.floor, self._log.next_seq)
        self._writing: list[tuple[Sequence[bytes], asyncio.Future[RefeedError | None]]] = []
        self._to_write = asyncio.Event()
        self._to_publish = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def waiting(self) -> int:
        """How many events are on disk and not published."""
        return self._published.acked.count_missing(self._log.next_seq)

    def _measure(self, start: int, end: int) -> int:
        """Return how many bytes the events in [start, end) have on disk."""
        return int(self._log.read_lengths(self._find_waiting(start, end)).sum())

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
            _LOG.info("events wait from before", topic=self.topic, events=self.waiting)
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
                self.stored_bytes += await asyncio.to_thread(self._append, bodies)
            except StatusError as exc:
                error = QueueFullError(f"{exc.text} Nothing of this request was taken.")
                _LOG.error("the queue can't be written", topic=self.topic, reason=exc.text)
            except Exception:  # noqa: BLE001  a task that ends would leave every later request without an answer
                error = QueueFullError("The queue can't be written. Nothing of this request was taken.")
                _LOG.exception("the queue can't be written", topic=self.topic)
            for _, future in taken:
                if not future.done():
                    future.set_result(error)
            self._to_publish.set()

    def _append(self, bodies: Sequence[bytes]) -> int:
        first = self._log.append(bodies)
        return self._measure(first, first + len(bodies))

    async def _publish_all(self) -> None:
        while True:
            await self._to_publish.wait()
            self._to_publish.clear()
            while self.waiting:
                try:
                    await self._publish_batch()
                except (OSError, StatusError, PubSubError) as exc:
                    # Nothing is lost, and the next look may find the disk well.
                    _LOG.error("events can't be taken out of the queue", topic=self.topic, reason=str(exc))
                    await asyncio.sleep(_FAULT_SECONDS)
                except Exception:  # noqa: BLE001  the same
                    _LOG.exception("events can't be taken out of the queue", topic=self.topic)
                    await asyncio.sleep(_FAULT_SECONDS)

    async def _publish_batch(self) -> None:
        end, size, messages = await asyncio.to_thread(self._read_batch)
        assert self.sender is not None
        outcomes = await asyncio.gather(*map(self.sender.send, messages), return_exceptions=True)
        for message, outcome in zip(messages, outcomes, strict=True):
            if isinstance(outcome, MessageRefusedError):
                await asyncio.to_thread(self._set_aside, message, outcome.message)
            elif outcome is not None:
                raise outcome
        self._note(end)
        # Measured where damage has taken some: they would be counted for ever.
        self.stored_bytes = self.stored_bytes - size if self.waiting else 0

    def _read_batch(self) -> tuple[int, int, list[bytes]]:
        """Return where the next batch ends, its bytes on disk, and its messages."""
        floor, end = self._published.acked.floor, self._log.next_seq
        seqs = self._find_waiting(floor, end, MAX_PUBLISH_REQUEST_MESSAGES)
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
            return end, len(raw), [_message_of(read_message(record)) for record in records]
        return end, 0, []

    def _set_aside(self, message: bytes, reason: str) -> None:
        """Keep a message that Pub/Sub does not take, as a line that 'refeed publish' reads; durable."""
        found = decode_message(message)
        line = {
            "topic": self.topic,
            "reason": reason,
            "attributes": found.attributes,
            "data_base64": base64.b64encode(found.data).decode(),
        }
        with self._refused_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        _LOG.error("Pub/Sub refuses an event", topic=self.topic, reason=reason, kept=str(self._refused_path))

    def _note(self, end: int) -> None:
        """Note that the events up to ``end`` are published, and delete the segments that hold no others."""
        self._published.record([(self._published.acked.floor, end)])
        self._log.delete_before(end)


def _message_of(body: bytes) -> bytes:
    (length,) = _LENGTH.unpack_from(body)
    return body[_LENGTH.size : _LENGTH.size + length]


def _is_topic(name: str) -> bool:
    try:
        parse_resource_id(name)
    except InvalidNameError:
        return False
    return True


def _lock(folder: Path) -> int:
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        os.close(descriptor)
        raise LeaseHeldError(
            f"Another collector has the queue in {folder}; give each one a home of its own."
        ) from exc
    return descriptor
