"""A topic, a subscription and a snapshot: the configuration of each, and what works for it."""

from dataclasses import dataclass, field
from typing import Any

from local.catalog import render_config
from local.segments import MessageLog
from local.seqset import SeqSet
from local.subscription import Rules, Subscription


@dataclass(slots=True)
class Topic:
    """A topic; ``log_number`` names the folder of its messages, kept while a subscription needs them."""

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
