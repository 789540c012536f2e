"""What BigQuery answers when it refuses: the REST API's reasons with their codes."""

import re
from collections.abc import Mapping
from typing import Any, Final

# "BigQuery API HTTP status and error codes" (docs/errors), columns Reason and Code. bytesBilledLimitExceeded is
# not in that table; clients of the real service report it with this spelling.
HTTP_CODES: Final = {
    "accessDenied": 403,
    "backendError": 500,
    "billingNotEnabled": 403,
    "blocked": 403,
    "bytesBilledLimitExceeded": 400,
    "conditionNotMet": 412,
    "duplicate": 409,
    "internalError": 500,
    "invalid": 400,
    "invalidQuery": 400,
    "jobBackendError": 400,
    "jobInternalError": 400,
    "jobRateLimitExceeded": 400,
    "notFound": 404,
    "notImplemented": 501,
    "quotaExceeded": 403,
    "rateLimitExceeded": 403,
    "resourceInUse": 400,
    "resourcesExceeded": 400,
    "responseTooLarge": 403,
    "stopped": 200,
    "tableUnavailable": 400,
}
_STATUSES: Final = {
    400: "INVALID_ARGUMENT",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    412: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
}


class Problem(Exception):  # noqa: N818
    """A call is refused; ``reason`` is BigQuery's word for it."""

    def __init__(self, reason: str, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.code = code or HTTP_CODES[reason]

    def proto(self) -> dict[str, Any]:
        """Return the ErrorProto that a job's status holds."""
        return {"reason": self.reason, "message": self.message}

    def body(self) -> dict[str, Any]:
        error = {"message": self.message, "domain": "global", "reason": self.reason}
        status = _STATUSES.get(self.code, "UNKNOWN")
        return {"error": {"code": self.code, "message": self.message, "errors": [error], "status": status}}


# "Requirements for labels" ("Introduction to labels"): keys and values are lower case, of 63 characters at most.
_LABEL: Final = re.compile(r"[\w-]{0,63}")


def check_labels(labels: Mapping[str, Any] | None) -> None:
    """Refuse labels that the service refuses.

    Raises:
        Problem: ``invalid``.
    """
    if len(labels or {}) > 64:
        raise Problem("invalid", "There are at most 64 labels.")
    for key, value in (labels or {}).items():
        for what, text in (("key", key), ("value", value or "")):
            is_fine = _LABEL.fullmatch(text) and text == text.lower() and (what == "value" or text[:1].isalpha())
            if not is_fine:
                raise Problem(
                    "invalid",
                    f"Label {what} {text!r} has invalid characters. Only lowercase letters (including "
                    "international), digits, dashes and underscores are allowed.",
                )


def not_found(kind: str, project: str, *parts: str) -> Problem:
    return Problem("notFound", f"Not found: {kind} {project}:{'.'.join(parts)}")


def duplicate(kind: str, project: str, *parts: str) -> Problem:
    return Problem("duplicate", f"Already Exists: {kind} {project}:{'.'.join(parts)}")
