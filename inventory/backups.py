"""Begins and ends the backup of topics: creates and deletes backup subscriptions, after a look without effect."""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Final, Literal

import structlog
from pydantic import BaseModel, Field

from connectors.pubsub.client import PubSub, SettingDifference, SubscriptionInfo, find_differences
from connectors.pubsub.stats import SubscriptionStats, read_stats
from jobs.store.events import TOPIC
from model.errors import (
    ForbiddenError,
    PubSubError,
    SubscriptionMismatchError,
    SubscriptionNotFoundError,
    TopicBackupChangedError,
    TopicUnknownError,
)
from model.message import backup_subscription_id, parse_resource_id, redact_tokens, replay_filter, replay_token
from model.naming import did_you_mean
from model.principal import STREAMS_OPERATE, Principal

_LOG: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class AttachedTopic:
    """A topic's backup subscription, and the settings that differ from those of a new one.

    ``is_new`` is whether the subscription was created, and ``is_topic_new`` whether the topic was; then ``meant``
    names topics that may have been meant.
    """

    subscription: SubscriptionInfo
    differences: list[SettingDifference]
    is_new: bool
    is_topic_new: bool = False
    meant: str = ""


def attach_topic(
    pubsub: PubSub, topic: str, *, token: str, ack_deadline_seconds: int, exactly_once: bool, update: bool
) -> AttachedTopic:
    """Give the topic its backup subscription; one that exists is kept, and ``update`` changes what differs.

    Raises:
        TopicNotFoundError: there is no such topic.
        SubscriptionMismatchError: it is attached with another deployment's secret.
    """
    is_new = find_backup(pubsub, topic) is None
    found = pubsub.attach_backup(
        topic, token=token, ack_deadline_seconds=ack_deadline_seconds, exactly_once=exactly_once
    )
    deadline = ack_deadline_seconds
    # Exactly-once delivery that was switched on stays on: only the caller asks for it.
    is_exact = exactly_once or found.exactly_once
    if update and find_differences(found, ack_deadline_seconds=deadline, exactly_once=is_exact):
        found = pubsub.update_subscription(replace(found, ack_deadline_seconds=deadline, exactly_once=is_exact))
    differences = find_differences(found, ack_deadline_seconds=deadline, exactly_once=is_exact)
    return AttachedTopic(found, differences, is_new)


def find_backup(pubsub: PubSub, topic: str) -> SubscriptionInfo | None:
    """Return the topic's backup subscription, None where it is not attached."""
    with suppress(SubscriptionNotFoundError):
        return pubsub.get_subscription(backup_subscription_id(parse_resource_id(topic)))
    return None


class SettingDifferenceOut(BaseModel):
    """A setting in which the existing subscription differs from a new subscription."""

    field: str = Field(description="The name of the setting.")
    found: str = Field(description="The value in Pub/Sub.")
    wanted: str = Field(description="The value of a new subscription.")


class TopicBackupOut(BaseModel):
    """The change of a topic's backup. A dry run returns the planned change."""

    topic: str = Field(description="The topic.")
    action: Literal["attach", "detach"] = Field(description="Whether the call attaches or detaches the topic.")
    dry_run: bool = Field(description="Whether the call was a dry run.")
    subscription: str = Field(description="The backup subscription's id.")
    filter: str = Field(
        description="The subscription's filter, with `<token>` in place of the deployment's token."
    )
    was_attached: bool = Field(description="Whether the topic was backed up before this call.")
    is_attached: bool = Field(description="Whether the topic is backed up after this call.")
    creates_topic: bool = Field(
        description=(
            "Whether the topic is missing and the call creates it. The call creates topics only "
            "on a local Pub/Sub server."
        )
    )
    ack_deadline_seconds: int = Field(description="The subscription's acknowledgement deadline.")
    exactly_once: bool = Field(description="Whether the subscription has exactly-once delivery.")
    differences: list[SettingDifferenceOut] = Field(
        description="The settings in which the existing subscription differs from a new subscription. A call "
        "with `update` corrects them."
    )
    backlog_messages: int | None = Field(
        description="Number of pending messages in the subscription. A detach deletes these messages. Null "
        "means unknown."
    )
    plan: str = Field(
        description="A hash of the state before the change. Send the hash as `plan` with the real call."
    )


class TopicBackups:
    """Attaches and detaches topics; ``creates_topics`` also creates a missing topic, as a local Pub/Sub needs.

    It does not close ``pubsub``. ``note`` adds a line to the history of a topic.

    Raises:
        ForbiddenError: any call whose ``principal`` lacks STREAMS_OPERATE, or is limited to other topics.
        InvalidNameError: any call with a name that is no topic id.
        TopicBackupChangedError: any call whose ``plan`` is of another state than Pub/Sub has now.
        PubSubError: any call, when Pub/Sub fails or does not answer.
    """

    def __init__(
        self,
        pubsub: PubSub,
        *,
        secret: str,
        ack_deadline_seconds: int,
        creates_topics: bool,
        note: Callable[..., None],
    ) -> None:
        self._pubsub = pubsub
        self._note = note
        self._secret = secret
        self._ack_deadline_seconds = ack_deadline_seconds
        self._creates_topics = creates_topics

    def attach(
        self,
        topic: str,
        *,
        principal: Principal,
        exactly_once: bool = False,
        update: bool = False,
        dry_run: bool = False,
        plan: str | None = None,
    ) -> TopicBackupOut:
        """Back the topic up from now on; a topic that is attached keeps its subscription.

        Raises:
            TopicUnknownError: Pub/Sub has no such topic, and none is created.
            SubscriptionMismatchError: it is attached with another deployment's secret.
        """
        _require(principal, topic)
        found = find_backup(self._pubsub, topic)
        if not self._creates_topics:
            self.check_topic(topic)
        exists = not self._creates_topics or self._pubsub.topic_exists(topic)
        token = replay_token(self._secret, topic)
        wanted = found or SubscriptionInfo(
            backup_subscription_id(topic),
            topic,
            replay_filter(token),
            self._ack_deadline_seconds,
            exactly_once=exactly_once,
        )
        if wanted.filter != replay_filter(token) or wanted.topic != topic or wanted.ordering or wanted.detached:
            raise SubscriptionMismatchError(
                f"The subscription {wanted.id} exists, but it is detached, or it has another topic, "
                "filter or ordering. These settings can't be changed. When the subscription has no pending "
                "messages, detach the topic and attach the topic again.",
                subscription=wanted.id,
            )
        seen = _hash_of("attach", exists, found)
        self._check(plan, seen, topic)
        is_exact = exactly_once or wanted.exactly_once
        differences = find_differences(
            wanted, ack_deadline_seconds=self._ack_deadline_seconds, exactly_once=is_exact
        )
        if not dry_run:
            if self._creates_topics:
                self._pubsub.create_topic(topic)
            made = attach_topic(
                self._pubsub,
                topic,
                token=token,
                ack_deadline_seconds=self._ack_deadline_seconds,
                exactly_once=exactly_once,
                update=update,
            )
            wanted, differences = made.subscription, made.differences
            _LOG.info("topic_attached", topic=topic, by=principal.name)
            if made.is_new:
                self._note(TOPIC, topic, f"attached, through {wanted.id}", actor=principal.name)
        return TopicBackupOut(
            topic=topic,
            action="attach",
            dry_run=dry_run,
            subscription=wanted.id,
            filter=redact_tokens(wanted.filter),
            was_attached=found is not None,
            is_attached=found is not None or not dry_run,
            creates_topic=not exists,
            ack_deadline_seconds=wanted.ack_deadline_seconds,
            exactly_once=wanted.exactly_once,
            differences=[SettingDifferenceOut(**asdict(each)) for each in differences],
            backlog_messages=0 if found is None else self._backlog(found.id),
            plan=seen,
        )

    def detach(
        self, topic: str, *, principal: Principal, dry_run: bool = False, plan: str | None = None
    ) -> TopicBackupOut:
        """Stop backing the topic up: delete its backup subscription with every message that waits in it.

        Archived messages stay. A stream with REFEED_BACKUP_LABEL attaches a topic that carries the label again.

        Raises:
            TopicUnknownError: Pub/Sub has no such topic.
            SubscriptionNotFoundError: the topic is not attached.
        """
        _require(principal, topic)
        found = find_backup(self._pubsub, topic)
        if found is None:
            self.check_topic(topic)
            subscription = backup_subscription_id(topic)
            raise SubscriptionNotFoundError(f"{topic} is not attached.", subscription=subscription)
        seen = _hash_of("detach", True, found)
        self._check(plan, seen, topic)
        backlog = self._backlog(found.id)
        if not dry_run:
            self._pubsub.delete_subscription(found.id)
            _LOG.info("topic_detached", topic=topic, backlog=backlog, by=principal.name)
            self._note(TOPIC, topic, f"detached, {found.id} deleted", actor=principal.name)
        return TopicBackupOut(
            topic=topic,
            action="detach",
            dry_run=dry_run,
            subscription=found.id,
            filter=redact_tokens(found.filter),
            was_attached=True,
            is_attached=dry_run,
            creates_topic=False,
            ack_deadline_seconds=found.ack_deadline_seconds,
            exactly_once=found.exactly_once,
            differences=[],
            backlog_messages=backlog,
            plan=seen,
        )

    def check_topic(self, topic: str) -> None:
        """Raise unless Pub/Sub has the topic.

        Raises:
            TopicUnknownError: it has not.
        """
        if not self._pubsub.topic_exists(topic):
            meant = did_you_mean(topic, self._pubsub.list_topics())
            raise TopicUnknownError(f"Pub/Sub has no topic {topic}.{meant}", topic=topic)

    def _backlog(self, subscription: str) -> int | None:
        stats: Mapping[str, SubscriptionStats] | None = None
        with suppress(PubSubError):
            stats = read_stats(self._pubsub.channel, self._pubsub.project)
        return None if stats is None or subscription not in stats else stats[subscription].messages

    def _check(self, plan: str | None, seen: str, topic: str) -> None:
        if plan not in (None, seen):
            raise TopicBackupChangedError(
                f"The backup of {topic} has changed since you read it. Nothing was done.", topic=topic
            )


def _require(principal: Principal, topic: str) -> None:
    principal.require(STREAMS_OPERATE)
    if not principal.may_publish_to(topic):
        raise ForbiddenError(f"{principal.name} may not use the topic {topic}.", topic=topic)


def _hash_of(action: str, has_topic: bool, found: SubscriptionInfo | None) -> str:
    """Return the hash of an action and of what Pub/Sub has; the filter's token makes it no guess."""
    state = [action, has_topic, None if found is None else asdict(found)]
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:32]
