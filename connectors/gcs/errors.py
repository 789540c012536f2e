"""Cloud Storage's errors as ours: what passes by itself, what needs a role, a login or a bucket."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import google.auth.exceptions
import requests.exceptions
from google.api_core import exceptions as api

from model.errors import FolderCredentialsError, FolderUnavailableError

# "IAM roles for Cloud Storage": reads, writes, lists and deletes objects, and no bucket.
BUCKET_ROLE: Final = "roles/storage.objectUser"

SDK_ERRORS: Final = (
    api.GoogleAPIError,
    google.auth.exceptions.GoogleAuthError,
    requests.exceptions.RequestException,
)


def error_from(exc: Exception, what: str) -> OSError:
    """Return our error for ``exc``; ``what`` names the object. One that is not there is a FileNotFoundError."""
    text = f"{what}: {getattr(exc, 'message', None) or exc}"
    if isinstance(exc, google.auth.exceptions.DefaultCredentialsError | google.auth.exceptions.RefreshError):
        return FolderCredentialsError(
            f"No valid Google credentials were found. Run 'gcloud auth application-default login' ({text})."
        )
    if isinstance(exc, api.NotFound):
        # The address is in the text too, and with it the bucket's name.
        if "bucket does not exist" in str(exc):
            return FolderUnavailableError(f"{text} Create the bucket, or correct REFEED_JOBS_FOLDER.")
        return FileNotFoundError(text)
    if isinstance(exc, api.Forbidden | api.Unauthorized):
        return FolderUnavailableError(
            f"{text} The account that Refeed runs as needs {BUCKET_ROLE} on the bucket; docs/iam.md says where.",
            role=BUCKET_ROLE,
        )
    return FolderUnavailableError(text)


@contextmanager
def our_errors(what: str) -> Iterator[None]:
    """Raise what Google's client raises in the block as one of our errors."""
    try:
        yield
    except SDK_ERRORS as exc:
        raise error_from(exc, what) from exc
