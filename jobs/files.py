"""The files that a job's service, driver and tasks share: one protocol for disks and buckets."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, Final, Protocol

from jobs.disk_files import DiskFiles
from model.errors import CheckpointCorruptError
from model.file_version import FileVersion

_BUCKETS: Final = ("s3://", "gs://")

# Takes a file's content (None if there is no file) and returns the new content (None to leave the file).
Change = Callable[[bytes | None], bytes | None]


class Files(Protocol):
    """The files and subfolders of one folder.

    A file is replaced as a whole: a reader sees the old or the new one, whatever process is killed. An append is
    complete when the call returns. A missing file raises FileNotFoundError, storage that does not answer an
    OSError. ``str()`` returns the location that :func:`open_files` opens.
    """

    @property
    def name(self) -> str:
        """The folder's name."""
        ...

    @property
    def sight_seconds(self) -> float:
        """How long a reader may use what it has read, since each read costs a request; 0 on a disk."""
        ...

    @property
    def path(self) -> Path | None:
        """The folder's path on this machine's disk, None in a bucket."""
        ...

    def folder(self, name: str) -> "Files":
        """Return the subfolder ``name``, whether it exists or not."""
        ...

    def make(self) -> None:
        """Create the folder, on a disk for its owner only; leave an existing one as it is."""
        ...

    def check(self) -> None:
        """Raise if two processes could overwrite each other's changes here; costs 5 requests in a bucket."""
        ...

    def exists(self) -> bool:
        """Whether the folder exists; in a bucket, whether it has a file."""
        ...

    def list(self) -> list[str]:
        """Return the names of files, logs and subfolders in order; an empty list if there is no folder."""
        ...

    def versions(self) -> dict[str, FileVersion]:
        """Return the version of each file directly in the folder, by name.

        An empty answer of a bucket may also mean that somebody emptied it. On a disk a missing folder raises
        FileNotFoundError, unlike in :meth:`list`.
        """
        ...

    def read_version(self, name: str, version: FileVersion) -> bytes | None:
        """Return the file's content, None if it is gone or has another version."""
        ...

    def changed_at(self, name: str) -> float | None:
        """Return the time of the last write to folder ``name``, in seconds since 1970; None if missing."""
        ...

    def take_away(self, name: str, is_wanted: Callable[[], bool]) -> bool:
        """Remove folder ``name`` and its content, unless ``is_wanted``, called last, returns True.

        Other processes see it vanish in one step, and come back whole if it is wanted. Copies that :meth:`making`
        began and never completed are removed in any case.
        """
        ...

    def sweep(self) -> None:
        """Remove the remains of folders whose removal was interrupted."""
        ...

    def read(self, name: str) -> bytes:
        """Return the file's content."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Create or replace a file."""
        ...

    def change(self, name: str, change: Change) -> bool:
        """Replace a file atomically by the result of ``change``; return False if ``change`` left it.

        ``change`` is called again if another process wrote first.
        """
        ...

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        ...

    def making(self) -> AbstractContextManager["Files"]:
        """Yield a folder to fill, which becomes this one when the block ends without an error.

        All its files appear at once; :meth:`complete` must be the last call of the block. Raises FileExistsError
        if another process has made this folder meanwhile.
        """
        ...

    def own_name(self, name: str) -> str:
        """Return a name, derived from ``name``, that no other writer of this folder uses."""
        ...

    def complete(self, name: str, content: bytes) -> None:
        """Write the last file of an unfinished folder; its presence shows readers that the folder is complete."""
        ...

    def is_made(self, name: str) -> bool:
        """Whether the folder, whose last file is ``name``, is complete."""
        ...

    def writer(self, name: str) -> AbstractContextManager[Any]:
        """Yield a sink for writing a large file in pieces; after an error the file does not appear."""
        ...

    def source(self, name: str) -> Any:
        """Return Arrow's input for a large file: a path, or an object that reads ranges."""
        ...

    def reader(self, name: str) -> IO[bytes]:
        """Open a file for reading ranges."""
        ...

    def append(self, name: str, lines: bytes) -> None:
        """Append whole lines to a log in one write."""
        ...

    def read_log(self, name: str) -> bytes:
        """Return all lines of a log."""
        ...

    def append_latest(self, name: str, line: bytes) -> None:
        """Append a line to a log of which only the last line counts; earlier lines may be dropped."""
        ...

    def read_latest(self, name: str) -> bytes:
        """Return the end of such a log, which contains its last whole line."""
        ...

    def latest(self, prefix: str, wanted: Callable[[str], bool] = ...) -> Iterator[tuple[str, bytes]]:
        """Yield the name and the end of each such log whose name begins with ``prefix`` and is ``wanted``."""
        ...


def open_files(place: "Files | Path | str") -> Files:
    """Return the files of a folder: ``s3://`` or ``gs://bucket/prefix``, or a path on a shared disk."""
    if isinstance(place, Path):
        return DiskFiles(place)
    if not isinstance(place, str):
        return place
    if not place.startswith(_BUCKETS):
        return DiskFiles(Path(place))
    # The client is slow to import, and a disk does not need it.
    from connectors.object_store.files import open_bucket_files

    return open_bucket_files(place)


def write_json(files: Files, name: str, value: Mapping[str, Any]) -> None:
    """Replace a file by ``value``."""
    files.write(name, render_json(value))


def read_json(files: Files, name: str) -> dict[str, Any]:
    """Return what :func:`write_json` wrote.

    Raises:
        CheckpointCorruptError: the file is missing or can't be read.
    """
    found = find_json(files, name)
    if found is None:
        path = f"{files}/{name}"
        raise CheckpointCorruptError(f"{path} can't be read: the file does not exist, or is empty.", path=path)
    return found


def find_json(files: Files, name: str) -> dict[str, Any] | None:
    """Return what :func:`write_json` wrote, or None if there is no file.

    An empty file counts as never written: after a power cut a new file's name may be there without its bytes.

    Raises:
        CheckpointCorruptError: the file can't be read.
    """
    try:
        content = files.read(name)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise CheckpointCorruptError(f"{files}/{name} can't be read: {exc}", path=f"{files}/{name}") from exc
    return parse_json(content, f"{files}/{name}") if content else None


def render_json(value: Mapping[str, Any]) -> bytes:
    """Return ``value`` as the bytes of a file."""
    return json.dumps(value, separators=(",", ":")).encode()


def parse_json(content: bytes, where: str) -> dict[str, Any]:
    """Return the JSON object in ``content``, which was read at ``where``.

    Raises:
        CheckpointCorruptError: the content is no JSON object.
    """
    try:
        found = json.loads(content)
    except ValueError as exc:
        raise CheckpointCorruptError(f"{where} can't be read: {exc}", path=where) from exc
    if not isinstance(found, dict):
        raise CheckpointCorruptError(f"{where} does not contain a JSON object.", path=where)
    return found
