"""The administration of Pub/Sub: topics, subscriptions, those of backups, and snapshots."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Self

from google.api_core import exceptions as google_errors
from google.protobuf import duration_pb2, field_mask_pb2
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
    SnapshotNotFoundError,
    SubscriptionMismatchError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from model.message import backup_subscription_id, parse_resource_id, replay_filter

_RETENTION_SECONDS: Final = 7 * 86400
# The settings that are compared when a subscription exists: those that Pub/Sub never changes, and the others with
# Pub/Sub's names of them.
_FIXED: Final = ("topic", "filter", "ordering", "detached")
_CHANGEABLE: Final = {
    "ack_deadline_seconds": "ack_deadline_seconds",
    "retention_seconds": "message_retention_duration",
    "expires": "expiration_policy",
    "exactly_once": "enable_exactly_once_delivery",
}
# One try: a stream that asks again by itself must not hang in the client's own minute of retries.
_CALL: Final[dict[str, Any]] = {"timeout": 20.0, "retry": None}


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """A subscription's settings that matter to Refeed; ``topic`` is an id, ``_deleted-topic_`` when it is gone.

    ``expires`` says whether Pub/Sub deletes it after some idle time; a detached one gives no messages any more.
    ``topic_retention_seconds`` is 0 where its topic keeps no messages.
    """

    id: str
    topic: str
    filter: str
    ack_deadline_seconds: int
    retention_seconds: int = _RETENTION_SECONDS
    expires: bool = False
    ordering: bool = False
    exactly_once: bool = False
    detached: bool = False
    topic_retention_seconds: int = 0

    @property
    def keeps_seconds(self) -> int:
        """How long after its publication a message that nobody acknowledges is there, at least.

        It goes when it is older than both of the two retentions:
        https://cloud.google.com/pubsub/docs/subscription-message-retention
        """
        return max(self.retention_seconds, self.topic_retention_seconds)


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """A setting of a subscription that is not as wanted; one that can't be changed costs a new subscription."""

    field: str
    found: str
    wanted: str
    can_change: bool

    def __str__(self) -> str:
        return f"{self.field} is {self.found} instead of {self.wanted}"


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A snapshot of a subscription's acknowledgements; Pub/Sub drops it after seven days at most."""

    id: str
    topic: str
    expires_at: datetime


class PubSub:
    """Administration of one project's topics and subscriptions, over one channel.

    Raises:
        PubSubUnavailableError: any call, when nobody answers within 20 seconds.
    """

    def __init__(self, project: str, address: str | None) -> None:
        self.project = project
        self.channel = open_channel(address)
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
        """Whether the topic exists."""
        try:
            with _our_errors(TopicNotFoundError, f"topic {topic}"):
                self._publisher.get_topic(topic=self.topic_path(topic), **_CALL)
        except TopicNotFoundError:
            return False
        return True

    def is_topic_read(self, topic: str) -> bool:
        """Whether a subscription is attached to the topic: without one Pub/Sub keeps no message for anybody.

        A detached subscription is not listed: "The names of subscriptions attached to the topic"
        (https://cloud.google.com/pubsub/docs/reference/rest/v1/projects.topics.subscriptions/list).

        Raises:
            TopicNotFoundError: there is no such topic.
        """
        with _our_errors(TopicNotFoundError, f"topic {topic}"):
            request = {"topic": self.topic_path(topic), "page_size": 1}
            return next(iter(self._publisher.list_topic_subscriptions(request=request, **_CALL)), None) is not None

    def create_topic(self, topic: str) -> bool:
        """Create the topic, and return whether it is new; one that exists is left as it is."""
        parse_resource_id(topic)
        try:
            with _our_errors():
                self._publisher.create_topic(name=self.topic_path(topic), **_CALL)
        except _AlreadyExistsError:
            return False
        return True

    def list_topics(self, *, label: tuple[str, str] | None = None) -> list[str]:
        """Return the ids of all topics, or of those that carry ``label`` (key, value), sorted."""
        with _our_errors():
            pages = self._publisher.list_topics(project=f"projects/{self.project}", **_CALL)
            return sorted(
                _id(topic.name) for topic in pages if label is None or topic.labels.get(label[0]) == label[1]
            )

    def delete_topic(self, topic: str) -> None:
        """Delete the topic; its subscriptions stay, without one.

        Raises:
            TopicNotFoundError: there is none.
        """
        with _our_errors(TopicNotFoundError, f"topic {topic}"):
            self._publisher.delete_topic(topic=self.topic_path(topic), **_CALL)

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
        exactly_once: bool = False,
    ) -> SubscriptionInfo:
        """Create a subscription that never expires; one that exists with this topic and filter is returned.

        The one that is returned may have other deadlines than asked for: :meth:`find_differences` says so.

        Raises:
            TopicNotFoundError: the topic does not exist.
            SubscriptionMismatchError: it exists with another topic, filter or ordering, or was detached; none of
                that can be changed.
        """
        parse_resource_id(subscription, "subscription")
        wanted = Subscription(
            name=self.subscription_path(subscription),
            topic=self.topic_path(topic),
            filter=message_filter,
            ack_deadline_seconds=ack_deadline_seconds,
            message_retention_duration=duration_pb2.Duration(seconds=retention_seconds),
            enable_message_ordering=ordering,
            enable_exactly_once_delivery=exactly_once,
            # Without a ttl the subscription never expires; the default is to vanish after 31 idle days.
            expiration_policy=ExpirationPolicy(),
        )
        try:
            with _our_errors(TopicNotFoundError, f"topic {topic}"):
                return _info(self._subscriber.create_subscription(request=wanted, **_CALL))
        except _AlreadyExistsError:
            existing = self.get_subscription(subscription)
        fixed = [d for d in _differences(existing, _info(wanted)) if not d.can_change]
        if fixed:
            raise SubscriptionMismatchError(
                f"The subscription {subscription} exists, but its {'; its '.join(map(str, fixed))}. "
                "These settings can't be changed. When the subscription has no pending messages, delete the "
                "subscription with 'refeed detach', and attach the topic again.",
                subscription=subscription,
            )
        return existing

    def update_subscription(self, wanted: SubscriptionInfo) -> SubscriptionInfo:
        """Set what can be changed (deadline, retention, expiration, exactly-once) as ``wanted`` has it.

        Only what differs is sent: Google's emulator knows less than the service, and refuses even what changes
        nothing.

        Raises:
            SubscriptionNotFoundError: there is none.
        """
        found = self.get_subscription(wanted.id)
        changed = Subscription(
            name=self.subscription_path(wanted.id),
            ack_deadline_seconds=wanted.ack_deadline_seconds,
            message_retention_duration=duration_pb2.Duration(seconds=wanted.retention_seconds),
            enable_exactly_once_delivery=wanted.exactly_once,
            expiration_policy=ExpirationPolicy(),
        )
        # A subscription that is set here never expires.
        differences = _differences(found, replace(wanted, expires=False))
        paths = [_CHANGEABLE[difference.field] for difference in differences if difference.can_change]
        if not paths:
            return found
        with _our_errors(SubscriptionNotFoundError, f"subscription {wanted.id}"):
            return _info(
                self._subscriber.update_subscription(
                    subscription=changed, update_mask=field_mask_pb2.FieldMask(paths=paths), **_CALL
                )
            )

    def delete_subscription(self, subscription: str) -> None:
        """Delete the subscription and every message that waits in it.

        Raises:
            SubscriptionNotFoundError: there is none.
        """
        with _our_errors(SubscriptionNotFoundError, f"subscription {subscription}"):
            self._subscriber.delete_subscription(subscription=self.subscription_path(subscription), **_CALL)

    def create_snapshot(self, snapshot: str, subscription: str) -> SnapshotInfo:
        """Keep the acknowledgements that ``subscription`` has by now, for up to seven days.

        Raises:
            SubscriptionNotFoundError: there is no such subscription.
            PubSubError: a snapshot of this name exists, or it would live less than an hour.
        """
        with _our_errors(SubscriptionNotFoundError, f"subscription {subscription}"):
            made = self._subscriber.create_snapshot(
                name=self._snapshot_path(snapshot), subscription=self.subscription_path(subscription), **_CALL
            )
        return SnapshotInfo(_id(made.name), _id(made.topic), made.expire_time)

    def list_snapshots(self) -> list[SnapshotInfo]:
        """Return all snapshots of the project, sorted by id."""
        with _our_errors():
            pages = self._subscriber.list_snapshots(project=f"projects/{self.project}", **_CALL)
            found = [SnapshotInfo(_id(s.name), _id(s.topic), s.expire_time) for s in pages]
        return sorted(found, key=lambda s: s.id)

    def delete_snapshot(self, snapshot: str) -> None:
        """Delete the snapshot; one that is gone is no error."""
        try:
            with _our_errors(SnapshotNotFoundError, f"snapshot {snapshot}"):
                self._subscriber.delete_snapshot(snapshot=self._snapshot_path(snapshot), **_CALL)
        except SnapshotNotFoundError:
            return

    def seek_to_snapshot(self, subscription: str, snapshot: str) -> None:
        """Deliver again everything that was not acknowledged when the snapshot was made.

        Raises:
            SnapshotNotFoundError: the snapshot or the subscription does not exist.
        """
        with _our_errors(SnapshotNotFoundError, f"snapshot {snapshot} of subscription {subscription}"):
            self._subscriber.seek(
                request={
                    "subscription": self.subscription_path(subscription),
                    "snapshot": self._snapshot_path(snapshot),
                },
                **_CALL,
            )

    def _snapshot_path(self, snapshot: str) -> str:
        return f"projects/{self.project}/snapshots/{snapshot}"

    def attach_backup(
        self, topic: str, *, token: str, ack_deadline_seconds: int, exactly_once: bool = False
    ) -> SubscriptionInfo:
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
            exactly_once=exactly_once,
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
        raise missing(f"Pub/Sub does not have {name or 'this resource'}.", name=name) from exc
    except (google_errors.ServiceUnavailable, google_errors.DeadlineExceeded, google_errors.RetryError) as exc:
        raise PubSubUnavailableError(f"Pub/Sub does not answer: {exc}") from exc
    except google_errors.GoogleAPICallError as exc:
        raise PubSubError(f"Pub/Sub refused: {exc}") from exc


def _id(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def find_differences(
    found: SubscriptionInfo, *, ack_deadline_seconds: int, exactly_once: bool = False
) -> list[SettingDifference]:
    """Return the settings of a backup subscription that Refeed would create otherwise, and that can be changed."""
    wanted = replace(
        found,
        ack_deadline_seconds=ack_deadline_seconds,
        exactly_once=exactly_once,
        retention_seconds=_RETENTION_SECONDS,
        expires=False,
    )
    return _differences(found, wanted)


def _differences(found: SubscriptionInfo, wanted: SubscriptionInfo) -> list[SettingDifference]:
    return [
        SettingDifference(name, repr(getattr(found, name)), repr(getattr(wanted, name)), name in _CHANGEABLE)
        for name in (*_FIXED, *_CHANGEABLE)
        if getattr(found, name) != getattr(wanted, name)
    ]


def _info(subscription: Subscription) -> SubscriptionInfo:
    return SubscriptionInfo(
        id=_id(subscription.name),
        topic=_id(subscription.topic),
        filter=subscription.filter,
        ack_deadline_seconds=subscription.ack_deadline_seconds,
        retention_seconds=int(subscription.message_retention_duration.total_seconds()),
        expires=bool(subscription.expiration_policy.ttl),
        ordering=subscription.enable_message_ordering,
        exactly_once=subscription.enable_exactly_once_delivery,
        detached=subscription.detached,
        topic_retention_seconds=int(subscription.topic_message_retention_duration.total_seconds()),
    )
