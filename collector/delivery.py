"""Hands events over to Pub/Sub, and knows which topics it has."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, auto
from typing import ClassVar, Final, NamedTuple

from connectors.pubsub.client import PubSub
from connectors.pubsub.sending import Sender, outcome_of
from model.errors import PubSubError, PubSubUnavailableError, RefeedError, TopicNotFoundError

# How long a look for a topic holds, by what it found. Events that come between the end of a topic's last
# subscription and the next look are gone; callers make names up that are not there. A topic in use is looked for
# again before its time is over, and nobody waits for that.
_READ_SECONDS: Final = 10.0
_EARLY_SECONDS: Final = 5.0
_HUNG_SECONDS: Final = 60.0
_UNREAD_SECONDS: Final = 1.0
_MISSING_SECONDS: Final = 5.0
# How long a request waits for a look, and then no request for another one.
_WAIT_SECONDS: Final = 2.0
_MAX_KNOWN: Final = 10_000
_LOOKS: Final = 4


class Delivery(ABC):
    """Takes events and returns once they are durable; ``status`` is what they are answered with."""

    status: ClassVar[int]

    async def start(self) -> None:  # noqa: B027 - not every delivery has something to begin
        """Begin, on the loop that :meth:`deliver` is called on."""

    async def stop(self) -> None:  # noqa: B027 - nor to end
        """End; what was taken stays durable."""

    @abstractmethod
    async def deliver(self, topic: str, messages: Sequence[bytes]) -> list[RefeedError | None]:
        """Take encoded messages and return what became of each: None once it is durable, else why not."""

    @abstractmethod
    def problems(self) -> Mapping[str, str]:
        """Return the error of each topic that published nothing since, of the last minute."""

    def waiting_events(self) -> Mapping[str, int]:
        """Return how many durable events of each topic Pub/Sub does not have yet."""
        return {}


class DirectDelivery(Delivery):
    """Publishes each event before it is answered.

    An event whose publish has no outcome within ``give_up_seconds`` is answered as not taken; it may have arrived,
    and comes a second time under another uuid when its sender tries again.
    """

    status = 200

    def __init__(self, pubsub: PubSub, *, give_up_seconds: float) -> None:
        self._pubsub = pubsub
        self._give_up_seconds = give_up_seconds
        self._senders: dict[str, Sender] = {}

    async def deliver(self, topic: str, messages: Sequence[bytes]) -> list[RefeedError | None]:
        """Publish ``messages`` and return what became of each."""
        sender = self._senders.get(topic)
        if sender is None:
            path = self._pubsub.topic_path(topic)
            sender = Sender(self._pubsub.channel, path, give_up_seconds=self._give_up_seconds)
            self._senders[topic] = sender
        futures = [sender.send(message) for message in messages]
        # A request gives up by itself; this is for those that wait for the requests before theirs.
        timer = asyncio.get_running_loop().call_later(self._give_up_seconds, _give_up, futures, topic)
        try:
            return [await outcome_of(future) for future in futures]
        finally:
            timer.cancel()

    def problems(self) -> Mapping[str, str]:
        """Return the error of each topic that published nothing since, of the last minute."""
        return {name: error.message for name, each in self._senders.items() if (error := each.last_error)}


def _give_up(futures: Sequence[asyncio.Future[None]], topic: str) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(PubSubUnavailableError(f"Pub/Sub did not answer a publish to {topic} in time."))


class TopicState(Enum):
    """What Pub/Sub has of a topic: subscriptions, none, or no such topic."""

    READ = auto()
    UNREAD = auto()
    MISSING = auto()


class _Look(NamedTuple):
    """What a look for a topic found, None for no answer, and until when that holds."""

    state: TopicState | None
    until: float


class TopicDirectory:
    """Remembers for a while which topics Pub/Sub has, and whether anything subscribes to them."""

    def __init__(self, pubsub: PubSub) -> None:
        self._pubsub = pubsub
        self._known: dict[str, _Look] = {}
        self._looks: dict[str, asyncio.Task[TopicState]] = {}
        # Each look may take as long as Pub/Sub hangs; the loop's own threads are there for the disk.
        self._threads = ThreadPoolExecutor(_LOOKS, thread_name_prefix="topics")

    def knows(self, topic: str) -> bool:
        """Whether Pub/Sub had the topic when it was last asked."""
        known = self._known.get(topic)
        return known is not None and known.state in (TopicState.READ, TopicState.UNREAD)

    async def find(self, topic: str) -> TopicState:
        """Return what Pub/Sub has of the topic, as of ten seconds ago at most.

        A topic that had a subscription is taken to have one until Pub/Sub says otherwise: while it does not
        answer, a request waits two seconds for it, and those of the minute after that do not.

        Raises:
            PubSubError: it does not answer, and did not before or said that nothing subscribes to the topic.
        """
        known = self._known.get(topic)
        left = known.until - time.monotonic() if known is not None else 0.0
        if known is not None and left > 0:
            if known.state is TopicState.READ and left < _EARLY_SECONDS:
                self._begin_look(topic)
            return _state_of(topic, known.state)
        look = self._begin_look(topic)
        done, _ = await asyncio.wait([look], timeout=_WAIT_SECONDS)
        if done:
            return look.result()
        if known is not None and known.state is TopicState.READ:
            self._remember(topic, TopicState.READ, _HUNG_SECONDS)
            return TopicState.READ
        self._remember(topic, None, _MISSING_SECONDS)
        return _state_of(topic, None)

    def _begin_look(self, topic: str) -> "asyncio.Task[TopicState]":
        look = self._looks.get(topic)
        if look is None:
            look = asyncio.create_task(self._look(topic))
            self._looks[topic] = look
            look.add_done_callback(lambda done: self._end_look(topic, done))
        return look

    async def _look(self, topic: str) -> TopicState:
        work = asyncio.get_running_loop().run_in_executor(self._threads, self._pubsub.is_topic_read, topic)
        try:
            state = TopicState.READ if await work else TopicState.UNREAD
        except TopicNotFoundError:
            state = TopicState.MISSING
        except PubSubError:
            known = self._known.get(topic)
            if known is None or known.state is not TopicState.READ:
                raise
            state = known.state
        holds = {TopicState.READ: _READ_SECONDS, TopicState.UNREAD: _UNREAD_SECONDS}
        self._remember(topic, state, holds.get(state, _MISSING_SECONDS))
        return state

    def _end_look(self, topic: str, look: "asyncio.Task[TopicState]") -> None:
        del self._looks[topic]
        # Without a request that waits for it, nobody else takes its error.
        if not look.cancelled():
            look.exception()

    def _remember(self, topic: str, state: TopicState | None, seconds: float) -> None:
        if len(self._known) >= _MAX_KNOWN:
            # Callers make names up; those that matter are asked for again.
            self._known.clear()
        self._known[topic] = _Look(state, time.monotonic() + seconds)


def _state_of(topic: str, state: TopicState | None) -> TopicState:
    if state is None:
        raise PubSubUnavailableError(
            f"Pub/Sub does not answer, so the collector can't check whether {topic} has a subscription."
        )
    return state
