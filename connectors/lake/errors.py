"""Exceptions of delta-rs, PyArrow and the file system as errors of Refeed."""

from collections.abc import Iterator
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC

import pyarrow as pa
from deltalake.exceptions import DeltaError, TableNotFoundError

from model.errors import StorageFullError, WarehouseError


def is_disk_full(exc: Exception) -> bool:
    """Whether an error of delta-rs or the system is that no space is left, or no quota."""
    if isinstance(exc, OSError) and exc.errno in (ENOSPC, EDQUOT):
        return True
    return any(words in str(exc) for words in ("No space left on device", "os error 28", "Disk quota exceeded"))


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
        if is_disk_full(exc):
            raise StorageFullError(
                f"The disk is full while {what}. Unacknowledged messages are not lost."
            ) from exc
        raise WarehouseError(f"The lake failed while {what}: {exc}") from exc
