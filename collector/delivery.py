"""Hands events over to Pub/Sub, and knows which topics it has."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, Final

from connectors.pubsub.client import PubSub
from connectors.pubsub.sending import Sender, outcome_of
from model.errors import PubSubError, PubSubUnavailableError, RefeedError

# How long a look for a topic holds: one that is there, and one that is not.
_THERE_SECONDS: Final = 60.0
_MISSING_SECONDS: Final = 5.0
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
            future.set_exception(PubSubUnavailableError(f"No publish to {topic} was answered in time."))


class TopicDirectory:
    """Remembers for a while which topics Pub/Sub has."""

    def __init__(self, pubsub: PubSub) -> None:
        self._pubsub = pubsub
        # topic -> (whether it is there, until when that counts)
        self._known: dict[str, tuple[bool, float]] = {}
        # Each look may take as long as Pub/Sub hangs; the loop's own threads are there for the disk.
        self._threads = ThreadPoolExecutor(_LOOKS, thread_name_prefix="topics")

    def knows(self, topic: str) -> bool:
        """Whether Pub/Sub had the topic when it was last asked."""
        return topic in self._known and self._known[topic][0]

    async def has(self, topic: str) -> bool:
        """Whether Pub/Sub has the topic, as of a minute ago at most; of five seconds when it had not.

        Raises:
            PubSubError: it can't be asked, and was not before.
        """
        known = self._known.get(topic)
        if known is not None and time.monotonic() < known[1]:
            return known[0]
        if known is not None and known[0]:
            # One request looks again; the others go on with what was known.
            self._known[topic] = (True, time.monotonic() + _THERE_SECONDS)
        try:
            is_there = await asyncio.get_running_loop().run_in_executor(
                self._threads, self._pubsub.topic_exists, topic
            )
        except PubSubError:
            if known is not None and known[0]:
                return True
            raise
        if len(self._known) >= _MAX_KNOWN:
            # Callers make names up; those that matter are asked for again.
            self._known.clear()
        self._known[topic] = (is_there, time.monotonic() + (_THERE_SECONDS if is_there else _MISSING_SECONDS))
        return is_there
