"""A raw gRPC call's failure as one of our errors."""

from typing import Final

import grpc
from google.rpc import error_details_pb2, status_pb2

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
# One bad message refuses the whole request it travels in.
REFUSED: Final = frozenset({grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE})


def read_refused_ack_ids(exc: grpc.RpcError) -> dict[str, str]:
    """Return the ack ids that exactly-once delivery refused in this call, with the reason of each; usually none.

    "Exactly-once delivery", Google's documentation: the call fails with INVALID_ARGUMENT when a lease was over,
    its other ids are taken, and a reason that begins with TRANSIENT_ may be tried again.
    """
    metadata = exc.trailing_metadata() if exc.code() is grpc.StatusCode.INVALID_ARGUMENT else None
    for datum in metadata or ():
        if datum.key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(datum.value).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info) and info.reason == "EXACTLY_ONCE_ACKID_FAILURE":
                    return dict(info.metadata)
    return {}


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
