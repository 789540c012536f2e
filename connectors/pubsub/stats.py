"""The messages that all subscriptions have still to deliver, from one call to the local Pub/Sub server."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import grpc

from connectors.pubsub.errors import error_from

_STATS: Final = "/refeed.local.Stats/Get"
_TIMEOUT_SECONDS: Final = 5.0
# How servers without the method answer: emulators by the first, Google's by any of these.
_UNKNOWN: Final = frozenset(
    {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
)


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    """Messages that no acknowledgement has come for, and the age of the oldest in seconds."""

    messages: int
    oldest_unacked_seconds: float


def read_stats(channel: grpc.Channel, project: str) -> Mapping[str, SubscriptionStats] | None:
    """Return the figures of every subscription of ``project`` by its id, as :func:`read_stats_by_path` does."""
    prefix = f"projects/{project}/subscriptions/"
    found = read_stats_by_path(channel)
    if found is None:
        return None
    return {path.removeprefix(prefix): stats for path, stats in found.items() if path.startswith(prefix)}


def read_stats_by_path(channel: grpc.Channel) -> Mapping[str, SubscriptionStats] | None:
    """Return the figures of every subscription by its full name; None where Pub/Sub has no such method.

    Google's service has them in Cloud Monitoring only, minutes late; see ``connectors.pubsub.backlog``.

    Raises:
        PubSubError: the server does not answer.
    """
    call = channel.unary_unary(_STATS, request_serializer=None, response_deserializer=None)
    try:
        answer = json.loads(call(b"", timeout=_TIMEOUT_SECONDS))
    except grpc.RpcError as exc:
        if exc.code() in _UNKNOWN:
            return None
        raise error_from(exc, "figures of the subscriptions") from exc
    return {
        # Leased messages are among the undelivered ones until they are acknowledged.
        path: SubscriptionStats(int(stats["undelivered_messages"]), float(stats["oldest_unacked_seconds"]))
        for path, stats in answer.items()
    }
