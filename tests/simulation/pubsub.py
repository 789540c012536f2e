"""Pub/Sub as the simulation has it: it redelivers, reorders, answers late, and loses acknowledgements.

Each unkindness is one that Google documents: delivery at least once and in any order, an acknowledgement that is
lost or comes after its lease (https://cloud.google.com/pubsub/docs/subscriber), a Pull that brings less than there
is (PullRequest.max_messages, https://cloud.google.com/pubsub/docs/reference/rpc/google.pubsub.v1).
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import grpc
from google.pubsub_v1.types import AcknowledgeRequest, ModifyAckDeadlineRequest

from tests.simulation.kernel import World

PROJECT: Final = "p"
_DEADLINE_SECONDS: Final = 10.0
# An acknowledged message may be delivered again for this long; Google names no bound, Refeed keeps ids for longer.
_AGAIN_SECONDS: Final = 100.0


@dataclass(eq=False)
class Message:
    """One published message, in one subscription."""

    id: str
    topic: str
    published_at: float
    free_at: float = 0.0
    acked_at: float | None = None

    @property
    def publish_time(self) -> datetime:
        """When it was published."""
        return datetime.fromtimestamp(self.published_at, UTC)


@dataclass(eq=False)
class Subscription:
    """Messages of a topic on their way, and the leases on them."""

    id: str
    topic: str
    messages: dict[str, Message] = field(default_factory=dict)
    # The message of an ack id, and until when its lease is.
    leases: dict[str, tuple[Message, float]] = field(default_factory=dict)


class PubSub:
    """The server; it never fails as a whole, but each call may."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.subscriptions: dict[str, Subscription] = {}
        self.acked: list[Message] = []
        self.on_ack: Any = None
        self.away_until = 0.0
        self._published = 0
        self._pulls = 0

    def subscribe(self, topic: str) -> Subscription:
        """Make a subscription of a topic, with the name that a backup gives it."""
        made = self.subscriptions[f"refeed.{topic}"] = Subscription(f"refeed.{topic}", topic)
        return made

    def publish(self, topic: str, count: int) -> list[Message]:
        """Publish messages."""
        made = []
        for _ in range(count):
            self._published += 1
            message = Message(f"m{self._published}", topic, self.world.unix_seconds)
            self.subscriptions[f"refeed.{topic}"].messages[message.id] = message
            made.append(message)
        return made

    def pull(self, subscription: Subscription, most: int) -> list[tuple[Message, str]]:
        """Return some of the messages that nobody holds, with the ack id of each."""
        now, dice = self.world.now, self.world.random
        if self.happens_away():
            return []
        free = [
            message
            for message in subscription.messages.values()
            if (message.acked_at is None and message.free_at <= now and not self._comes_late(message))
            or (
                (message.acked_at is None or now - message.acked_at < _AGAIN_SECONDS)
                and self.world.happens("redelivered")
            )
        ]
        taken = dice.sample(free, min(len(free), most if dice.random() < 0.7 else dice.randint(0, most)))
        self._pulls += 1
        found = []
        for message in taken:
            ack_id = f"{message.id}-{self._pulls}"
            message.free_at = now + _DEADLINE_SECONDS
            subscription.leases[ack_id] = (message, message.free_at)
            found.append((message, ack_id))
        if found:
            self.world.say(f"   delivered {_list(message for message, _ in found)}")
        for ack_id, (message, until) in list(subscription.leases.items()):
            if until < now - _AGAIN_SECONDS:
                del subscription.leases[ack_id]
                if message.acked_at is not None:
                    subscription.messages.pop(message.id, None)
        return found

    def happens_away(self) -> bool:
        """Whether the server answers nobody for now; an outage may begin with the call."""
        if self.world.happens("pubsub away"):
            self.away_until = self.world.now + self.world.random.choice((20.0, 100.0, 150.0))
        return self.world.now < self.away_until and not self.world.is_calm

    def _comes_late(self, message: Message) -> bool:
        """Whether a message that was delivered before stays away, for longer than Refeed keeps ids of others."""
        if message.free_at and self.world.happens("late"):
            message.free_at = self.world.now + self.world.random.choice((100.0, 300.0, 700.0))
        return message.free_at > self.world.now

    def left(self) -> int:
        """Return how many messages are not acknowledged."""
        return sum(m.acked_at is None for s in self.subscriptions.values() for m in s.messages.values())

    def oldest(self) -> datetime:
        """Return when the oldest message was published that is not acknowledged."""
        times = [
            message.published_at
            for subscription in self.subscriptions.values()
            for message in subscription.messages.values()
            if message.acked_at is None
        ]
        return datetime.fromtimestamp(min(times, default=self.world.unix_seconds), UTC)

    def acknowledge(self, name: str, ack_ids: Iterable[str]) -> None:
        """Take acknowledgements; one whose lease is over has no effect, or has one."""
        subscription = self.subscriptions[name]
        taken = []
        for ack_id in ack_ids:
            message, until = subscription.leases.get(ack_id, (None, 0.0))
            if message is None or message.acked_at is not None:
                continue
            if until < self.world.now and self.world.random.random() < 0.5:
                continue
            self.on_ack(message)
            message.acked_at = self.world.now
            taken.append(message)
        self.world.say(f"   acknowledged {_list(taken)}")

    def extend(self, name: str, ack_ids: Iterable[str], seconds: float) -> None:
        """Extend leases that are not over, or end them."""
        subscription = self.subscriptions[name]
        for ack_id in ack_ids:
            message, until = subscription.leases.get(ack_id, (None, 0.0))
            if message is not None and until >= self.world.now and message.acked_at is None:
                message.free_at = self.world.now + seconds
                subscription.leases[ack_id] = (message, message.free_at)


class Channel:
    """A gRPC channel to it, for the two calls that are made by their bytes."""

    def __init__(self, pubsub: PubSub) -> None:
        self._pubsub = pubsub

    def unary_unary(self, method: str, **_: Any) -> "Channel._Call":
        """Return the call of a method."""
        return Channel._Call(self._pubsub, method.rpartition("/")[2])

    @dataclass(frozen=True)
    class _Call:
        pubsub: PubSub
        method: str

        def future(self, request: bytes, *, timeout: float) -> "_Answer":
            return _Answer(self.pubsub, self.method, request, timeout)


class RpcError(grpc.RpcError):
    """A call that failed."""

    def code(self) -> grpc.StatusCode:
        """Return its status."""
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        """Return its words."""
        return "the simulation's network"

    def trailing_metadata(self) -> tuple[()]:
        """Return nothing."""
        return ()


@dataclass
class _Answer:
    pubsub: PubSub
    method: str
    request: bytes
    timeout: float

    def result(self) -> bytes:
        """Wait for the answer: the request may be lost, or the answer alone."""
        world = self.pubsub.world
        world.step(self.method)
        if self.pubsub.happens_away() or world.happens("request lost"):
            world.step(f"{self.method} failed", self.timeout)
            raise RpcError
        self._apply()
        if world.happens("answer lost"):
            world.step(f"{self.method} failed", self.timeout)
            raise RpcError
        return b""

    def _apply(self) -> None:
        if self.method == "Acknowledge":
            ack = AcknowledgeRequest.pb().FromString(self.request)
            self.pubsub.acknowledge(ack.subscription.rpartition("/")[2], ack.ack_ids)
        else:
            extend = ModifyAckDeadlineRequest.pb().FromString(self.request)
            name = extend.subscription.rpartition("/")[2]
            self.pubsub.extend(name, extend.ack_ids, extend.ack_deadline_seconds)


def _list(messages: Iterable[Message]) -> str:
    return " ".join(message.id for message in messages)


def by_topic(messages: Iterable[Message]) -> dict[str, list[Message]]:
    """Return the messages by topic."""
    found: dict[str, list[Message]] = defaultdict(list)
    for message in messages:
        found[message.topic].append(message)
    return found
