"""A topic, a subscription and a snapshot: the configuration of each, what works for it, what it needs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from local.catalog import render_config
from local.segments import MessageLog
from local.seqset import SeqSet
from local.subscription import Rules, Subscription


@dataclass(slots=True)
class Topic:
    """A topic; ``log_number`` names the folder of its messages, kept while a subscription needs them."""

    KIND: ClassVar = "topics"

    config: Any
    log_number: int
    log: MessageLog
    subscriptions: list[Subscription] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the topic as the catalogue keeps it."""
        return {"log": self.log_number, "config": render_config(self.config)}

    def notify(self) -> None:
        """Wake a consumer of each subscription."""
        for subscription in tuple(self.subscriptions):
            subscription.notify()


@dataclass(slots=True)
class SubscriptionEntry:
    """A subscription's configuration and its working half; it has all messages from ``start_seq`` on."""

    KIND: ClassVar = "subscriptions"

    config: Any
    log_number: int
    start_seq: int
    working: Subscription

    def to_json(self) -> dict[str, Any]:
        """Return the subscription as the catalogue keeps it."""
        return {
            "log": self.log_number,
            "number": self.working.number,
            "start_seq": self.start_seq,
            "config": render_config(self.config),
        }


@dataclass(slots=True)
class Snapshot:
    """What a subscription had acknowledged at one moment."""

    KIND: ClassVar = "snapshots"

    config: Any
    log_number: int
    state: SeqSet

    def to_json(self) -> dict[str, Any]:
        """Return the snapshot as the catalogue keeps it."""
        return {
            "log": self.log_number,
            "floor": self.state.floor,
            "runs": self.state.runs(),
            "config": render_config(self.config),
        }


Entry = Topic | SubscriptionEntry | Snapshot


def read_rules(config: Any) -> Rules:
    """Return how a subscription of this configuration delivers."""
    return Rules(
        config.ack_deadline_seconds,
        microseconds(config.message_retention_duration) / 1_000_000,
        exactly_once=config.enable_exactly_once_delivery,
        max_delivery_attempts=config.dead_letter_policy.max_delivery_attempts or None,
    )


def microseconds(duration: Any) -> int:
    """Return a duration of protobuf in microseconds."""
    return int(duration.ToMicroseconds())


def read_needs(
    ends: Mapping[int, int],
    topics: Iterable[Topic],
    subscriptions: Iterable[SubscriptionEntry],
    snapshots: Iterable[Snapshot],
    now_us: int,
) -> dict[int, tuple[int, int]]:
    """Return by log the first message that somebody needs, and the time from which all are retained.

    ``ends`` has the number after the last message of each log.
    """
    needs = {number: (end, now_us) for number, end in ends.items()}

    def need(number: int, first_seq: int, retention: Any = None) -> None:
        seq, since = needs[number]
        if retention is not None:
            since = min(since, now_us - microseconds(retention))
        needs[number] = min(seq, first_seq), since

    for entry in subscriptions:
        if not entry.config.detached:
            is_kept = entry.config.retain_acked_messages
            need(
                entry.log_number,
                entry.working.floor,
                entry.config.message_retention_duration if is_kept else None,
            )
    for snapshot in snapshots:
        need(snapshot.log_number, snapshot.state.floor)
    for topic in topics:
        if topic.config.HasField("message_retention_duration"):
            need(topic.log_number, needs[topic.log_number][0], topic.config.message_retention_duration)
    return needs
