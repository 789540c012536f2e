"""What Pub/Sub carries, how its names look, and the tags of a replayed message."""

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import translate
from typing import Final

from model.errors import InvalidNameError

REPLAY_ATTRIBUTE: Final = "refeed_replay"
BACKFILL_ID_ATTRIBUTE: Final = "refeed_backfill_id"
ROW_ATTRIBUTE: Final = "refeed_row"
TOPIC_ATTRIBUTE: Final = "refeed_topic"
MESSAGE_ID_ATTRIBUTE: Final = "refeed_message_id"
PUBLISH_TIME_ATTRIBUTE: Final = "refeed_publish_time"
# Only where a backfill is meant for one consumer: the id of the subscription whose filter selects it.
TARGET_ATTRIBUTE: Final = "refeed_target"
REPLAY_TAGS: Final = (
    REPLAY_ATTRIBUTE,
    BACKFILL_ID_ATTRIBUTE,
    ROW_ATTRIBUTE,
    TOPIC_ATTRIBUTE,
    MESSAGE_ID_ATTRIBUTE,
    PUBLISH_TIME_ATTRIBUTE,
)

# Pub/Sub "Quotas and limits": resource limits of a message and of a publish request.
MAX_MESSAGE_BYTES: Final = 10 * 1000 * 1000
MAX_PUBLISH_REQUEST_BYTES: Final = 10 * 1000 * 1000
MAX_PUBLISH_REQUEST_MESSAGES: Final = 1000
MAX_ATTRIBUTES: Final = 100
MAX_ATTRIBUTE_KEY_BYTES: Final = 256
MAX_ATTRIBUTE_VALUE_BYTES: Final = 1024

# A comparison of the replay attribute in a filter (=, !=, hasPrefix), its key quoted or not.
_TOKEN = re.compile(r'''(attributes\s*\.\s*"?refeed_replay"?\s*(?:!?=|,)\s*)"(?:[^"\\]|\\.)*"''')
_RESOURCE_ID = re.compile(r"[A-Za-z][A-Za-z0-9\-_.~+%]{2,254}")


@dataclass(frozen=True, slots=True)
class Message:
    """One message as Pub/Sub delivers it; ``message_id`` is unique within its topic only."""

    data: bytes
    attributes: dict[str, str] = field(default_factory=dict)
    message_id: str = ""
    publish_time: datetime | None = None
    ordering_key: str = ""


def is_resource_id(text: str) -> bool:
    """Whether :func:`parse_resource_id` takes ``text``."""
    return _RESOURCE_ID.fullmatch(text) is not None and not text.startswith("goog")


def matches(names: Sequence[str], topic: str) -> bool:
    """Whether one of ``names`` of topics, which may have ``*``, is or covers ``topic``.

    Example:
        >>> matches(["orders", "shop.*"], "shop.carts"), matches(["shop.*"], "shops")
        (True, False)
    """
    return any(topic == name or ("*" in name and re.match(translate(name), topic) is not None) for name in names)


def parse_resource_id(text: str, kind: str = "topic") -> str:
    """Return ``text`` when it is a topic or subscription id that Pub/Sub takes, or raise.

    The rule is Pub/Sub's "Guidelines to name a topic, subscription, schema, or snapshot": a letter first,
    3 to 255 of letters, digits and ``-_.~+%``, not beginning with ``goog``.

    Raises:
        InvalidNameError: it is not one.

    Example:
        >>> parse_resource_id("github.push")
        'github.push'
    """
    if not is_resource_id(text):
        raise InvalidNameError(
            f"{text[:80]!r} is not a valid {kind} id. An id must begin with a letter, and then have 2 to 254 "
            f"letters, digits or -_.~+%. It must not begin with goog.",
            name=text[:300],
        )
    return text


def replay_token(secret: str, topic: str) -> str:
    """Return the value of ``refeed_replay`` for replays into ``topic`` (its id, not its path).

    The backup subscription's filter leaves out exactly this value, so a producer that sets a ``refeed_*``
    attribute of its own, or copies attributes to another topic, is archived like everybody else.

    Example:
        >>> replay_token("s3cret", "orders") == replay_token("s3cret", "orders")
        True
        >>> replay_token("s3cret", "orders") == replay_token("s3cret", "members")
        False
    """
    return hmac.new(secret.encode(), topic.encode(), hashlib.sha256).hexdigest()[:32]


def replay_filter(token: str) -> str:
    """Return the Pub/Sub filter of a backup subscription: everything but replays with ``token``.

    Example:
        >>> replay_filter("ab12")
        'NOT attributes.refeed_replay = "ab12"'
    """
    return f'NOT attributes.{REPLAY_ATTRIBUTE} = "{token}"'


def redact_tokens(filter_text: str) -> str:
    """Return a subscription's filter as callers may see it: without the tokens that replays are known by.

    A producer that has a topic's token can publish messages that its backup leaves out.

    Example:
        >>> redact_tokens(replay_filter("ab12"))
        'NOT attributes.refeed_replay = "<token>"'
    """
    return _TOKEN.sub(r'\1"<token>"', filter_text)


def backup_subscription_id(topic: str) -> str:
    """Return the id of the backup subscription of ``topic``, at most 255 characters.

    Example:
        >>> backup_subscription_id("orders")
        'refeed-backup.orders'
    """
    return _fitting_id(f"{BACKUP_SUBSCRIPTION_PREFIX}{topic}")


def backup_snapshot_id(topic: str, name: str) -> str:
    """Return the id of the snapshot ``name`` of the backup subscription of ``topic``, at most 255 characters.

    Example:
        >>> backup_snapshot_id("orders", "before-repair")
        'refeed-backup-at.before-repair.orders'
    """
    return _fitting_id(f"{BACKUP_SNAPSHOT_PREFIX}{name}.{topic}")


def source_snapshot_id(attempt: str, subscription: str) -> str:
    """Return the id of Pub/Sub's snapshot of ``subscription`` in one try to make a stream's snapshot.

    Example:
        >>> source_snapshot_id("sn_01.5f0c", "refeed-backup.orders")
        'refeed.sn_01.5f0c.refeed-backup.orders'
    """
    return _fitting_id(f"refeed.{attempt}.{subscription}")


def _fitting_id(name: str) -> str:
    if len(name) <= MAX_RESOURCE_ID_LENGTH:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{name[: MAX_RESOURCE_ID_LENGTH - 17]}~{digest}"


BACKUP_SUBSCRIPTION_PREFIX: Final = "refeed-backup."
BACKUP_SNAPSHOT_PREFIX: Final = "refeed-backup-at."
MAX_RESOURCE_ID_LENGTH: Final = 255
