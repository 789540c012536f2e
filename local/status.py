"""The errors a Pub/Sub call answers with: a gRPC status and the real service's words."""

from collections.abc import Sequence
from typing import Final

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

# Metadata of a gRPC answer holds 8 KiB; each ack id takes some 100 bytes of it.
_MAX_NAMED_ACK_IDS: Final = 50


class StatusError(Exception):
    """A call is answered with ``code`` and ``text``; the gRPC services turn it into the status they send.

    ``details`` is a serialised google.rpc.Status for clients that read more than code and text; ``ack_ids`` are
    those that exactly-once delivery refuses.
    """

    def __init__(
        self, code: grpc.StatusCode, text: str, *, details: bytes | None = None, ack_ids: Sequence[str] = ()
    ) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.details = details
        self.ack_ids = tuple(ack_ids)

    @classmethod
    def invalid(cls, text: str) -> "StatusError":
        """INVALID_ARGUMENT: the request could never succeed as it is."""
        return cls(grpc.StatusCode.INVALID_ARGUMENT, text)

    @classmethod
    def not_found(cls, name: str) -> "StatusError":
        """NOT_FOUND for a full resource name; the text names its last part, as the real service does."""
        return cls(grpc.StatusCode.NOT_FOUND, f"Resource not found (resource={name.rsplit('/', 1)[-1]}).")

    @classmethod
    def already_exists(cls, name: str) -> "StatusError":
        """ALREADY_EXISTS for a full resource name."""
        resource = name.rsplit("/", 1)[-1]
        return cls(
            grpc.StatusCode.ALREADY_EXISTS, f"Resource already exists in the project (resource={resource})."
        )

    @classmethod
    def failed_precondition(cls, text: str) -> "StatusError":
        """FAILED_PRECONDITION: right in itself, but not for what the resource is now."""
        return cls(grpc.StatusCode.FAILED_PRECONDITION, text)

    @classmethod
    def ack_ids_expired(cls, ack_ids: Sequence[str]) -> "StatusError":
        """INVALID_ARGUMENT of exactly-once delivery: these leases are over; the call's other ids were taken.

        The ids, 50 at most, are named in an ErrorInfo, where Google's clients look for them.
        """
        text = (
            "Some acknowledgement ids in the request were invalid. This could be because the acknowledgement ids "
            "have expired or the acknowledgement ids were malformed."
        )
        info = error_details_pb2.ErrorInfo(
            reason="EXACTLY_ONCE_ACKID_FAILURE",
            domain="pubsub.googleapis.com",
            metadata=dict.fromkeys(ack_ids[:_MAX_NAMED_ACK_IDS], "PERMANENT_FAILURE_INVALID_ACK_ID"),
        )
        detail = any_pb2.Any()
        detail.Pack(info)
        code = grpc.StatusCode.INVALID_ARGUMENT
        status = status_pb2.Status(code=code.value[0], message=text, details=[detail])
        return cls(code, text, details=status.SerializeToString(), ack_ids=ack_ids)

    @classmethod
    def limit_reached(cls, limit: str, current: int, maximum: int) -> "StatusError":
        """RESOURCE_EXHAUSTED: the project has as many as it may have."""
        return cls(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            f'Your project has exceeded a limit: (type="{limit}", current={current}, maximum={maximum}).',
        )

    @classmethod
    def disk_full(cls) -> "StatusError":
        """RESOURCE_EXHAUSTED: the disk took nothing of the request; it may be sent again later."""
        return cls(grpc.StatusCode.RESOURCE_EXHAUSTED, "The local server's disk is full; nothing was stored.")

    @classmethod
    def unavailable(cls, text: str) -> "StatusError":
        """UNAVAILABLE: not now; the same call may succeed later."""
        return cls(grpc.StatusCode.UNAVAILABLE, text)

    @classmethod
    def unimplemented(cls, what: str) -> "StatusError":
        """UNIMPLEMENTED: the real service has it, this one does not."""
        return cls(grpc.StatusCode.UNIMPLEMENTED, f"The local Pub/Sub server does not have {what}.")
