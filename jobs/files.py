"""Files that a job's service, driver and tasks share: one contract, on a disk or in a bucket."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, Final, Protocol

from jobs.disk_files import DiskFiles
from model.errors import CheckpointCorruptError
from model.file_version import FileVersion

_BUCKETS: Final = ("s3://", "gs://")

# Takes what a file holds, None when there is none, and returns what it is to hold, None to leave it.
Change = Callable[[bytes | None], bytes | None]


class Files(Protocol):
    """One folder's files, and the folders in it.

    A file is replaced whole: a reader sees the old or the new one, whatever is killed. Lines that are appended are
    there once the call returns. A file that is not there is a FileNotFoundError, storage that does not answer
    an OSError. ``str()`` gives the location that :func:`open_files` opens.
    """

    @property
    def name(self) -> str:
        """The folder's own name."""
        ...

    @property
    def sight_seconds(self) -> float:
        """How long a reader may go on with what it has read, because each look costs a request; 0 on a disk."""
        ...

    @property
    def path(self) -> Path | None:
        """Where the folder lies on this machine's disk, None in a bucket."""
        ...

    def folder(self, name: str) -> "Files":
        """Return the folder ``name`` in this one, whether it is there or not."""
        ...

    def make(self) -> None:
        """Make the folder, for its owner alone where there are owners; one that exists is left as it is."""
        ...

    def check(self) -> None:
        """Raise if two processes could overwrite each other's changes here; a bucket gets 5 requests."""
        ...

    def exists(self) -> bool:
        """Whether the folder is there; in a bucket it is once it has a file."""
        ...

    def list(self) -> list[str]:
        """Return the names of files, logs and folders in here, in order; none when the folder is not there."""
        ...

    def versions(self) -> dict[str, FileVersion]:
        """Return the version of each file right in here, by its name.

        None in a bucket may also mean that somebody emptied it. On a disk a folder that is not there is a
        FileNotFoundError, unlike in :meth:`list`.
        """
        ...

    def read_version(self, name: str, version: FileVersion) -> bytes | None:
        """Return what a file holds, None when it is of another version by now or gone."""
        ...

    def changed_at(self, name: str) -> float | None:
        """Return when folder ``name`` was last written to, in seconds since 1970, None when it is not there."""
        ...

    def take_away(self, name: str, is_wanted: Callable[[], bool]) -> bool:
        """Remove folder ``name`` and all that it holds, unless ``is_wanted`` says so at the last moment.

        For others it goes in one step, and comes back whole when it is wanted. What was begun by :meth:`making`
        and never ended goes in any case.
        """
        ...

    def sweep(self) -> None:
        """Remove what is left of folders whose removal was cut short."""
        ...

    def read(self, name: str) -> bytes:
        """Return what a file holds."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Replace a file, or make it."""
        ...

    def change(self, name: str, change: Change) -> bool:
        """Replace a file by what ``change`` makes of it, with nobody else in between; False when it is left.

        ``change`` may be called again when somebody else was quicker.
        """
        ...

    def remove(self, name: str) -> None:
        """Remove a file; one that is gone is no error."""
        ...

    def making(self) -> AbstractContextManager["Files"]:
        """Give a folder to fill that becomes this one when the block ends without an error.

        All of it appears at once, with :meth:`complete` as the last call of the block. When this folder has been
        made by somebody else meanwhile, that is a FileExistsError.
        """
        ...

    def own_name(self, name: str) -> str:
        """Return a name, made of ``name``, that nobody else who makes this folder gives a file of theirs."""
        ...

    def complete(self, name: str, content: bytes) -> None:
        """Write the last file of a folder that is being made; by this file others know that it is whole."""
        ...

    def is_made(self, name: str) -> bool:
        """Whether a folder that ends with the file ``name`` has appeared."""
        ...

    def writer(self, name: str) -> AbstractContextManager[Any]:
        """Give what a large file is written to, piece by piece; after an error it does not appear."""
        ...

    def source(self, name: str) -> Any:
        """Return what Arrow reads a large file from: a path, or what reads the ranges that it is asked for."""
        ...

    def reader(self, name: str) -> IO[bytes]:
        """Open a file to read ranges of it."""
        ...

    def append(self, name: str, lines: bytes) -> None:
        """Add whole lines to a log, in one piece."""
        ...

    def read_log(self, name: str) -> bytes:
        """Return all lines of a log."""
        ...

    def append_latest(self, name: str, line: bytes) -> None:
        """Add a line to a log of which only the last one counts; earlier ones may go."""
        ...

    def read_latest(self, name: str) -> bytes:
        """Return the end of such a log, the last whole line in it."""
        ...

    def latest(self, prefix: str, wanted: Callable[[str], bool] = ...) -> Iterator[tuple[str, bytes]]:
        """Yield name and end of each such log whose name begins with ``prefix`` and is ``wanted``."""
        ...


def open_files(place: "Files | Path | str") -> Files:
    """Return the files of a folder: ``s3://`` or ``gs://bucket/prefix``, or a path on a disk that all share."""
    if isinstance(place, Path):
        return DiskFiles(place)
    if not isinstance(place, str):
        return place
    if not place.startswith(_BUCKETS):
        return DiskFiles(Path(place))
    # The client is slow to load, and a disk needs none.
    from connectors.object_store.files import open_bucket_files

    return open_bucket_files(place)


def write_json(files: Files, name: str, value: Mapping[str, Any]) -> None:
    """Replace a file by ``value``."""
    files.write(name, render_json(value))


def read_json(files: Files, name: str) -> dict[str, Any]:
    """Return what :func:`write_json` wrote.

    Raises:
        CheckpointCorruptError: it is not there or can't be read.
    """
    found = find_json(files, name)
    if found is None:
        path = f"{files}/{name}"
        raise CheckpointCorruptError(f"{path} can't be read: the file does not exist, or is empty.", path=path)
    return found


def find_json(files: Files, name: str) -> dict[str, Any] | None:
    """Return what :func:`write_json` wrote, or None when nobody did.

    A new file may be empty after a power cut, its name being durable before its bytes: it counts as never written.

    Raises:
        CheckpointCorruptError: it can't be read.
    """
    try:
        content = files.read(name)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise CheckpointCorruptError(f"{files}/{name} can't be read: {exc}", path=f"{files}/{name}") from exc
    return parse_json(content, f"{files}/{name}") if content else None


def render_json(value: Mapping[str, Any]) -> bytes:
    """Return ``value`` as files hold it."""
    return json.dumps(value, separators=(",", ":")).encode()


def parse_json(content: bytes, where: str) -> dict[str, Any]:
    """Return the object that ``content``, read at ``where``, holds.

    Raises:
        CheckpointCorruptError: it holds none.
    """
    try:
        found = json.loads(content)
    except ValueError as exc:
        raise CheckpointCorruptError(f"{where} can't be read: {exc}", path=where) from exc
    if not isinstance(found, dict):
        raise CheckpointCorruptError(f"{where} does not contain a JSON object.", path=where)
    return found
