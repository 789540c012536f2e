"""A raw gRPC call's failure as one of our errors."""

from typing import Final

import grpc

from model.errors import PubSubError, PubSubUnavailableError, SubscriptionNotFoundError, TopicNotFoundError

# Google's "Retry requests" page for Pub/Sub: what a client may simply send again.
TRANSIENT: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.CANCELLED,
    }
)


def error_from(exc: grpc.RpcError, what: str) -> PubSubError:
    """Return our error for ``exc``; ``what`` names the call that failed, in words."""
    status: grpc.StatusCode = exc.code()
    text = f"{what}: {status.name}: {exc.details()}"
    if status in TRANSIENT:
        return PubSubUnavailableError(text, status=status.name)
    if status is grpc.StatusCode.NOT_FOUND:
        missing = SubscriptionNotFoundError if "ubscri" in what else TopicNotFoundError
        return missing(text, status=status.name)
    return PubSubError(text, status=status.name)
