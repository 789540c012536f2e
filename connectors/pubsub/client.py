"""The administration of Pub/Sub: topics, subscriptions, what a backup attaches."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

from google.api_core import exceptions as google_errors
from google.protobuf import duration_pb2
from google.pubsub_v1.services.publisher import PublisherClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport
from google.pubsub_v1.types import ExpirationPolicy, Subscription

from connectors.pubsub.channel import open_channel
from model.errors import (
    PubSubError,
    PubSubUnavailableError,
    RefeedError,
    SubscriptionMismatchError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from model.message import backup_subscription_id, parse_resource_id, replay_filter

_RETENTION_SECONDS: Final = 7 * 86400
# One try: a stream that asks again by itself must not hang in the client's own minute of retries.
_CALL: Final[dict[str, Any]] = {"timeout": 20.0, "retry": None}


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """What Refeed needs to know of a subscription; ``topic`` is an id, ``_deleted-topic_`` when it is gone."""

    id: str
    topic: str
    filter: str
    ack_deadline_seconds: int


class PubSub:
    """Administration of one project's topics and subscriptions, over one channel.

    Raises:
        PubSubUnavailableError: any call, when nobody answers within 20 seconds.
    """

    def __init__(self, project: str, emulator_host: str | None) -> None:
        self.project = project
        self.channel = open_channel(emulator_host)
        self._publisher = PublisherClient(transport=PublisherGrpcTransport(channel=self.channel))
        self._subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=self.channel))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the channel."""
        self.channel.close()

    def topic_path(self, topic: str) -> str:
        """Return ``projects/<project>/topics/<topic>``."""
        return f"projects/{self.project}/topics/{topic}"

    def subscription_path(self, subscription: str) -> str:
        """Return ``projects/<project>/subscriptions/<subscription>``."""
        return f"projects/{self.project}/subscriptions/{subscription}"

    def topic_exists(self, topic: str) -> bool:
        """Say whether the topic exists."""
        try:
            with _our_errors(TopicNotFoundError, f"topic {topic}"):
                self._publisher.get_topic(topic=self.topic_path(topic), **_CALL)
        except TopicNotFoundError:
            return False
        return True

    def create_topic(self, topic: str) -> None:
        """Create the topic; one that exists is left as it is."""
        parse_resource_id(topic)
        try:
            with _our_errors():
                self._publisher.create_topic(name=self.topic_path(topic), **_CALL)
        except _AlreadyExistsError:
            return

    def list_topics(self) -> list[str]:
        """Return the ids of all topics, sorted."""
        with _our_errors():
            pages = self._publisher.list_topics(project=f"projects/{self.project}", **_CALL)
            return sorted(_id(topic.name) for topic in pages)

    def list_subscriptions(self, topic: str | None = None) -> list[SubscriptionInfo]:
        """Return all subscriptions of the project, or of one topic, sorted by id."""
        with _our_errors():
            pages = self._subscriber.list_subscriptions(project=f"projects/{self.project}", **_CALL)
            found = [_info(subscription) for subscription in pages]
        return sorted((s for s in found if topic in (None, s.topic)), key=lambda s: s.id)

    def get_subscription(self, subscription: str) -> SubscriptionInfo:
        """Return the subscription.

        Raises:
            SubscriptionNotFoundError: there is none.
        """
        with _our_errors(SubscriptionNotFoundError, f"subscription {subscription}"):
            return _info(
                self._subscriber.get_subscription(subscription=self.subscription_path(subscription), **_CALL)
            )

    def create_subscription(
        self,
        subscription: str,
        topic: str,
        *,
        message_filter: str = "",
        ack_deadline_seconds: int = 60,
        retention_seconds: int = _RETENTION_SECONDS,
        ordering: bool = False,
    ) -> SubscriptionInfo:
        """Create a subscription that never expires; one that exists with this topic and filter is returned.

        Raises:
            TopicNotFoundError: the topic does not exist.
            SubscriptionMismatchError: it exists with another topic or filter; neither can be changed.
        """
        parse_resource_id(subscription, "subscription")
        wanted = Subscription(
            name=self.subscription_path(subscription),
            topic=self.topic_path(topic),
            filter=message_filter,
            ack_deadline_seconds=ack_deadline_seconds,
            message_retention_duration=duration_pb2.Duration(seconds=retention_seconds),
            enable_message_ordering=ordering,
            # Without a ttl the subscription never expires; the default is to vanish after 31 idle days.
            expiration_policy=ExpirationPolicy(),
        )
        try:
            with _our_errors(TopicNotFoundError, f"topic {topic}"):
                return _info(self._subscriber.create_subscription(request=wanted, **_CALL))
        except _AlreadyExistsError:
            existing = self.get_subscription(subscription)
        if (existing.topic, existing.filter) != (topic, message_filter):
            raise SubscriptionMismatchError(
                f"Subscription {subscription} exists with topic {existing.topic} and filter {existing.filter!r}; "
                f"wanted are topic {topic} and filter {message_filter!r}. Neither can be changed: delete it once "
                "it is drained, then attach again.",
                subscription=subscription,
            )
        return existing

    def delete_subscription(self, subscription: str) -> None:
        """Delete the subscription and every message that waits in it.

        Raises:
            SubscriptionNotFoundError: there is none.
        """
        with _our_errors(SubscriptionNotFoundError, f"subscription {subscription}"):
            self._subscriber.delete_subscription(subscription=self.subscription_path(subscription), **_CALL)

    def attach_backup(self, topic: str, *, token: str, ack_deadline_seconds: int) -> SubscriptionInfo:
        """Give ``topic`` its backup subscription: everything from now on but replays tagged with ``token``.

        A running backup stream finds it by its name within seconds.

        Raises:
            TopicNotFoundError: the topic does not exist.
            SubscriptionMismatchError: one is there with another filter (another deployment's secret).
        """
        return self.create_subscription(
            backup_subscription_id(parse_resource_id(topic)),
            topic,
            message_filter=replay_filter(token),
            ack_deadline_seconds=ack_deadline_seconds,
        )


class _AlreadyExistsError(PubSubError):
    """It exists already."""


@contextmanager
def _our_errors(missing: type[RefeedError] = PubSubError, name: str = "") -> Iterator[None]:
    """Turn Google's exceptions into ours; NOT_FOUND becomes ``missing``, about ``name``."""
    try:
        yield
    except google_errors.AlreadyExists as exc:
        raise _AlreadyExistsError(exc.message) from exc
    except google_errors.NotFound as exc:
        raise missing(f"Pub/Sub knows no {name or 'such resource'}.", name=name) from exc
    except (google_errors.ServiceUnavailable, google_errors.DeadlineExceeded, google_errors.RetryError) as exc:
        raise PubSubUnavailableError(f"Pub/Sub does not answer: {exc}") from exc
    except google_errors.GoogleAPICallError as exc:
        raise PubSubError(f"Pub/Sub refused: {exc}") from exc


def _id(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _info(subscription: Subscription) -> SubscriptionInfo:
    return SubscriptionInfo(
        id=_id(subscription.name),
        topic=_id(subscription.topic),
        filter=subscription.filter,
        ack_deadline_seconds=subscription.ack_deadline_seconds,
    )
