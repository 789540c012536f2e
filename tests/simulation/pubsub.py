"""Pub/Sub as the simulation has it: it redelivers, reorders, answers late, and loses acknowledgements.

Each unkindness is one that Google documents: delivery at least once and in any order, an acknowledgement that is
lost or comes after its lease (https://cloud.google.com/pubsub/docs/subscriber), a Pull that brings less than there
is (PullRequest.max_messages, https://cloud.google.com/pubsub/docs/reference/rpc/google.pubsub.v1).
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, Final, Self

import grpc
from google.pubsub_v1.types import (
    AcknowledgeRequest,
    ModifyAckDeadlineRequest,
    PublishRequest,
    PullRequest,
    PullResponse,
)

from model.errors import PubSubUnavailableError
from tests.simulation.kernel import Process, Task, World

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
    late_until: float = 0.0
    acked_at: float | None = None

    @property
    def publish_time(self) -> datetime:
        return datetime.fromtimestamp(self.published_at, UTC)


@dataclass(eq=False)
class Subscription:
    """Messages of a topic on their way, and the leases on them."""

    id: str
    topic: str
    messages: dict[str, Message] = field(default_factory=dict)
    # The message of an ack id, and until when its lease is.
    leases: dict[str, tuple[Message, float]] = field(default_factory=dict)
    # Pulls that wait for a message.
    waiting: list[Task] = field(default_factory=list)
    # All that was ever published, for a seek.
    published: list[Message] = field(default_factory=list)


@dataclass(frozen=True)
class Snapshot:
    """The acknowledgements of a subscription at one moment: which messages were not, and how many there were."""

    id: str
    topic: str
    expires_at: datetime
    unacked: frozenset[Message]
    published: int


class PubSub:
    """The server; it never fails as a whole, but each call may."""

    def __init__(self, world: World, server: Process) -> None:
        self.world = world
        self.server = server
        self.subscriptions: dict[str, Subscription] = {}
        # The data of what the stream has published.
        self.out: set[str] = set()
        self.snapshots: dict[str, Snapshot] = {}
        self.on_ack: Any = None
        self._published = 0
        self._pulls = 0

    def subscribe(self, topic: str) -> Subscription:
        """Make a subscription of a topic, with the name that a backup gives it."""
        made = self.subscriptions[f"refeed.{topic}"] = Subscription(f"refeed.{topic}", topic)
        return made

    def publish(self, topic: str, count: int) -> list[Message]:
        made = []
        for _ in range(count):
            self._published += 1
            message = Message(f"m{self._published}", topic, self.world.unix_seconds)
            self.subscriptions[f"refeed.{topic}"].messages[message.id] = message
            self.subscriptions[f"refeed.{topic}"].published.append(message)
            made.append(message)
        self.world.wake(self.subscriptions[f"refeed.{topic}"].waiting)
        return made

    def pull(self, subscription: Subscription, most: int) -> list[tuple[Message, str]]:
        """Return some of the messages that nobody holds, with the ack id of each."""
        now, dice = self.world.now, self.world.random
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

    def is_away(self) -> bool:
        """Whether the server answers nobody for now; an outage may begin with the call."""
        return self.world.lasts("pubsub away", self, 20.0, 100.0, 150.0)

    def _comes_late(self, message: Message) -> bool:
        """Whether a message that was delivered before stays away, for longer than Refeed keeps ids of others."""
        if message.free_at and self.world.happens("late"):
            message.late_until = self.world.now + self.world.random.choice((100.0, 300.0, 700.0))
        return message.late_until > self.world.now and not self.world.is_calm

    def left(self) -> int:
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

    def seek(self, subscription: Subscription, snapshot: Snapshot) -> None:
        """Deliver again, within a minute, what the snapshot has not acknowledged; the rest becomes acknowledged.

        What is acknowledged by it may still be delivered for a while; "seek operations are eventually consistent":
        https://cloud.google.com/pubsub/docs/replay-overview#seek_eventual_consistency
        """
        now, dice = self.world.now, self.world.random
        subscription.leases.clear()
        known = set(subscription.published[: snapshot.published])
        for message in subscription.published:
            if message in known and message not in snapshot.unacked:
                if message.acked_at is None:
                    self.on_ack(message)
                    message.acked_at = now
            else:
                message.acked_at = None
                message.free_at = now + dice.choice((0.0, 1.0, 60.0))
                subscription.messages[message.id] = message
        self.world.say(f"   {subscription.id} is back at {snapshot.id}")


class Admin:
    """Pub/Sub's administration, as :class:`connectors.pubsub.client.PubSub` is it for a process."""

    def __init__(self, pubsub: PubSub) -> None:
        self._pubsub = pubsub

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def subscription_path(self, name: str) -> str:
        return f"projects/{PROJECT}/subscriptions/{name}"

    def list_subscriptions(self) -> list[Any]:
        with self._calling("list the subscriptions"):
            return [
                SimpleNamespace(id=found.id, topic=found.topic, detached=False, ack_deadline_seconds=10)
                for found in self._pubsub.subscriptions.values()
            ]

    def create_snapshot(self, snapshot: str, subscription: str) -> Snapshot:
        """Keep the acknowledgements of a subscription."""
        with self._calling(f"snapshot {subscription}"):
            found = self._pubsub.subscriptions[subscription]
            unacked = frozenset(message for message in found.messages.values() if message.acked_at is None)
            now = self._pubsub.world.unix_seconds
            oldest = min((message.published_at for message in unacked), default=now)
            made = Snapshot(
                snapshot,
                found.topic,
                datetime.fromtimestamp(oldest, UTC) + timedelta(days=7),
                unacked,
                len(found.published),
            )
            self._pubsub.snapshots[snapshot] = made
            return made

    def list_snapshots(self) -> list[Snapshot]:
        with self._calling("list the snapshots"):
            return list(self._pubsub.snapshots.values())

    def delete_snapshot(self, snapshot: str) -> None:
        with self._calling("delete a snapshot"):
            self._pubsub.snapshots.pop(snapshot, None)

    def seek_to_snapshot(self, subscription: str, snapshot: str) -> None:
        """Take a subscription back, or forward, to a snapshot."""
        with self._calling(f"seek {subscription}"):
            self._pubsub.seek(self._pubsub.subscriptions[subscription], self._pubsub.snapshots[snapshot])

    @contextmanager
    def _calling(self, what: str) -> Iterator[None]:
        """Make a call: its request may be lost, or the answer alone."""
        world = self._pubsub.world
        world.step(what)
        if self._pubsub.is_away() or world.happens("request lost"):
            raise PubSubUnavailableError("Pub/Sub does not answer.")
        yield
        if world.happens("answer lost"):
            raise PubSubUnavailableError("Pub/Sub does not answer.")


class Channel:
    """A gRPC channel to it, for the calls that are made by their bytes."""

    def __init__(self, pubsub: PubSub) -> None:
        self._pubsub = pubsub

    def unary_unary(self, method: str, **_: Any) -> "Channel._Call":
        return Channel._Call(self._pubsub, method.rpartition("/")[2])

    @dataclass(frozen=True)
    class _Call:
        pubsub: PubSub
        method: str

        def future(self, request: bytes, *, timeout: float) -> "_Answer | Pull":
            made = Pull if self.method == "Pull" else _Answer
            return made(self.pubsub, self.method, request, timeout)


class RpcError(grpc.RpcError):
    """A call that failed."""

    def __init__(self, status: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> None:
        super().__init__()
        self._status = status

    def code(self) -> grpc.StatusCode:
        return self._status

    def details(self) -> str:
        return "the simulation's network"

    def trailing_metadata(self) -> tuple[()]:
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
        if self.pubsub.is_away() or world.happens("request lost"):
            world.step(f"{self.method} failed", self.timeout)
            raise RpcError
        if self.method == "Acknowledge" and world.lasts("acks refused", self.pubsub, 0.0, 10.0, 120.0):
            raise RpcError(grpc.StatusCode.PERMISSION_DENIED)
        self._apply()
        if world.happens("answer lost"):
            world.step(f"{self.method} failed", self.timeout)
            raise RpcError
        return b""

    def cancel(self) -> None:
        """Do nothing: it is sent when it is waited for."""

    def done(self) -> bool:
        return False

    def _apply(self) -> None:
        if self.method == "Publish":
            published = PublishRequest.pb().FromString(self.request)
            self.pubsub.out |= {message.data.decode() for message in published.messages}
            self.pubsub.world.say(
                f"   published {' '.join(message.data.decode() for message in published.messages)}"
            )
        elif self.method == "Acknowledge":
            ack = AcknowledgeRequest.pb().FromString(self.request)
            self.pubsub.acknowledge(ack.subscription.rpartition("/")[2], ack.ack_ids)
        else:
            extend = ModifyAckDeadlineRequest.pb().FromString(self.request)
            name = extend.subscription.rpartition("/")[2]
            self.pubsub.extend(name, extend.ack_ids, extend.ack_deadline_seconds)


class Pull:
    """A Pull under way. Its process may be gone when it is answered; the messages are leased all the same."""

    def __init__(self, pubsub: PubSub, method: str, request: bytes, timeout: float) -> None:
        self._pubsub = pubsub
        self._world = pubsub.world
        self._process = pubsub.world.task.process
        self._timeout = timeout
        self._answer = b""
        self._error: Exception | None = None
        self._is_done = False
        self._act: Callable[[Pull], object] | None = None
        asked = PullRequest.pb().FromString(request)
        self._subscription = pubsub.subscriptions[asked.subscription.rpartition("/")[2]]
        self._world.start(method, pubsub.server, self._serve)

    def add_done_callback(self, act: "Callable[[Pull], object]") -> None:
        """Have ``act`` called when the answer is there."""
        self._act = act

    def cancel(self) -> None:
        """Wait for no answer any more; messages that are on their way are lost with it."""
        self._end(error=grpc.FutureCancelledError())

    def cancelled(self) -> bool:
        return isinstance(self._error, grpc.FutureCancelledError)

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> bytes:
        if self._error is not None:
            raise self._error
        return self._answer

    def _serve(self) -> None:
        world, pubsub = self._world, self._pubsub
        ends_at = world.now + self._timeout * world.random.choice((0.1, 1.0))
        while not self._is_done:
            if pubsub.is_away() or world.happens("request lost"):
                world.step("pull fails", 0.05)
                self._end(error=RpcError())
                return
            found = pubsub.pull(self._subscription, 30)
            if found or world.now >= ends_at:
                world.step("pull answers", 0.02)
                if world.happens("answer lost"):
                    self._end(error=RpcError())
                elif found or world.random.random() < 0.5:
                    self._end(_response(found))
                else:
                    self._end(error=RpcError(grpc.StatusCode.DEADLINE_EXCEEDED))
                return
            # A lease may run out meanwhile.
            world.wait("pull waits", self._subscription.waiting, min(2.0, ends_at - world.now))

    def _end(self, answer: bytes = b"", error: Exception | None = None) -> None:
        if self._is_done:
            return
        self._is_done, self._answer, self._error = True, answer, error
        if self._act is not None and not self._process.is_dead:
            act = self._act
            self._world.start("grpc", self._process, lambda: act(self))


def _response(found: list[tuple[Message, str]]) -> bytes:
    response = PullResponse.pb()()
    for message, ack_id in found:
        received = response.received_messages.add(ack_id=ack_id)
        received.message.message_id = message.id
        received.message.data = message.id.encode()
        received.message.publish_time.FromDatetime(message.publish_time)
    return bytes(response.SerializeToString())


def _list(messages: Iterable[Message]) -> str:
    return " ".join(message.id for message in messages)
