"""Records of Kinesis become messages: taken out of their aggregates, with our attributes, published in order."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import structlog

from collector.event import KINESIS_PREFIX, Identity, own_attributes
from collector.refused import RefusedFile
from connectors.kinesis.aggregation import split_aggregate
from connectors.kinesis.client import ShardRecord
from connectors.pubsub.client import PubSub
from connectors.pubsub.publish import GAVE_UP, KEY_STOPPED, Publisher, Room, make_batch
from model.errors import PubSubError, PubSubUnavailableError, StorageFullError, TopicUnreadError
from model.message import Message
from model.moment import render_time
from streams.positions import ShardPosition

_LOG: Final = structlog.get_logger()
# What a kill may have published without a note of it, for each shard that is read at the moment.
CHUNK_MESSAGES: Final = 1_000
_READ_SECONDS: Final = 10.0


class Part(NamedTuple):
    """A message, and how far its shard is done once it is published."""

    message: Message
    position: ShardPosition


class AbandonedError(Exception):
    """The stream ended while messages were published: those are not done."""


class RecordReader:
    """Makes messages of the records of one Kinesis stream."""

    def __init__(self, stream: str, *, topic: str, source: str) -> None:
        self._stream = stream
        self._shared = {**own_attributes(topic, source), f"{KINESIS_PREFIX}stream": stream}

    def split(self, shard: str, record: ShardRecord, done: ShardPosition) -> Iterator[Part]:
        """Yield the messages of a record that are not ``done`` yet: one, or those that were packed into it.

        The payload is the producer's, byte for byte, and its partition key is the ordering key. The id is the same
        each time that the record is read.
        """
        found = split_aggregate(record.data)
        pieces = [(record.partition_key, record.data)] if found is None else found
        number = record.sequence_number
        first = 0
        if done.sequence_number == number and done.subsequence is not None:
            first = done.subsequence + 1
        for at, (key, data) in enumerate(pieces[first:], first):
            identity = Identity(event_uuid(self._stream, shard, number, at), render_time(record.arrived_at) or "")
            attributes = {
                **self._shared,
                **identity._asdict(),
                f"{KINESIS_PREFIX}shard": shard,
                f"{KINESIS_PREFIX}sequence_number": number,
                f"{KINESIS_PREFIX}subsequence_number": str(at),
            }
            position = ShardPosition(number, None if at == len(pieces) - 1 else at)
            yield Part(Message(data, attributes, ordering_key=key), position)


def event_uuid(stream: str, shard: str, sequence_number: str, subsequence: int) -> str:
    """Return the id of one event: the same one each time that it is read.

    Example:
        >>> event_uuid("orders", "shardId-000000000000", "4954", 0)
        '77f3d06e-9c1a-5ec6-9859-11caaa9e362c'
    """
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"kinesis:{stream}/{shard}/{sequence_number}/{subsequence}"))


def cut_chunks(parts: Iterator[Part], *, max_bytes: int) -> Iterator[list[Part]]:
    """Yield the parts in runs of 1,000 at most, each ended earlier by ``max_bytes`` of payload."""
    chunk: list[Part] = []
    size = 0
    for part in parts:
        chunk.append(part)
        size += len(part.message.data)
        if len(chunk) >= CHUNK_MESSAGES or size >= max_bytes:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class ReadTopic:
    """A topic that something has to subscribe to, since Pub/Sub would keep its messages for nobody.

    It is looked for every ten seconds at most; safe to use from many threads.
    """

    def __init__(self, pubsub: PubSub, topic: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._pubsub = pubsub
        self._topic = topic
        self._clock = clock
        self._lock = threading.Lock()
        self._until = clock()

    def check(self) -> None:
        """Return unless Pub/Sub says that nothing subscribes to the topic.

        Raises:
            TopicUnreadError: it does.
        """
        with self._lock:
            if self._clock() < self._until:
                return
            try:
                is_read = self._pubsub.is_topic_read(self._topic)
            except PubSubError:
                # The publish says so.
                return
            if not is_read:
                raise TopicUnreadError(
                    f"The topic {self._topic} has no subscription, so Pub/Sub would not keep its messages."
                )
            self._until = self._clock() + _READ_SECONDS


class ChunkPublisher:
    """Publishes chunks of messages in the order of their keys, for several threads.

    A message that Pub/Sub refuses for good is kept in ``refused`` with its reason, and those after it that have
    its key go on. With ``read`` nothing is published while nothing subscribes to the topic.
    """

    def __init__(
        self, publisher: Publisher, *, topic: str, refused: RefusedFile, read: ReadTopic | None = None
    ) -> None:
        self._publisher = publisher
        self._read = read
        self._topic = topic
        self._refused = refused

    def publish(self, chunk: Sequence[Message], *, room: Room) -> int:
        """Return once each message is published or set aside, and how many were set aside.

        Raises:
            AbandonedError: ``room`` said that nothing more is to go out; some may be published.
            TopicUnreadError: nothing subscribes to the topic; none is published.
            PubSubError: Pub/Sub does not take them now; some may be published.
            StorageFullError, QueueFullError: what it refuses can't be kept.
        """
        if self._read is not None:
            self._read.check()
        # Keys side by side, so that a request can hold many messages of one; each key's order stays.
        left = sorted(chunk, key=lambda message: message.ordering_key)
        refused = 0
        while left:
            held: list[Message] = []
            confirmed = 0
            for confirmation in self._publisher.publish_arrow(make_batch(left), room=room, by_key=True):
                confirmed += confirmation.rows
                for each in confirmation.refused:
                    if each.reason == KEY_STOPPED:
                        held.append(left[each.row])
                    elif each.reason.startswith(GAVE_UP):
                        raise PubSubUnavailableError(f"Pub/Sub did not accept a message: {each.reason}")
                    else:
                        self._keep(left[each.row], each.reason)
                        refused += 1
            if confirmed < len(left):
                raise AbandonedError
            left = held
        return refused

    def _keep(self, message: Message, reason: str) -> None:
        try:
            self._refused.append(self._topic, message, reason)
        except OSError as exc:
            raise StorageFullError(f"{self._refused.path} can't be written: {exc}") from exc
        _LOG.error("Pub/Sub refuses an event", topic=self._topic, reason=reason, kept=str(self._refused.path))
