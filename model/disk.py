"""What is written to a disk: how much may still be, and files that are replaced whole."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from model.errors import StorageFullError


def check_room(disk: Path, min_free_bytes: int) -> int:
    """Return how many bytes may be written to the disk of ``disk`` so that ``min_free_bytes`` stay free.

    Raises:
        StorageFullError: none may.
    """
    free = shutil.disk_usage(disk).free
    if free <= min_free_bytes:
        raise StorageFullError(
            f"The disk of {disk} has only {free} bytes left, but {min_free_bytes} bytes must stay "
            "free (REFEED_MIN_FREE_DISK_BYTES)."
        )
    return free - min_free_bytes


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # Some file systems don't flush folders.
        with suppress(PermissionError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Give the file that replaces ``path`` when the block ends, whole and durably.

    Raises:
        StorageFullError: the disk did not take it; ``path`` is as it was.
    """
    temporary = path.with_suffix(".tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync(path.parent)
    except OSError as exc:
        _drop(temporary)
        raise StorageFullError(f"{path} can't be written: {exc}") from exc


def replace_text(path: Path, text: str) -> None:
    """Replace a file whole, so that its readers see the old text or the new one; a power cut may undo it.

    Raises:
        OSError: the disk did not take it; ``path`` is as it was.
    """
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    except OSError:
        _drop(temporary)
        raise


def _drop(leftover: Path) -> None:
    # The error that it is left of is the one to be raised.
    with suppress(OSError):
        leftover.unlink()
