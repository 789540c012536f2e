"""A folder whose disk can be full: a small tmpfs where mounting is allowed, else a limit on files."""

import os
import resource
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

_SIZE_BYTES: Final = 64 * 1024 * 1024
# Too small for any file of a journal.
_LIMIT_BYTES: Final = 100


class SmallDisk:
    """The folder's disk; ``is_mounted`` says whether it is one of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._filler = folder / "filler"
        folder.mkdir(parents=True, exist_ok=True)
        options = f"size={_SIZE_BYTES}"
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, check=False
        )
        self.is_mounted = mounted.returncode == 0

    def fill(self, pid: int) -> None:
        """Leave no room, or let process ``pid`` write no file longer than a line."""
        if self.is_mounted:
            with self._filler.open("wb") as filler:
                os.posix_fallocate(filler.fileno(), 0, max(1, shutil.disk_usage(self._folder).free))
        else:
            _limit(pid, _LIMIT_BYTES)

    def empty(self, pid: int) -> None:
        """Give the room back."""
        if self.is_mounted:
            self._filler.unlink(missing_ok=True)
        else:
            _limit(pid, None)

    def close(self) -> None:
        """Unmount it and keep its files in the folder."""
        if self.is_mounted:
            with tempfile.TemporaryDirectory() as kept:
                shutil.copytree(self._folder, kept, dirs_exist_ok=True)
                subprocess.run(["umount", "-l", str(self._folder)], check=True)
                shutil.copytree(kept, self._folder, dirs_exist_ok=True)
            self.is_mounted = False


def _limit(pid: int, size_bytes: int | None) -> None:
    # A process that is gone meanwhile needs no room.
    with suppress(ProcessLookupError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard if size_bytes is None else size_bytes, hard))
