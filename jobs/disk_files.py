"""A job's files on a disk, local or mounted by several machines."""

import errno
import fcntl
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

from model.errors import FolderUnavailableError
from model.file_version import FileVersion

# A writer that was suspended while it held the lock must not block all others.
_LOCK_SECONDS: Final = 1.0
_LOCK_RETRY_SECONDS: Final = 0.01
_REMOVED: Final = ".removed-"
# A missing file, and a link that leads to itself.
_LEADS_NOWHERE: Final = (errno.ENOENT, errno.ELOOP)
# Enough for at least ten checkpoints.
_TAIL_BYTES: Final = 4096
_MAX_LATEST_BYTES: Final = 64 * 1024


class DiskFiles:
    """A folder on a disk, local or mounted by several machines.

    Files are written without fsync. A killed process loses nothing. After a power cut a machine may have an older
    version of a file, which causes repeated messages but never lost ones.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self._path.name

    @property
    def sight_seconds(self) -> float:
        """Zero: a read costs 20 microseconds."""
        return 0.0

    @property
    def path(self) -> Path:
        """The folder's path."""
        return self._path

    def folder(self, name: str) -> "DiskFiles":
        """Return the subfolder ``name``."""
        return DiskFiles(self._path / name)

    def make(self) -> None:
        """Create the folder, readable by its owner only; leave an existing one as it is."""
        with _our_errors(self._path):
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def check(self) -> None:
        """Do nothing: :meth:`change` takes a lock."""

    def exists(self) -> bool:
        """Whether the folder exists."""
        return self._path.exists()

    def list(self) -> list[str]:
        """Return the names in the folder, without files that are being written."""
        try:
            # Ten times as fast as Path.iterdir, and called ten times a second.
            return sorted(name for name in os.listdir(self._path) if not name.startswith("."))  # noqa: PTH208
        except FileNotFoundError:
            return []

    def versions(self) -> dict[str, FileVersion]:
        """Return the version of each file: a write in place changes its time, a rename its inode.

        A link to a file within the folder counts as that file, as in a ConfigMap that Kubernetes mounts. A link
        out of the folder is ignored: it may lead to a file that the link's author may not read.
        """
        found = {}
        own = self._path.resolve()
        with os.scandir(self._path) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                try:
                    about = entry.stat()
                except OSError as exc:
                    # Any other error does not mean that the file is missing.
                    if exc.errno in _LEADS_NOWHERE:
                        continue
                    raise
                is_inside = not entry.is_symlink() or Path(entry).resolve().is_relative_to(own)
                if stat.S_ISREG(about.st_mode) and is_inside:
                    found[entry.name] = _version(about)
        return found

    def read_version(self, name: str, version: FileVersion) -> bytes | None:
        """Return the file's content, or None if the file changed since ``version`` or during the read."""
        try:
            with (self._path / name).open("rb") as file:
                if _version(os.fstat(file.fileno())) != version:
                    return None
                content = file.read()
                return content if _version(os.fstat(file.fileno())) == version else None
        except FileNotFoundError:
            return None

    def changed_at(self, name: str) -> float | None:
        """Return the time of the last write to folder ``name``."""
        try:
            return (self._path / name).stat().st_mtime
        except FileNotFoundError:
            return None

    def take_away(self, name: str, is_wanted: Callable[[], bool]) -> bool:
        """Rename the folder, then remove it, or rename it back if wanted; remove unfinished copies of it."""
        folder, gone = self._path / name, self._path / f"{_REMOVED}{name}"
        _remove_begun(folder)
        try:
            folder.rename(gone)
        except OSError:
            return False
        if is_wanted():
            with suppress(OSError):
                gone.rename(folder)
            return False
        shutil.rmtree(gone, ignore_errors=True)
        return True

    def sweep(self) -> None:
        """Remove folders that a killed process had renamed for removal."""
        for gone in self._path.glob(f"{_REMOVED}*"):
            shutil.rmtree(gone, ignore_errors=True)

    def read(self, name: str) -> bytes:
        """Return the file's content."""
        # Open without a stat first: opening makes a network file system ask its server again.
        return (self._path / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        """Create or replace a file."""
        temporary = self._path / f".{name}.{os.getpid()}.{secrets.token_hex(4)}"
        try:
            with _our_errors(self._path / name):
                temporary.write_bytes(content)
                temporary.replace(self._path / name)
        except BaseException:
            # A full disk still takes names, and a driver that retries ten times a second must leave none of them.
            temporary.unlink(missing_ok=True)
            raise

    def change(self, name: str, change: Callable[[bytes | None], bytes | None]) -> bool:
        """Replace a file by the result of ``change``, under a lock; after a second of waiting, without it."""
        with self._locked((self._path / name).with_suffix(".lock")):
            try:
                found: bytes | None = self.read(name)
            except FileNotFoundError:
                found = None
            content = change(found)
            if content is None:
                return False
            self.write(name, content)
            return True

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        (self._path / name).unlink(missing_ok=True)

    @contextmanager
    def making(self) -> Iterator["DiskFiles"]:
        """Yield a folder beside this one that is renamed when the block ends; remove other unfinished copies.

        A writer that was suspended and replaced finds its folder gone, and can't write into the other one's.
        """
        _remove_begun(self._path)
        unfinished = _unfinished(self._path)
        unfinished.mkdir(parents=True)
        yield DiskFiles(unfinished)
        try:
            unfinished.rename(self._path)
        except OSError as exc:
            if self._path.exists():
                raise FileExistsError(f"{self._path} was created by another process.") from exc
            raise

    def own_name(self, name: str) -> str:
        """Return ``name``: no other process writes to the unfinished folder."""
        return name

    def complete(self, name: str, content: bytes) -> None:
        """Write the last file of an unfinished folder."""
        (self._path / name).write_bytes(content)

    def is_made(self, name: str) -> bool:  # noqa: ARG002 - a folder is renamed with all that it holds
        """Whether the folder has appeared."""
        return self._path.exists()

    @contextmanager
    def writer(self, name: str) -> Iterator[Any]:
        """Yield the path for Arrow to write to; nobody reads the file while its folder is unfinished."""
        yield str(self._path / name)

    def source(self, name: str) -> str:
        """Return the path for Arrow to read."""
        return str(self._path / name)

    def reader(self, name: str) -> IO[bytes]:
        """Open a file."""
        return (self._path / name).open("rb")

    def append(self, name: str, lines: bytes) -> None:
        """Append lines to a log in one write; lines of other processes come before or after, never in between."""
        try:
            self._append(name, lines)
        except FileNotFoundError:
            self._path.mkdir(parents=True, exist_ok=True)
            self._append(name, lines)

    def read_log(self, name: str) -> bytes:
        """Return all lines of a log."""
        return self.read(name)

    def append_latest(self, name: str, line: bytes) -> None:
        """Append a line; cheap enough for every request (0.05 ms).

        ext4 flushes a file that a rename replaces, which takes a millisecond; an append is not flushed. So the
        file is replaced only when it has grown long.
        """
        if self._append(name, line) > _MAX_LATEST_BYTES:
            temporary = self._path / f".{name}"
            temporary.write_bytes(line)
            temporary.replace(self._path / name)

    def read_latest(self, name: str) -> bytes:
        """Return the end of a log."""
        with (self._path / name).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return file.read()

    def latest(self, prefix: str, wanted: Callable[[str], bool] = lambda _: True) -> Iterator[tuple[str, bytes]]:
        """Yield the name and the end of each log whose name begins with ``prefix`` and is ``wanted``."""
        for name in self.list():
            if name.startswith(prefix) and wanted(name):
                try:
                    yield name, self.read_latest(name)
                except OSError:
                    # Removed since; an unreadable log counts as never written.
                    continue

    def _append(self, name: str, lines: bytes) -> int:
        with _our_errors(self._path / name), (self._path / name).open("a+b", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
                # A kill or a full disk cut the last line short; it must not corrupt the next one.
                lines = b"\n" + lines
            while lines:
                # A disk that fills up writes a part without an error; writing the rest then fails.
                lines = lines[file.write(lines) :]
            return file.tell()

    @contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        with _our_errors(path):
            lock = path.open("a")
        with lock as file:
            deadline = time.monotonic() + _LOCK_SECONDS
            while not _try_lock(file.fileno()) and time.monotonic() < deadline:
                time.sleep(_LOCK_RETRY_SECONDS)
            yield


def _unfinished(folder: Path) -> Path:
    """Return a unique name beside the folder."""
    return folder.with_name(f"{folder.name}.unfinished-{secrets.token_hex(4)}")


def _remove_begun(folder: Path) -> None:
    """Remove the unfinished copies of ``folder``."""
    for begun in folder.parent.glob(f"{folder.name}.unfinished*"):
        # Rename first: its writer could complete a folder that is being emptied file by file.
        taken = _unfinished(folder)
        with suppress(OSError):
            begun.rename(taken)
            shutil.rmtree(taken, ignore_errors=True)


@contextmanager
def _our_errors(path: Path) -> Iterator[None]:
    """Translate OSError into FolderUnavailableError, but let FileNotFoundError pass."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise FolderUnavailableError(f"{path} can't be written to: {exc.strerror}.") from exc


def _version(about: os.stat_result) -> FileVersion:
    return FileVersion(f"{about.st_mtime_ns}-{about.st_ino}", about.st_size)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
