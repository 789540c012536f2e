"""What chaos breaks, and the oracle that says whether anything was lost: a stream and twenty topics under load."""

import os
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Self

import pyarrow.parquet as pq
from google.pubsub_v1.types import AcknowledgeRequest, PullRequest, PullResponse

from cli.processes import Child, Children
from connectors.lake.archive import LakeArchive
from connectors.pubsub.publish import Publisher
from model.errors import PubSubError
from model.message import Message
from tests.acceptance.conftest import Backyard, wait_for

TOPICS = tuple(f"topic-{number:02d}" for number in range(20))
_ORACLE = "oracle."
_BATCH = 25
_PAUSE_SECONDS = 0.25


@dataclass(frozen=True)
class Difference:
    """What the archive and Pub/Sub do not agree on, by (topic, message_id)."""

    lost: tuple[tuple[str, str], ...]
    duplicated: tuple[tuple[str, str], ...]
    changed: tuple[tuple[str, str], ...]

    def __bool__(self) -> bool:
        return bool(self.lost or self.duplicated or self.changed)


class ChaosYard(Backyard):
    """A home whose every topic has a second subscription, which nothing but the oracle reads.

    What that one holds is what Pub/Sub took, also where the answer to a publish was lost with a killed server.
    """

    def __init__(self, home: Path, children: Children) -> None:
        super().__init__(home, children)
        self.attach(*TOPICS)
        for topic in TOPICS:
            self.pubsub.create_subscription(f"{_ORACLE}{topic}", topic)

    def publishing(self, seed: int) -> "SteadyPublisher":
        """Return what publishes until its block ends."""
        return SteadyPublisher(self, seed)

    def compare(self) -> tuple[int, Difference]:
        """Return how many messages Pub/Sub took, and where the archive has not each of them once, bit for bit."""
        archived: Counter[tuple[str, str]] = Counter()
        changed: list[tuple[str, str]] = []
        taken = self._taken()
        archive = LakeArchive(self.settings.lake, self.settings.archive_table)
        for file in archive.data_files():
            for row in pq.ParquetFile(file.path).read().to_pylist():
                key = (row["topic"], row["message_id"])
                archived[key] += 1
                attributes = {pair["key"]: pair["value"] for pair in row["attributes"]}
                if taken.get(key) != digest(row["data"], attributes, row["ordering_key"]):
                    changed.append(key)
        return len(taken), Difference(
            tuple(sorted(taken.keys() - archived.keys())),
            tuple(sorted(key for key, count in archived.items() if count > 1)),
            tuple(sorted(changed)),
        )

    def _taken(self) -> dict[tuple[str, str], bytes]:
        taken: dict[tuple[str, str], bytes] = {}
        for topic in TOPICS:
            for message in self.drain(f"{_ORACLE}{topic}"):
                attributes = dict(message.attributes)
                taken[topic, message.message_id] = digest(message.data, attributes, message.ordering_key)
        return taken

    def drain(self, subscription: str) -> Iterator[object]:
        """Yield, and acknowledge, everything that a subscription has."""
        path = self.pubsub.subscription_path(subscription)
        pull = self.pubsub.channel.unary_unary(
            "/google.pubsub.v1.Subscriber/Pull", PullRequest.serialize, PullResponse.deserialize
        )
        acknowledge = self.pubsub.channel.unary_unary(
            "/google.pubsub.v1.Subscriber/Acknowledge", AcknowledgeRequest.serialize, None
        )
        request = PullRequest(subscription=path, max_messages=5_000, return_immediately=True)
        while received := pull(request, timeout=30).received_messages:
            yield from (each.message for each in received)
            ids = [each.ack_id for each in received]
            acknowledge(AcknowledgeRequest(subscription=path, ack_ids=ids), timeout=30)


class SteadyPublisher:
    """Publishes numbered messages to every topic in turn from a thread; a server that is away is tried again."""

    def __init__(self, yard: ChaosYard, seed: int) -> None:
        self._yard = yard
        self._seed = seed
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self.confirmed = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stopped.wait(_PAUSE_SECONDS):
            topic = TOPICS[number % len(TOPICS)]
            messages = [nasty_message(self._seed, number * _BATCH + place) for place in range(_BATCH)]
            publisher = Publisher(self._yard.pubsub.channel, self._yard.pubsub.topic_path(topic))
            try:
                self.confirmed += len(publisher.publish(messages))
            except PubSubError:
                # Taken or not: the oracle's subscription knows.
                continue
            finally:
                number += 1


def nasty_message(seed: int, number: int) -> Message:
    """Return a message that is one of many kinds: empty, text that is none, NUL bytes, a producer's own tags."""
    kind = (number * 7 + seed) % 11
    attributes = {"n": str(number)}
    data = f'{{"n": {number}}}'.encode()
    match kind:
        case 0:
            data = b""
        case 1:
            data = b"\x00" * 100 + bytes([number % 256])
        case 2:
            data = b"\xff\xfe not utf-8 \x80" + str(number).encode()
        case 3:
            data = b'{"a": 1, "a": 2, "n": %d}' % number
        case 4:
            data = b"[" * 10_000 + b"]" * 10_000
        case 5:
            attributes |= {"refeed_replay": "mine", "refeed_backfill_id": "bf_mine", "refeed_row": "-1"}
        case 6:
            attributes |= {f"key-{place}": "v" * (1 + number % 1000) for place in range(99)}
        case 7:
            attributes |= {"ключ": "värde🙂", "empty": ""}
        case _:
            data *= 1 + number % 20
    return Message(data=data, attributes=attributes)


def digest(data: bytes, attributes: dict[str, str], ordering_key: str) -> bytes:
    """Return a text that is the same for the same message only."""
    whole = blake2b(data, digest_size=16)
    for key, value in sorted(attributes.items()):
        for text in (key, value):
            encoded = text.encode()
            whole.update(len(encoded).to_bytes(4, "big") + encoded)
    whole.update(ordering_key.encode())
    return whole.digest()


def descendants(pid: int) -> dict[str, list[int]]:
    """Return the processes below ``pid`` by the name of their program, deepest last."""
    children: dict[int, list[int]] = defaultdict(list)
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            name, _, rest = (entry / "stat").read_text().rpartition(")")
        except OSError:
            continue
        names[int(entry.name)] = name.partition("(")[2]
        children[int(rest.split()[1])].append(int(entry.name))
    found: dict[str, list[int]] = defaultdict(list)
    waiting = list(children[pid])
    while waiting:
        each = waiting.pop(0)
        found[names[each]].append(each)
        waiting += children[each]
    return found


def suspend(pid: int, seconds: float, stopped: threading.Event) -> None:
    """Stop a process for a while, as a machine that swaps or a paused container does."""
    os.kill(pid, signal.SIGSTOP)
    try:
        stopped.wait(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)


def wait_until_drained(yard: ChaosYard, backup: Child, seconds: float) -> None:
    """Wait until the backup subscriptions have nothing left; the oracle's own do not count."""

    def is_drained() -> bool:
        if not backup.is_running:
            raise backup.ended_error()
        return backup_backlog(yard) == 0

    wait_for(is_drained, seconds=seconds, why=f"all is archived; the stream's log: {backup.log_tail()}")


def backup_backlog(yard: ChaosYard) -> int:
    """Return how many messages the backup subscriptions have not had acknowledged."""
    return sum(
        stats["undelivered_messages"] + stats["leased_messages"]
        for name, stats in yard.stats().items()
        if "/refeed-backup." in name
    )
