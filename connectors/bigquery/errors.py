"""Google's errors as ours: which pass by themselves, which need a role, a login or ``refeed init``."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import google.auth.exceptions
import requests.exceptions
from google.api_core import exceptions as api
from google.protobuf import any_pb2

from connectors.patience import retry_passing
from model.errors import (
    QuotaExceededError,
    TableNotFoundError,
    WarehouseCredentialsError,
    WarehouseError,
    WarehousePermissionError,
    WarehouseUnavailableError,
)

Result = TypeVar("Result")

# Predefined roles, see docs/iam.md.
DATA_ROLE: Final = "roles/bigquery.dataEditor"
JOB_ROLE: Final = "roles/bigquery.jobUser"
DATASET_ROLE: Final = "roles/bigquery.user"

# Google's "BigQuery error messages": reasons that a 403 gives for a quota and not for a missing permission.
_QUOTA_REASONS: Final = frozenset({"quotaExceeded", "rateLimitExceeded", "jobRateLimitExceeded"})
# The same page: what a client may simply send again.
_PASSING_REASONS: Final = frozenset({"backendError", "internalError", "jobBackendError", "jobInternalError"})
# Google's "Storage Write API best practices" names the gRPC codes to retry; CANCELLED and UNKNOWN are what a
# connection gives that breaks.
_PASSING: Final = (
    api.Aborted,
    api.BadGateway,
    api.Cancelled,
    api.DeadlineExceeded,
    api.GatewayTimeout,
    api.InternalServerError,
    api.RetryError,
    api.ServiceUnavailable,
    api.Unknown,
    # An answer that breaks off in the middle is no ConnectionError of requests.
    requests.exceptions.ChunkedEncodingError,
    requests.exceptions.ConnectionError,
    requests.exceptions.Timeout,
    google.auth.exceptions.TransportError,
    # "The job did not complete in the given timeout": QueryJob.result, and no error of the clients' own.
    TimeoutError,
)
_STORAGE_ERROR: Final = "/google.cloud.bigquery.storage.v1.StorageError"
# How long a call that fails in passing is repeated, where no person waits for its answer.
PATIENCE_SECONDS: Final = 120.0
# What the clients let through of a fault, their own and their transports'.
SDK_ERRORS: Final = (
    api.GoogleAPIError,
    google.auth.exceptions.GoogleAuthError,
    requests.exceptions.RequestException,
    TimeoutError,
)


def error_from(exc: Exception, what: str, role: str = DATA_ROLE) -> WarehouseError:
    """Return our error for ``exc``; ``what`` names the call in words, ``role`` is what a refused caller lacks."""
    text = f"{what}: {getattr(exc, 'message', None) or str(exc) or type(exc).__name__}"
    if isinstance(exc, google.auth.exceptions.DefaultCredentialsError | google.auth.exceptions.RefreshError):
        return WarehouseCredentialsError(
            "No valid Google credentials were found. Run 'gcloud auth application-default "
            "login', or set BIGQUERY_EMULATOR_HOST and REFEED_BIGQUERY_STORAGE_HOST to use an "
            f"emulator ({text})."
        )
    reason = _reason(exc)
    if isinstance(exc, api.TooManyRequests) or reason in _QUOTA_REASONS:
        return QuotaExceededError(text, reason=reason)
    if isinstance(exc, _PASSING) or reason in _PASSING_REASONS:
        return WarehouseUnavailableError(text, reason=reason)
    if isinstance(exc, api.Forbidden | api.Unauthorized):
        return WarehousePermissionError(
            f"{text} The account that Refeed runs as needs {role}; docs/iam.md says where.", role=role
        )
    if isinstance(exc, api.NotFound):
        return TableNotFoundError(f"{text} Run 'refeed init' to create what is missing.")
    return WarehouseError(
        text,
        reason=reason,
        is_bad_request=isinstance(exc, api.BadRequest),
        storage_code=_storage_code(exc),
    )


@contextmanager
def our_errors(what: str, role: str = DATA_ROLE) -> Iterator[None]:
    """Raise what Google's clients raise in the block as one of our errors."""
    try:
        yield
    except SDK_ERRORS as exc:
        raise error_from(exc, what, role) from exc


def call_bigquery(
    call: Callable[[], Result], what: str, *, seconds: float = PATIENCE_SECONDS, role: str = DATA_ROLE
) -> Result:
    """Return what ``call`` of Google's clients returns; while it fails in passing it is repeated for ``seconds``.

    ``what`` names the call in words, ``role`` is what a refused caller lacks.

    Raises:
        WarehouseError: what :func:`error_from` makes of Google's error.
    """

    def call_once() -> Result:
        with our_errors(what, role):
            return call()

    return retry_passing(call_once, seconds=seconds)


def find_in_bigquery(
    call: Callable[[], Result], what: str, *, seconds: float = PATIENCE_SECONDS, role: str = DATA_ROLE
) -> Result | None:
    """Return what ``call`` returns as :func:`call_bigquery` does, None when BigQuery finds no such thing."""

    def find() -> Result | None:
        try:
            return call()
        except api.NotFound:
            return None

    return call_bigquery(find, what, seconds=seconds, role=role)


def _storage_code(exc: Exception) -> str | None:
    """Return the code of the StorageError in the details of a status, None where there is none."""
    for detail in getattr(exc, "details", None) or ():
        if isinstance(detail, any_pb2.Any) and detail.type_url.endswith(_STORAGE_ERROR):
            from google.cloud.bigquery_storage_v1 import types

            return str(types.StorageError.deserialize(detail.value).code.name)
    return None


def _reason(exc: Exception) -> str | None:
    for fault in getattr(exc, "errors", None) or ():
        if isinstance(fault, dict) and fault.get("reason"):
            return str(fault["reason"])
    return None
