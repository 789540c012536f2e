"""What a process that runs Spark's Python tasks, one after the other, does for itself."""

import fcntl
import gc
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final

_FROZEN: list[bool] = []
_PREFIX: Final = "mark-"
# Of a mark's text; no name is as long.
_MARK_BYTES: Final = 1024


def freeze_loaded() -> None:
    """Take what is loaded by now out of the reach of garbage collection; later calls do nothing.

    PySpark's worker runs a full collection after every task: over modules and classes that never go, it took a
    third of the time of tasks of half a second. Call it once all that tasks need is imported.
    """
    if not _FROZEN:
        _FROZEN.append(True)
        gc.collect()
        gc.freeze()


class WorkerMarks:
    """Marks that tell the workers in ``folder`` what another worker did when it died.

    Each worker has a file of its own, and keeps it locked while it lives. Its text survives a crash of the
    process, but not of the machine.

    Raises:
        OSError: the folder has no room for the file.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd, new = tempfile.mkstemp(prefix="new-", dir=folder)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        # Others find it when it is locked.
        file = folder / f"{_PREFIX}{Path(new).name}"
        Path(new).rename(file)
        self._known = {file}
        self._lethal: set[str] = set()

    @contextmanager
    def mark(self, name: str) -> Iterator[None]:
        """Note that this worker is at ``name`` during the block; an exception ends the note too."""
        self._write(name)
        try:
            yield
        finally:
            self._write("")

    def lethal(self) -> frozenset[str]:
        """Return the names at which workers in the folder have died."""
        for file in set(self._folder.glob(f"{_PREFIX}*")) - self._known:
            with suppress(OSError), file.open("rb") as opened:
                # While its worker lives, this raises.
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if name := opened.read().rstrip(b"\0").decode():
                    self._known.add(file)
                    self._lethal.add(name)
                else:
                    file.unlink()
        return frozenset(self._lethal)

    def _write(self, name: str) -> None:
        # Without room on the disk there is no mark, and nothing else happens.
        with suppress(OSError):
            os.pwrite(self._fd, name.encode().ljust(_MARK_BYTES, b"\0"), 0)


@cache
def process_marks() -> WorkerMarks | None:
    """Return the marks of this worker of Spark's, which the same application's on this machine see.

    None where the process is no worker, or the disk is full.
    """
    from pyspark import SparkFiles, TaskContext  # a process without Spark's tasks does not need it

    if TaskContext.get() is None:
        return None
    with suppress(OSError):
        return WorkerMarks(Path(SparkFiles.getRootDirectory()))
    return None
