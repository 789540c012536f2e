"""Errors of a bucket's client as those of a folder: what passes, and what needs a right, a login or a bucket."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from connectors.object_store.clock import wrong_clock
from model.errors import FolderCredentialsError, FolderUnavailableError

# "IAM roles for Cloud Storage": reads, writes, lists and deletes objects, and no bucket.
BUCKET_ROLE: Final = "roles/storage.objectUser"
# https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html: without the right to list, an object that is
# not there is a 403 and no 404.
BUCKET_ACTIONS: Final = "s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket"

_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
# Amazon S3 says it to a machine whose clock is more than 15 minutes off.
_SERVER_TIME: Final = re.compile(r"<ServerTime>([\d:TZ.-]+)</ServerTime>")
_REFUSED: Final = re.compile(r"status code\W+40[13]")
# The client looks last at the server of a machine's metadata, whose paths these are; the rest is what it says of
# credentials that it can't use.
_NO_CREDENTIALS: Final = re.compile(
    r"/latest/(?:api|meta-data)/|/computeMetadata/|token request|No Google credentials|token file"
)


def wrong_credentials(text: str) -> str | None:
    """Return what to do if a store refused not a right but the credentials themselves, by the code it gave."""
    code, moment = _CODE.search(text), _SERVER_TIME.search(text)
    if code is None or code[1] == "AccessDenied":
        return None
    if moment is not None and (wrong := wrong_clock(datetime.fromisoformat(moment[1]).timestamp())) is not None:
        return wrong
    return f"The store answered {code[1]}. Correct the credentials that Refeed uses, or this machine's clock."


@contextmanager
def folder_errors(location: str) -> Iterator[None]:
    """Raise what a bucket's client raises in the block as an error about the folder or file at ``location``."""
    try:
        yield
    except (FolderUnavailableError, FileExistsError):
        raise
    except FileNotFoundError as exc:
        raise FileNotFoundError(f"{location} does not exist.") from exc
    except OSError as exc:
        raise _error_from(str(exc), location) from exc


def _error_from(said: str, location: str) -> FolderUnavailableError:
    text = f"{location}: {said}"
    is_amazon = location.startswith("s3://")
    if _NO_CREDENTIALS.search(said):
        fix = (
            "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role"
            if is_amazon
            else "Run 'gcloud auth application-default login'"
        )
        return FolderCredentialsError(
            f"No valid {'AWS' if is_amazon else 'Google'} credentials were found. {fix} ({text})."
        )
    if "<Code>NoSuchBucket</Code>" in said:
        return FolderUnavailableError(f"{text} Create the bucket, or correct REFEED_JOBS_FOLDER.")
    if _REFUSED.search(said):
        fix = wrong_credentials(said) or (
            f"The account that Refeed runs as needs {BUCKET_ACTIONS if is_amazon else BUCKET_ROLE} on the bucket; "
            "docs/iam.md says where."
        )
        return FolderUnavailableError(f"{text} {fix}", role=None if is_amazon else BUCKET_ROLE)
    return FolderUnavailableError(text)
