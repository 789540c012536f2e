"""What chaos publishes: twenty topics of messages of every nasty kind, two of them with entities among them."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Final, Protocol, Self

from google.pubsub_v1.types import AcknowledgeRequest, PullRequest, PullResponse

from connectors.pubsub.client import PubSub
from connectors.pubsub.publish import Publisher
from model.errors import PubSubError
from model.message import BACKFILL_ID_ATTRIBUTE, REPLAY_ATTRIBUTE, REPLAY_TAGS, ROW_ATTRIBUTE, Message

TOPICS: Final = tuple(f"topic-{number:02d}" for number in range(20))
# Those that the pipeline makes rows of: one after a protobuf schema, one after what its messages look like.
ORDERS, EVENTS = TOPICS[-2:]
ORACLE: Final = "oracle."
_BATCH: Final = 25
_PAUSE_SECONDS: Final = 0.25
_KEYS: Final = 40
_DEEP: Final = 100_000
APPEND_BYTES: Final = 9_500_000
# Nearly all that a message may have, and more than an append to BigQuery may have here.
_LARGE_BYTES: Final = 9_900_000
# The first goes to topic-00, which is archived only, the second to the pipeline's first topic.
_LARGE_AT: Final = (500, 950)
_MAX_ATTRIBUTES: Final = 100

# Topic and message id.
Key = tuple[str, str]
# Id, version, customer.
Entity = tuple[int, int, str]


def topic_of(number: int) -> str:
    return TOPICS[number // _BATCH % len(TOPICS)]


def nasty_message(seed: int, number: int) -> Message:
    """Return a message that is one of many kinds: empty, text that is none, NUL bytes, a producer's own tags."""
    attributes = {"n": str(number)}
    data = f'{{"n": {number}}}'.encode()
    if number % 2000 in _LARGE_AT:
        return Message(data=bytes(range(256)) * (_LARGE_BYTES // 256), attributes=attributes)
    match (number * 7 + seed) % 12:
        case 0:
            data = b""
        case 1:
            data = b"\x00" * 100 + bytes([number % 256])
        case 2:
            data = b"\xff\xfe not utf-8 \x80" + str(number).encode()
        case 3:
            data = b'{"a": 1, "a": 2, "n": %d}' % number
        case 4:
            data = b"[" * _DEEP + b"]" * _DEEP if number % 5 == 0 else b'{"a":' * 500 + b"1" + b"}" * 500
        case 5:
            attributes |= {"refeed_replay": "mine", "refeed_backfill_id": "bf_mine", "refeed_row": "-1"}
        case 6:
            # One hundred with "n": a replay of it has no room for its tags.
            key, value = ("k" * 254, "v" * 1024) if number % 5 == 0 else ("key", "v")
            attributes |= {f"{place:02d}{key}": value for place in range(99)}
        case 7:
            attributes |= {"ключ": "värde🙂", "empty": ""}
        case _:
            data *= 1 + number % 20
    return Message(data=data, attributes=attributes)


def entity_message(seed: int, number: int) -> Message:
    """Return a version of one of forty entities; every fifth is a nasty message instead."""
    if number % 5 == 0:
        return nasty_message(seed, number)
    body = {"id": 1 + (number * 13 + seed) % _KEYS, "version": number, "customer": f"c{number}"}
    return Message(data=json.dumps(body).encode(), attributes={"n": str(number)})


@dataclass(frozen=True, slots=True)
class Taken:
    """One message that a topic took, as its oracle's subscription has it; a replay says of which message."""

    key: Key
    publish_time: datetime
    digest: bytes
    size_bytes: int
    entity: Entity | None
    has_room_for_tags: bool
    backfill_id: str | None = None
    row: int | None = None
    original: Key | None = None


def take(topic: str, message: Any, token: str) -> Taken:
    """Return what the oracle keeps of a message; ``token`` is the topic's own, which only replays carry."""
    attributes = dict(message.attributes)
    own = {name: value for name, value in attributes.items() if name not in REPLAY_TAGS}
    replay: dict[str, Any] = {}
    if attributes.get(REPLAY_ATTRIBUTE) == token:
        replay = {
            "backfill_id": attributes[BACKFILL_ID_ATTRIBUTE],
            "row": int(attributes[ROW_ATTRIBUTE]),
            "original": (attributes["refeed_topic"], attributes["refeed_message_id"]),
        }
    return Taken(
        (topic, message.message_id),
        message.publish_time.astimezone(UTC),
        digest(message.data, own if replay else attributes, "" if replay else message.ordering_key),
        len(message.data),
        _entity(topic, message.data),
        len(own) + len(REPLAY_TAGS) <= _MAX_ATTRIBUTES,
        **replay,
    )


def _entity(topic: str, data: bytes) -> Entity | None:
    if topic != ORDERS or not data.startswith(b'{"id": '):
        return None
    body = json.loads(data)
    return body["id"], body["version"], body["customer"]


def digest(data: bytes, attributes: dict[str, str], ordering_key: str) -> bytes:
    """Return bytes that are the same for the same message only."""
    whole = blake2b(data, digest_size=16)
    for key, value in sorted(attributes.items()):
        for text in (key, value):
            encoded = text.encode()
            whole.update(len(encoded).to_bytes(4, "big") + encoded)
    whole.update(ordering_key.encode())
    return whole.digest()


def replayed_digest(data: bytes, attributes: dict[str, str]) -> bytes:
    """Return the digest that a replay of this message has: its own attributes give way to tags of their names."""
    return digest(data, {name: value for name, value in attributes.items() if name not in REPLAY_TAGS}, "")


class Tokens(Protocol):
    """Says a topic's replay token."""

    def __call__(self, topic: str) -> str: ...


class Ear:
    """Everything that topics took, from subscriptions that nothing else reads.

    What they hold is what Pub/Sub took, also where the answer to a publish was lost with a killed server.
    """

    def __init__(self, pubsub: PubSub, token_of: Tokens) -> None:
        self._pubsub = pubsub
        self._token_of = token_of
        self._topics: list[str] = []
        self._taken: dict[Key, Taken] = {}
        self._replayed: dict[Key, bytes] = {}
        self._lock = threading.Lock()

    def open(self, topic: str) -> None:
        self._pubsub.create_topic(topic)
        self._pubsub.create_subscription(f"{ORACLE}{topic}", topic)
        self._topics.append(topic)

    def listen(self) -> dict[Key, Taken]:
        with self._lock:
            for topic in list(self._topics):
                self._drain(topic)
            return dict(self._taken)

    def replayed_digests(self) -> dict[Key, bytes]:
        """Return what a replay of each message that was heard has to look like."""
        with self._lock:
            return dict(self._replayed)

    def _drain(self, topic: str) -> None:
        """Take, and acknowledge, everything that a topic's subscription has."""
        token = self._token_of(topic)
        for message in drain_topic(self._pubsub, topic):
            found = take(topic, message, token)
            self._taken[found.key] = found
            if found.backfill_id is None:
                self._replayed[found.key] = replayed_digest(message.data, dict(message.attributes))


def drain_topic(pubsub: PubSub, topic: str) -> Iterator[Any]:
    """Yield, and acknowledge, everything that the oracle's subscription of a topic has."""
    path = pubsub.subscription_path(f"{ORACLE}{topic}")
    pull = pubsub.channel.unary_unary(
        "/google.pubsub.v1.Subscriber/Pull", PullRequest.serialize, PullResponse.deserialize
    )
    acknowledge = pubsub.channel.unary_unary(
        "/google.pubsub.v1.Subscriber/Acknowledge", AcknowledgeRequest.serialize, None
    )
    request = PullRequest(subscription=path, max_messages=1_000, return_immediately=True)
    while received := pull(request, timeout=60).received_messages:
        yield from (one.message for one in received)
        ids = [one.ack_id for one in received]
        acknowledge(AcknowledgeRequest(subscription=path, ack_ids=ids), timeout=60)


class SteadyPublisher:
    """Publishes numbered messages to every topic in turn from a thread; a server that is away is tried again."""

    def __init__(self, pubsub: PubSub, seed: int) -> None:
        self._pubsub = pubsub
        self._seed = seed
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self.confirmed = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stopped.wait(_PAUSE_SECONDS):
            topic = topic_of(number * _BATCH)
            make = entity_message if topic in {ORDERS, EVENTS} else nasty_message
            messages = [make(self._seed, number * _BATCH + place) for place in range(_BATCH)]
            publisher = Publisher(self._pubsub.channel, self._pubsub.topic_path(topic))
            try:
                self.confirmed += len(publisher.publish(messages))
            except PubSubError:
                # Taken or not: the oracle's subscription knows.
                continue
            finally:
                number += 1
