"""What waits for a stream, and until when Pub/Sub keeps it."""

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from connectors.pubsub.backlog import BacklogSample
from connectors.pubsub.client import SubscriptionInfo
from connectors.pubsub.stats import SubscriptionStats
from model.message import BACKUP_SUBSCRIPTION_PREFIX
from model.stream_options import StreamKind

# A stream writes its status every five seconds, also when nothing comes.
SILENT_SECONDS: Final = 15.0


def subscriptions_of(kind: str | None, status: Mapping[str, Any], known: Iterable[str]) -> list[str]:
    """Return those of the known subscriptions that the stream names, else every backup's for the backup."""
    named = status.get("subscriptions")
    if named is None and kind == StreamKind.BACKUP:
        return [name for name in known if name.startswith(BACKUP_SUBSCRIPTION_PREFIX)]
    there = set(known)
    return [name for name in named or () if name in there]


def retentions_of(subscriptions: Iterable[SubscriptionInfo]) -> dict[str, int]:
    """Return the seconds that each subscription keeps messages for, by its id."""
    return {each.id: each.keeps_seconds for each in subscriptions}


def parse_sample(status: Mapping[str, Any]) -> BacklogSample | None:
    """Return the backlog that the stream measured last; None where it never did."""
    found = status.get("backlog")
    if not isinstance(found, dict):
        return None
    age, at, messages = (found.get(field) for field in ("oldest_unacked_seconds", "sampled_at", "messages"))
    if not isinstance(age, int | float) or not isinstance(at, int | float):
        return None
    return BacklogSample(float(age), int(messages) if isinstance(messages, int | float) else None, float(at))


def retained_until(
    kind: str | None,
    status: Mapping[str, Any],
    stats: Mapping[str, SubscriptionStats] | None,
    retentions: Mapping[str, int] | None,
) -> float | None:
    """Return the Unix time before which Pub/Sub deletes nothing that waits for the stream.

    By Pub/Sub's own figures it is when the oldest message goes. By the stream's last sample it is a lower bound,
    which stands also when the stream has long ended: what is unacknowledged later is no older. None is unknown, or
    that nothing waits.
    """
    own = subscriptions_of(kind, status, retentions or ())
    if retentions is None or not own:
        return None
    if stats is not None:
        waiting = ((stats[name], retentions[name]) for name in own if name in stats and stats[name].messages)
        return min((time.time() - one.oldest_unacked_seconds + kept for one, kept in waiting), default=None)
    sample = parse_sample(status)
    if sample is None:
        return None
    return sample.sampled_at - sample.oldest_unacked_seconds + min(retentions[name] for name in own)


def backlog_of(
    kind: str | None,
    status: Mapping[str, Any],
    stats: Mapping[str, SubscriptionStats] | None,
    *,
    is_heard: bool,
) -> BacklogSample | None:
    """Return what waits for the stream: by Pub/Sub's own figures, else as the stream itself measured it lately."""
    if stats is not None and kind != StreamKind.KINESIS:
        own = [stats[name] for name in subscriptions_of(kind, status, stats)]
        if not own:
            return None
        return BacklogSample(
            max(one.oldest_unacked_seconds for one in own), sum(one.messages for one in own), time.time()
        )
    return parse_sample(status) if is_heard else None
