"""Exceptions of delta-rs, obstore, PyArrow and the file system as errors of Refeed."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake.exceptions import DeltaError, TableNotFoundError

from connectors.object_store.errors import wrong_credentials
from model.errors import (
    StorageFullError,
    WarehouseError,
    WarehousePermissionError,
    WarehouseUnavailableError,
)

# What passes, by two pages. "All requests that return 5xx errors from Amazon S3 can and should be retried":
# https://aws.amazon.com/premiumsupport/knowledge-center/http-5xx-errors-s3/ (SlowDown is a 503). "HTTP 408, 429,
# and 5xx response codes. Socket timeouts and TCP disconnects":
# https://cloud.google.com/storage/docs/retry-strategy.
# The clients say it in words alone; delta-rs and obstore count their tries of what passes, and of nothing else.
_UNAVAILABLE: Final = re.compile(
    r"after \d+ retries|HTTP error|(?:HTTP status|status code)\W+(?:408|429|5\d\d)"
    r"|AWS Error (?:NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|THROTTLING|REQUEST_TIMEOUT)"
)
# A store that can't do this at all.
_NEVER: Final = re.compile(r"(?:HTTP status|status code)\W+50[15]")
_REFUSED: Final = re.compile(r"(?:HTTP status|status code)\W+40[13]|AWS Error ACCESS_DENIED")
# "When Amazon S3 receives a request [...] it first verifies that the requester has the necessary permissions":
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/how-s3-evaluates-access-control.html
# So the entry was not written. An earlier try, of which the error would have the number, may have been.
_ENTRY_REFUSED: Final = re.compile(
    r"performing PUT \S+/_delta_log/\d{20}\.json in \S+ - Server returned non-2xx status code\W+40[13]"
)
# The requests that need a right, as obstore, delta-rs and PyArrow name them in an error.
_RIGHTS: Final = (
    (r"list-type=|ListObjects", "s3:ListBucket (Cloud Storage: storage.objects.list)"),
    (
        r"POST \S+\?delete\b|performing DELETE|DeleteObject",
        "s3:DeleteObject (Cloud Storage: storage.objects.delete)",
    ),
    (
        r"performing (?:PUT|POST)|PutObject|Upload",
        "s3:PutObject (Cloud Storage: storage.objects.create, and storage.objects.delete to replace an object)",
    ),
    # https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html: without the right to list, an object that
    # does not exist is a 403 and no 404.
    (r"", "s3:GetObject and s3:ListBucket (Cloud Storage: storage.objects.get and storage.objects.list)"),
)
_COLOURS: Final = re.compile(r"\x1b\[\d*m")


def is_unavailable(exc: Exception) -> bool:
    """Whether an error of a client of a bucket is that the store does not answer, or wants to be asked later."""
    text = _plain(exc)
    return _UNAVAILABLE.search(text) is not None and _NEVER.search(text) is None


def is_entry_refused(exc: Exception) -> bool:
    """Whether a store denied permission to write a log entry, so the entry was not written and never will be."""
    # The client quotes the names of objects in Cloud Storage, also the underscore.
    return _ENTRY_REFUSED.search(unquote(_plain(exc))) is not None


def is_disk_full(exc: Exception) -> bool:
    """Whether an error of delta-rs or the system is that no space is left, or no quota."""
    if isinstance(exc, OSError) and exc.errno in (ENOSPC, EDQUOT):
        return True
    return any(words in str(exc) for words in ("No space left on device", "os error 28", "Disk quota exceeded"))


def error_from(exc: Exception, what: str) -> WarehouseError:
    """Return our error for ``exc``, which was raised while ``what`` was done: a full disk and a store pass."""
    if is_disk_full(exc):
        return StorageFullError(f"The disk is full while {what}. Unacknowledged messages are not lost.")
    text = _plain(exc)
    if _REFUSED.search(text):
        return WarehousePermissionError(f"The lake failed while {what}: {text}. {_remedy(text)}")
    kind = WarehouseUnavailableError if is_unavailable(exc) else WarehouseError
    return kind(f"The lake failed while {what}: {text}")


def _plain(exc: Exception) -> str:
    return " ".join(_COLOURS.sub("", str(exc)).replace("↳", "").split())


def _remedy(text: str) -> str:
    """Return what to do after a store refused a request, of which ``text`` is the error."""
    fix = wrong_credentials(text)
    if fix is not None:
        return fix
    right = next(right for pattern, right in _RIGHTS if re.search(pattern, text))
    return f"The account that Refeed runs as needs {right} on the bucket."


@contextmanager
def our_errors(what: str, *, but: type[Exception] | tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn the lake's exceptions into ours, ``but`` one that the caller wants; ``what`` was being done."""
    try:
        yield
    except but:
        raise
    except TableNotFoundError as exc:
        raise WarehouseError(
            f"There is no table yet ({what}). To create the archive, attach a topic and start a backup."
        ) from exc
    except (DeltaError, OSError, pa.ArrowException) as exc:
        raise error_from(exc, what) from exc
