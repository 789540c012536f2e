"""How much may still be written to a disk."""

import shutil
from pathlib import Path

from model.errors import StorageFullError


def check_room(disk: Path, min_free_bytes: int) -> int:
    """Return how many bytes may be written to the disk of ``disk`` so that ``min_free_bytes`` stay free.

    Raises:
        StorageFullError: none may.
    """
    free = shutil.disk_usage(disk).free
    if free <= min_free_bytes:
        raise StorageFullError(
            f"The disk of {disk} has {free} bytes left, and {min_free_bytes} have to stay free "
            "(REFEED_MIN_FREE_DISK_BYTES)."
        )
    return free - min_free_bytes
