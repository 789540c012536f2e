"""What Pub/Sub allows in a topic's, subscription's or snapshot's configuration, and its defaults."""

import re
from collections.abc import Iterable
from typing import Any, Final

from google.pubsub_v1 import types

from local.status import StatusError
from model.filters import FilterError, parse_filter

TopicConfig: Final[Any] = types.Topic.pb()
SubscriptionConfig: Final[Any] = types.Subscription.pb()
SnapshotConfig: Final[Any] = types.Snapshot.pb()

DELETED_TOPIC: Final = "_deleted-topic_"

_DAY_SECONDS: Final = 86400
_DEFAULT_ACK_DEADLINE_SECONDS: Final = 10
_MIN_ACK_DEADLINE_SECONDS: Final = 10
MAX_ACK_DEADLINE_SECONDS: Final = 600
_DEFAULT_RETENTION_SECONDS: Final = 7 * _DAY_SECONDS
_MIN_RETENTION_SECONDS: Final = 600
_MAX_RETENTION_SECONDS: Final = 31 * _DAY_SECONDS
_DEFAULT_EXPIRATION_SECONDS: Final = 31 * _DAY_SECONDS
_MIN_EXPIRATION_SECONDS: Final = _DAY_SECONDS
_DEFAULT_DELIVERY_ATTEMPTS: Final = 5
_MIN_DELIVERY_ATTEMPTS: Final = 5
_MAX_DELIVERY_ATTEMPTS: Final = 100

_NAME: Final = re.compile(
    r"projects/[^/\s]+/(topics|subscriptions|snapshots)/(?!goog)[A-Za-z][A-Za-z0-9\-_.~+%]{2,254}"
)

_TOPIC_FIELDS: Final = frozenset(
    {"name", "labels", "message_retention_duration", "message_storage_policy", "kms_key_name"}
)
_TOPIC_UPDATES: Final = frozenset({"labels", "message_retention_duration", "message_storage_policy"})
_SUBSCRIPTION_FIELDS: Final = frozenset(
    {
        "name", "topic", "ack_deadline_seconds", "retain_acked_messages", "message_retention_duration", "labels",
        "enable_message_ordering", "expiration_policy", "filter", "retry_policy", "push_config",
        "dead_letter_policy", "enable_exactly_once_delivery", "detached",
    }
)  # fmt: skip
_SUBSCRIPTION_UPDATES: Final = frozenset(
    {
        "ack_deadline_seconds", "retain_acked_messages", "message_retention_duration", "labels",
        "expiration_policy", "retry_policy", "push_config", "dead_letter_policy", "enable_exactly_once_delivery",
    }
)  # fmt: skip
_SNAPSHOT_UPDATES: Final = frozenset({"expire_time", "labels"})


def validate_name(name: str, kind: str) -> None:
    """Raise INVALID_ARGUMENT unless ``name`` is a full name of ``kind``, ``topics`` for example."""
    found = _NAME.fullmatch(name)
    if found is None or found[1] != kind:
        raise StatusError.invalid(
            f"Invalid [{kind}] name: (name={name[:300]}). Refer to "
            "https://cloud.google.com/pubsub/docs/pubsub-basics#resource_names for more information."
        )


def complete_topic(config: Any) -> Any:
    """Return a copy of a new topic's configuration, checked.

    Raises:
        StatusError: INVALID_ARGUMENT, or UNIMPLEMENTED for what a local server does not have.
    """
    validate_name(config.name, "topics")
    config = _copy_known(config, _TOPIC_FIELDS)
    if config.HasField("message_retention_duration"):
        _validate_retention(config)
    return config


def complete_subscription(config: Any) -> Any:
    """Return a copy of a new subscription's configuration, checked and with Pub/Sub's defaults.

    Raises:
        StatusError: INVALID_ARGUMENT, or UNIMPLEMENTED for what a local server does not have.
    """
    validate_name(config.name, "subscriptions")
    validate_name(config.topic, "topics")
    config = _copy_known(config, _SUBSCRIPTION_FIELDS)
    if config.push_config.ListFields():
        raise StatusError.unimplemented("push subscriptions")
    config.ClearField("push_config")
    if not config.ack_deadline_seconds:
        config.ack_deadline_seconds = _DEFAULT_ACK_DEADLINE_SECONDS
    if not config.HasField("message_retention_duration"):
        config.message_retention_duration.seconds = _DEFAULT_RETENTION_SECONDS
    if not config.HasField("expiration_policy"):
        config.expiration_policy.ttl.seconds = _DEFAULT_EXPIRATION_SECONDS
    if config.HasField("dead_letter_policy"):
        _complete_dead_letter_policy(config.dead_letter_policy)
    _validate_subscription(config)
    try:
        parse_filter(config.filter)
    except FilterError as exc:
        raise StatusError.invalid(str(exc)) from exc
    return config


def _validate_subscription(config: Any) -> None:
    if not _MIN_ACK_DEADLINE_SECONDS <= config.ack_deadline_seconds <= MAX_ACK_DEADLINE_SECONDS:
        raise StatusError.invalid(
            f"Invalid ack deadline given (ack_deadline_seconds={config.ack_deadline_seconds}). "
            f"The deadline must be between {_MIN_ACK_DEADLINE_SECONDS} and {MAX_ACK_DEADLINE_SECONDS} seconds."
        )
    _validate_retention(config)
    if config.expiration_policy.HasField("ttl"):
        _validate_duration("expiration_policy.ttl", config.expiration_policy.ttl, _MIN_EXPIRATION_SECONDS, None)
        if config.expiration_policy.ttl.seconds < config.message_retention_duration.seconds:
            raise StatusError.invalid(
                "The expiration_policy.ttl must be at least as long as the message_retention_duration."
            )


def _complete_dead_letter_policy(policy: Any) -> None:
    validate_name(policy.dead_letter_topic, "topics")
    if not policy.max_delivery_attempts:
        policy.max_delivery_attempts = _DEFAULT_DELIVERY_ATTEMPTS
    if not _MIN_DELIVERY_ATTEMPTS <= policy.max_delivery_attempts <= _MAX_DELIVERY_ATTEMPTS:
        raise StatusError.invalid(
            f"Invalid max_delivery_attempts given ({policy.max_delivery_attempts}): it must be between "
            f"{_MIN_DELIVERY_ATTEMPTS} and {_MAX_DELIVERY_ATTEMPTS}."
        )


def update_topic(config: Any, update: Any, paths: Iterable[str]) -> Any:
    """Return a copy of ``config`` with the fields named in ``paths`` taken from ``update``."""
    return complete_topic(_merge(config, update, paths, _TOPIC_UPDATES))


def update_subscription(config: Any, update: Any, paths: Iterable[str]) -> Any:
    """Return a copy of ``config`` with the fields named in ``paths`` taken from ``update``."""
    merged = _merge(config, update, paths, _SUBSCRIPTION_UPDATES)
    topic = merged.topic
    if topic == DELETED_TOPIC:
        merged.topic = "projects/any/topics/deleted"
    merged = complete_subscription(merged)
    merged.topic = topic
    return merged


def update_snapshot(config: Any, update: Any, paths: Iterable[str]) -> Any:
    """Return a copy of ``config`` with the fields named in ``paths`` taken from ``update``."""
    merged = _merge(config, update, paths, _SNAPSHOT_UPDATES)
    if not merged.HasField("expire_time"):
        raise StatusError.invalid("The update_mask names expire_time, and the snapshot has none.")
    return merged


def change(config: Any, **fields: Any) -> Any:
    """Return a copy of ``config`` with other values in some fields."""
    changed = type(config)()
    changed.CopyFrom(config)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _merge(config: Any, update: Any, paths: Iterable[str], allowed: frozenset[str]) -> Any:
    names = list(dict.fromkeys(path.split(".")[0] for path in paths))
    if not names:
        raise StatusError.invalid("The update_mask in the request must name at least one field.")
    known = {field.name for field in config.DESCRIPTOR.fields}
    merged = change(config)
    for name in names:
        if name not in known:
            raise StatusError.invalid(f"Invalid update_mask provided in the request: no field {name}.")
        if name not in allowed:
            raise StatusError.invalid(
                f"Invalid update_mask provided in the request: the field {name} can't be updated."
            )
        merged.ClearField(name)
    picked = change(update)
    for field, _ in update.ListFields():
        if field.name not in names:
            picked.ClearField(field.name)
    merged.MergeFrom(picked)
    return merged


def _copy_known(config: Any, known: frozenset[str]) -> Any:
    for field, _ in config.ListFields():
        # Output only and without effect here; clients that copy a read configuration send it.
        if field.name in {"state", "topic_message_retention_duration"}:
            continue
        if field.name not in known:
            raise StatusError.unimplemented(field.name)
    copy = change(config)
    for field, _ in config.ListFields():
        if field.name not in known:
            copy.ClearField(field.name)
    return copy


def _validate_retention(config: Any) -> None:
    name = "message_retention_duration"
    _validate_duration(name, getattr(config, name), _MIN_RETENTION_SECONDS, _MAX_RETENTION_SECONDS)


def _validate_duration(name: str, duration: Any, minimum: int, maximum: int | None) -> None:
    seconds = duration.seconds + duration.nanos / 1e9
    if seconds < minimum or (maximum is not None and seconds > maximum):
        upper = "" if maximum is None else f" and at most {maximum} seconds"
        raise StatusError.invalid(
            f"Invalid {name} given ({seconds:g} seconds): it must be at least {minimum} seconds{upper}."
        )
