"""Exceptions of delta-rs, obstore, PyArrow and the file system as errors of Refeed."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC
from typing import Final

import pyarrow as pa
from deltalake.exceptions import DeltaError, TableNotFoundError

from model.errors import StorageFullError, WarehouseError, WarehouseUnavailableError

# What passes, by two pages. "All requests that return 5xx errors from Amazon S3 can and should be retried":
# https://aws.amazon.com/premiumsupport/knowledge-center/http-5xx-errors-s3/ (SlowDown is a 503). "HTTP 408, 429,
# and 5xx response codes. Socket timeouts and TCP disconnects":
# https://cloud.google.com/storage/docs/retry-strategy.
# The clients say it in words alone; delta-rs and obstore count their tries of what passes, and of nothing else.
_UNAVAILABLE: Final = re.compile(
    r"after \d+ retries|HTTP error|(?:HTTP status|status code)\W+(?:408|429|5\d\d)"
    r"|AWS Error (?:NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|THROTTLING|REQUEST_TIMEOUT)"
)
_COLOURS: Final = re.compile(r"\x1b\[\d*m")


def is_unavailable(exc: Exception) -> bool:
    """Whether an error of a client of a bucket is that the store does not answer, or wants to be asked later."""
    return _UNAVAILABLE.search(_COLOURS.sub("", str(exc))) is not None


def is_disk_full(exc: Exception) -> bool:
    """Whether an error of delta-rs or the system is that no space is left, or no quota."""
    if isinstance(exc, OSError) and exc.errno in (ENOSPC, EDQUOT):
        return True
    return any(words in str(exc) for words in ("No space left on device", "os error 28", "Disk quota exceeded"))


def error_from(exc: Exception, what: str) -> WarehouseError:
    """Return our error for ``exc``, which was raised while ``what`` was done: a full disk and a store pass."""
    if is_disk_full(exc):
        return StorageFullError(f"The disk is full while {what}. Unacknowledged messages are not lost.")
    text = " ".join(_COLOURS.sub("", str(exc)).replace("↳", "").split())
    kind = WarehouseUnavailableError if is_unavailable(exc) else WarehouseError
    return kind(f"The lake failed while {what}: {text}")


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
