"""The files of a job's folder on a disk, of this machine or mounted by several."""

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

# A writer that was stopped with the lock in its hands must not stop everybody else.
_LOCK_SECONDS: Final = 1.0
_LOCK_RETRY_SECONDS: Final = 0.01
_REMOVED: Final = ".removed-"
# What is gone, and a link that leads to itself.
_LEADS_NOWHERE: Final = (errno.ENOENT, errno.ELOOP)
# Holds ten checkpoints at least.
_TAIL_BYTES: Final = 4096
_MAX_LATEST_BYTES: Final = 64 * 1024


class DiskFiles:
    """A folder on a disk, of this machine or mounted by several.

    Written without fsync: a killed process loses nothing, a machine that loses power may come back with an
    older file, which costs repeated messages and never lost ones.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self._path.name

    @property
    def sight_seconds(self) -> float:
        """Nothing: a look costs 20 microseconds."""
        return 0.0

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self._path

    def folder(self, name: str) -> "DiskFiles":
        """Return the folder ``name`` in this one."""
        return DiskFiles(self._path / name)

    def make(self) -> None:
        """Make the folder, readable by its owner only; one that exists is left as it is."""
        with _our_errors(self._path):
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def check(self) -> None:
        """Do nothing: a change holds a lock."""

    def exists(self) -> bool:
        """Whether the folder is there."""
        return self._path.exists()

    def list(self) -> list[str]:
        """Return the names in here, without those of files that are being written."""
        try:
            # Ten times as quick as Path.iterdir, and asked ten times a second.
            return sorted(name for name in os.listdir(self._path) if not name.startswith("."))  # noqa: PTH208
        except FileNotFoundError:
            return []

    def versions(self) -> dict[str, FileVersion]:
        """Return the version of each file: a write in place changes its time, and a rename its inode.

        A link counts as the file that it leads to within the folder, as Kubernetes mounts a ConfigMap; one that
        leads out of it does not count, as it may lead to what its writer may not read.
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
                    # Any other fault says nothing about what is there.
                    if exc.errno in _LEADS_NOWHERE:
                        continue
                    raise
                is_inside = not entry.is_symlink() or Path(entry).resolve().is_relative_to(own)
                if stat.S_ISREG(about.st_mode) and is_inside:
                    found[entry.name] = _version(about)
        return found

    def read_version(self, name: str, version: FileVersion) -> bytes | None:
        """Return what a file holds, unless it was written to before or meanwhile."""
        try:
            with (self._path / name).open("rb") as file:
                if _version(os.fstat(file.fileno())) != version:
                    return None
                content = file.read()
                return content if _version(os.fstat(file.fileno())) == version else None
        except FileNotFoundError:
            return None

    def changed_at(self, name: str) -> float | None:
        """Return when folder ``name`` was last written to."""
        try:
            return (self._path / name).stat().st_mtime
        except FileNotFoundError:
            return None

    def take_away(self, name: str, is_wanted: Callable[[], bool]) -> bool:
        """Rename the folder, look again, and remove it or rename it back; what makers of it have begun goes."""
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
        """Remove folders that were renamed by somebody who was ended before they were gone."""
        for gone in self._path.glob(f"{_REMOVED}*"):
            shutil.rmtree(gone, ignore_errors=True)

    def read(self, name: str) -> bytes:
        """Return what a file holds."""
        # Opened, not looked at first: a network file system asks its server again.
        return (self._path / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        """Replace a file, or make it."""
        temporary = self._path / f".{name}.{os.getpid()}.{secrets.token_hex(4)}"
        try:
            with _our_errors(self._path / name):
                temporary.write_bytes(content)
                temporary.replace(self._path / name)
        except BaseException:
            # A full disk still takes names: a driver that tries again ten times a second leaves none of them.
            temporary.unlink(missing_ok=True)
            raise

    def change(self, name: str, change: Callable[[bytes | None], bytes | None]) -> bool:
        """Replace a file by what ``change`` makes of it, under a lock that is waited for, for a second."""
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
        """Remove a file; one that is gone is no error."""
        (self._path / name).unlink(missing_ok=True)

    @contextmanager
    def making(self) -> Iterator["DiskFiles"]:
        """Give a folder beside this one that is renamed when the block ends; what another maker has begun goes.

        A maker that was replaced while it stood still finds its folder gone, and writes into no other's.
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
        """Return ``name``: the folder that is being made is nobody else's."""
        return name

    def complete(self, name: str, content: bytes) -> None:
        """Write the last file of a folder that is being made."""
        (self._path / name).write_bytes(content)

    def is_made(self, name: str) -> bool:  # noqa: ARG002 - a folder is renamed with all that it holds
        """Whether the folder has appeared."""
        return self._path.exists()

    @contextmanager
    def writer(self, name: str) -> Iterator[Any]:
        """Give the path, which Arrow writes to by itself; in a folder that is being made nobody sees it."""
        yield str(self._path / name)

    def source(self, name: str) -> str:
        """Return the path, which Arrow reads by itself."""
        return str(self._path / name)

    def reader(self, name: str) -> IO[bytes]:
        """Open a file."""
        return (self._path / name).open("rb")

    def append(self, name: str, lines: bytes) -> None:
        """Add lines to a log in one write; those of others may come before or behind, never in between."""
        try:
            self._append(name, lines)
        except FileNotFoundError:
            self._path.mkdir(parents=True, exist_ok=True)
            self._append(name, lines)

    def read_log(self, name: str) -> bytes:
        """Return all lines of a log."""
        return self.read(name)

    def append_latest(self, name: str, line: bytes) -> None:
        """Add a line; cheap enough for every request (0.05 ms).

        A file that is replaced by rename is flushed by ext4, which takes a millisecond; a line that is appended is
        not. Only a file that has grown long is replaced.
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
        """Yield name and end of each log whose name begins with ``prefix`` and is ``wanted``."""
        for name in self.list():
            if name.startswith(prefix) and wanted(name):
                try:
                    yield name, self.read_latest(name)
                except OSError:
                    # Gone since; what can't be read counts as never written.
                    continue

    def _append(self, name: str, lines: bytes) -> int:
        with _our_errors(self._path / name), (self._path / name).open("a+b", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
                # A kill or a full disk has cut a line short: it must not take the next one with it.
                lines = b"\n" + lines
            while lines:
                # A disk that fills takes a part without an error; the rest then fails.
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
    """Return a name beside the folder that nobody else has."""
    return folder.with_name(f"{folder.name}.unfinished-{secrets.token_hex(4)}")


def _remove_begun(folder: Path) -> None:
    """Remove what others have begun to make for ``folder``."""
    for begun in folder.parent.glob(f"{folder.name}.unfinished*"):
        # In one step: a folder that is emptied file by file could be renamed before it is empty.
        taken = _unfinished(folder)
        with suppress(OSError):
            begun.rename(taken)
            shutil.rmtree(taken, ignore_errors=True)


@contextmanager
def _our_errors(path: Path) -> Iterator[None]:
    """Raise a disk that is full, read-only or broken in our words; what is not there stays FileNotFoundError."""
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
