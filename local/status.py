"""The errors a Pub/Sub call answers with: a gRPC status and the real service's words."""

import grpc


class StatusError(Exception):
    """A call is answered with ``code`` and ``text``; the gRPC services turn it into the status they send."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text

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
