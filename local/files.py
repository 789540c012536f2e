"""Files written at a place, or whole at once, so that a crash or a full disk leaves nothing half done."""

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` survive a power cut: a file that was made there, or renamed."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes, offset: int) -> None:
    """Write all of ``data`` at ``offset``; write(2) may take a part only."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        offset += written
        view = view[written:]


def replace_file(path: Path, data: bytes) -> None:
    """Write a whole file, at once or not at all; ``sync_folder`` makes its name survive a power cut.

    Raises:
        OSError: the disk did not take it; the file is as before.
    """
    temporary = path.with_name(path.name + ".new")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fdatasync(file.fileno())
    temporary.replace(path)
