"""Objects below a URI, by one protocol: on a disk, or in a bucket of Amazon S3 or Cloud Storage."""

import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pyarrow as pa

from connectors.lake.errors import our_errors
from connectors.object_store.bucket import BUFFER_BYTES, FIT, UNFIT, Bucket, StoredObject, Tag, WrittenObject
from connectors.object_store.clock import wrong_clock
from model.errors import WarehouseError


class Objects(Protocol):
    """The objects below a URI. All raise OSError; a write that does may have been made, or be made later."""

    def writing(self, name: str) -> AbstractContextManager[WrittenObject]:
        """Put an object of any size, durably, when the block ends; one that raises puts none.

        ``name`` is not used by anybody else. In a bucket, an object up to 32 MB is one request. A larger one is
        written to a temporary file on this machine, and sent as a multipart upload in parts of 16 MB.
        """

    def put_new(self, name: str, content: bytes) -> Tag | None:
        """Put an object where there is none; None where there is one with another content, or comes one.

        Two writers can't both put one. A store whose answer was lost answers a second try that the object is
        there, and it is this one: so ``content`` must be nobody else's.
        """

    def replace(self, name: str, content: bytes, tag: Tag) -> Tag | None:
        """Put an object in the place of the one with ``tag``; None where another, or none, is there.

        ``content`` must be nobody else's, as in :meth:`put_new`.
        """

    def read(self, name: str) -> StoredObject | None:
        """Return an object, None where there is none."""

    def now(self) -> float:
        """Return the time by the clock that objects are modified by, in Unix seconds.

        In a bucket it takes 3 requests, once an hour in a process.
        """

    def list(self) -> list[str]:
        """Return the names of the objects, without those in folders."""

    def times(self) -> Mapping[str, float]:
        """Return when each object was written, without those in folders, in Unix seconds of :meth:`now`."""

    def delete(self, *names: str) -> None:
        """Delete objects; those that are gone already are fine."""


def is_bucket(uri: str) -> bool:
    """Whether a path or a URI is in a bucket."""
    return "://" in uri and not uri.startswith("file:")


def local_path(uri: str) -> Path:
    """Return where a path or a ``file:`` URI is on this machine's disk."""
    return Path(url2pathname(urlsplit(uri).path) if "://" in uri else uri).absolute()


def open_objects(uri: str, *, is_swept: bool = False) -> Objects:
    """Return the objects below a path or a URI; ``is_swept`` has a disk's unfinished files in the folder above."""
    if is_bucket(uri):
        return Bucket(uri)
    folder = local_path(uri)
    return Disk(folder, folder.parent if is_swept else folder)


def check_conditions(uri: str) -> None:
    """Check that two writers below ``uri`` can't overwrite each other; a bucket gets 5 requests.

    Raises:
        WarehouseError: they can, because the bucket does not honour conditional writes.
        WarehouseUnavailableError: the bucket does not answer.
    """
    if not is_bucket(uri):
        return
    with our_errors(f"the bucket of {uri} was checked"):
        condition = Bucket(f"{uri.rstrip('/')}/_probe").unsupported_condition()
    if condition is not None:
        raise WarehouseError(
            f"The bucket of {uri} {UNFIT.format(condition)} Two streams could overwrite each other's commits or "
            f"leases. Set REFEED_LAKE to {FIT}"
        )


def wrong_clock_at(uri: str) -> str | None:
    """Return what is wrong with this machine's clock by that of the bucket of ``uri``; None on a disk.

    Raises:
        WarehouseUnavailableError: the bucket does not answer.
    """
    with our_errors(f"the clock of the bucket of {uri} was read"):
        return wrong_clock(open_objects(uri).now()) if is_bucket(uri) else None


class Disk:
    """A folder, which need not exist yet; what is put survives a power cut.

    Several processes may put an object, and only one of them may replace it.
    """

    def __init__(self, folder: Path, scratch: Path) -> None:
        self._folder = folder
        self._scratch = scratch

    @contextmanager
    def writing(self, name: str) -> Iterator[WrittenObject]:
        """Put an object of any size; only folders below the URI's own are created."""
        path = self._folder / name
        folders = dict.fromkeys((path.parent, self._folder))
        if path.parent != self._folder:
            path.parent.mkdir(exist_ok=True)
        try:
            with pa.BufferedOutputStream(pa.OSFile(str(path), mode="w"), BUFFER_BYTES) as stream:
                made = WrittenObject(stream)
                yield made
            for place in (path, *folders):
                sync_file(str(place))
            found = path.stat()
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        # The storage's clock, by which vacuum goes as well, and not this worker's.
        made.size_bytes, made.modified_at_ms = found.st_size, found.st_mtime_ns // 1_000_000

    def put_new(self, name: str, content: bytes) -> Tag | None:
        """Put an object where there is none."""
        path = self._folder / name
        # Written in place it could be read, and relied on, torn.
        with self._written(path, content) as temporary:
            try:
                path.hardlink_to(temporary)
            except FileExistsError:
                return content if path.read_bytes() == content else None
        sync_file(str(path.parent))
        return content

    def replace(self, name: str, content: bytes, tag: Tag) -> Tag | None:
        """Put an object in the place of the one with ``tag``."""
        found = self.read(name)
        if found is None or found.tag != tag:
            return None
        with self._written(self._folder / name, content) as temporary:
            temporary.replace(self._folder / name)
        return content

    def read(self, name: str) -> StoredObject | None:
        """Return an object, None where there is none."""
        try:
            content = (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None
        return StoredObject(content, content)

    def now(self) -> float:
        """Return this machine's time."""
        return time.time()

    def list(self) -> list[str]:
        """Return the names of the objects."""
        return list(self.times())

    def times(self) -> Mapping[str, float]:
        """Return when each object was written."""
        try:
            return {entry.name: entry.stat().st_mtime for entry in os.scandir(self._folder) if entry.is_file()}
        except FileNotFoundError:
            return {}

    def delete(self, *names: str) -> None:
        """Delete objects."""
        for name in names:
            (self._folder / name).unlink(missing_ok=True)

    @contextmanager
    def _written(self, path: Path, content: bytes) -> Iterator[Path]:
        """Yield a durable file with ``content``, which is deleted again if it is still there."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._scratch / f"{uuid.uuid4().hex}.json.tmp"
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)


def sync_file(path: str) -> None:
    """Make a local file or folder durable against the loss of power, not only of the process."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
