"""Questions to Pub/Sub that its documentation leaves open, asked of a topic that exists for nothing else."""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import grpc
from google.pubsub_v1 import types

from connectors.pubsub.client import PubSub
from connectors.pubsub.errors import error_from
from connectors.pubsub.publish import Publisher
from model.errors import SubscriptionNotFoundError, TopicNotFoundError
from model.message import Message

_MESSAGES: Final = 5_000
_BYTES: Final = 1_000
_PULL_MESSAGES: Final = 1_000
_PULL_SECONDS: Final = 20.0


class PubSubProbes:
    """Asks one question a method, of a scratch topic that :meth:`open` makes and takes away again."""

    def __init__(self, pubsub: PubSub, name: str, *, patience_seconds: float) -> None:
        self._pubsub = pubsub
        self._name = name
        self._patience_seconds = patience_seconds

    @contextmanager
    def open(self) -> Iterator[None]:
        """Make the topic and its subscription for the length of the block, whose end takes them away.

        Raises:
            PubSubError: they can't be made, or not be taken away.
        """
        try:
            self._pubsub.create_topic(self._name)
            self._pubsub.create_subscription(self._name, self._name)
            yield
        finally:
            with suppress(SubscriptionNotFoundError):
                self._pubsub.delete_subscription(self._name)
            with suppress(TopicNotFoundError):
                self._pubsub.delete_topic(self._name)

    def pull_sizes(self) -> str:
        """How many messages unary Pulls bring while thousands wait."""
        path = self._pubsub.topic_path(self._name)
        Publisher(self._pubsub.channel, path).publish([Message(b"x" * _BYTES)] * _MESSAGES)
        pull = self._pubsub.channel.unary_unary(
            "/google.pubsub.v1.Subscriber/Pull", types.PullRequest.serialize, types.PullResponse.deserialize
        )
        subscription = self._pubsub.subscription_path(self._name)
        request = types.PullRequest(subscription=subscription, max_messages=_PULL_MESSAGES)
        sizes: list[int] = []
        began = time.monotonic()
        # Nothing is acknowledged, so that messages in the hands of this process do not come again in the meantime.
        while sum(sizes) < _MESSAGES and time.monotonic() - began < self._patience_seconds:
            try:
                sizes.append(len(pull(request, timeout=_PULL_SECONDS).received_messages))
            except grpc.RpcError as exc:
                raise error_from(exc, f"pulling from {subscription}") from exc
        full = sum(size == _PULL_MESSAGES for size in sizes)
        return (
            f"{sum(sizes):,} of {_MESSAGES:,} messages in {len(sizes)} Pulls of at most {_PULL_MESSAGES:,}: "
            f"{full} full, {sizes.count(0)} empty, median {statistics.median(sizes):g}, "
            f"in {time.monotonic() - began:.1f} s"
        )
