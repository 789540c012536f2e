"""Objects below a URI, by one protocol: on a disk, or in a bucket of Amazon S3 or Cloud Storage."""

import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any, Final, Protocol
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pyarrow as pa
import pyarrow.fs as pafs

from connectors.lake.clocks import StoreClock
from connectors.lake.errors import our_errors
from model.errors import WarehouseError

# No further try begins after this time; one that is not answered ends after 30 s, the client's own default.
_RETRY_SECONDS: Final = 60
# A larger object for a bucket waits in a temporary file and goes in parts, of which some are in memory at a time.
_ONE_REQUEST_BYTES: Final = 32 * 1024 * 1024
_PART_BYTES: Final = 16 * 1024 * 1024
_PARTS_AT_ONCE: Final = 4
# A Parquet writer writes in pieces of a few KB.
_BUFFER_BYTES: Final = 64 * 1024
# To make a client takes 13 ms. It reads its settings from these variables.
_CLIENT_SETTINGS: Final = ("AWS_", "GOOGLE_")

# What an object is known by until it is replaced: its store's tag and generation, or on a disk its content.
Tag = Mapping[str, str] | bytes


@dataclass(frozen=True, slots=True)
class StoredObject:
    """The content of an object and its tag."""

    content: bytes
    tag: Tag


@dataclass(slots=True)
class WrittenObject:
    """An object that is written to ``stream``; ``size_bytes`` and ``modified_at_ms`` are set at its end."""

    stream: pa.NativeFile
    size_bytes: int = 0
    modified_at_ms: int = 0


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

    def delete(self, *names: str) -> None:
        """Delete objects; those that are gone already are fine."""


def is_bucket(uri: str) -> bool:
    """Whether a path or a URI is in a bucket."""
    return "://" in uri and not uri.startswith("file:")


def open_objects(uri: str, *, is_swept: bool = False) -> Objects:
    """Return the objects below a path or a URI; ``is_swept`` has a disk's unfinished files in the folder above."""
    if is_bucket(uri):
        return Bucket(uri)
    folder = Path(url2pathname(urlsplit(uri).path) if "://" in uri else uri).absolute()
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
            f"The bucket of {uri} does not support conditional writes ({condition}): it ignores the condition, or "
            "does not accept it. Two streams could overwrite each other's commits or leases. "
            "Set REFEED_LAKE to a bucket of Amazon S3 or Google Cloud Storage. Another object store must "
            "answer a write whose condition is not met with status 412, and must make a write whose condition is "
            "met, so a newer version of the store may help."
        )


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
        local = pafs.LocalFileSystem()
        try:
            with local.open_output_stream(str(path), compression=None, buffer_size=_BUFFER_BYTES) as stream:
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
        try:
            return [entry.name for entry in os.scandir(self._folder) if entry.is_file()]
        except FileNotFoundError:
            return []

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


class Bucket:
    """Objects of a bucket; credentials are the platform's own, from where delta-rs has them too."""

    def __init__(self, uri: str) -> None:
        # A lake on a disk needs none of it.
        import obstore

        parts = urlsplit(uri)
        settings = frozenset(each for each in os.environ.items() if each[0].startswith(_CLIENT_SETTINGS))
        self._client = obstore
        self._store, self._clock = _open_store(f"{parts.scheme}://{parts.netloc}", settings)
        self._prefix = f"{path}/" if (path := parts.path.strip("/")) else ""

    @contextmanager
    def writing(self, name: str) -> Iterator[WrittenObject]:
        """Put an object of any size."""
        with SpooledTemporaryFile(_ONE_REQUEST_BYTES) as content:
            stream = pa.BufferedOutputStream(pa.PythonFile(content, mode="w"), _BUFFER_BYTES)
            made = WrittenObject(stream)
            yield made
            stream.flush()
            made.size_bytes = content.tell()
            # The answer to an upload has no time.
            made.modified_at_ms = int(self.now() * 1000)
            content.seek(0)
            with _as_os_error():
                self._client.put(
                    self._store,
                    self._prefix + name,
                    content,
                    use_multipart=made.size_bytes > _ONE_REQUEST_BYTES,
                    chunk_size=_PART_BYTES,
                    max_concurrency=_PARTS_AT_ONCE,
                )

    def put_new(self, name: str, content: bytes) -> Tag | None:
        """Put an object where there is none."""
        return self._put(name, content, "create")

    def replace(self, name: str, content: bytes, tag: Tag) -> Tag | None:
        """Put an object in the place of the one with ``tag``."""
        return self._put(name, content, tag)

    def _put(self, name: str, content: bytes, mode: Any) -> Tag | None:
        tag = self._put_or_refused(name, content, mode)
        if tag is None:
            # Of two requests at the same moment a store refuses one, and the other one may come to nothing.
            found = self.read(name)
            tag = found.tag if found is not None and found.content == content else None
        return tag

    def _put_or_refused(self, name: str, content: bytes, mode: Any) -> Tag | None:
        put, path = self._client.put, self._prefix + name
        refusals = (self._client.exceptions.AlreadyExistsError, self._client.exceptions.PreconditionError)
        with _as_os_error(), suppress(*refusals):
            return _tag(put(self._store, path, content, mode=mode, use_multipart=False))
        return None

    def read(self, name: str) -> StoredObject | None:
        """Return an object, None where there is none."""
        with _as_os_error():
            try:
                found = self._client.get(self._store, self._prefix + name)
                return StoredObject(bytes(found.bytes()), _tag(found.meta))
            except FileNotFoundError:
                return None

    def read_tail(self, name: str, most_bytes: int) -> tuple[int, bytes]:
        """Return the size of an object and its last bytes, all of them where there are no more; by one request."""
        with _as_os_error():
            found = self._client.get(self._store, self._prefix + name, options={"range": {"suffix": most_bytes}})
            return found.meta["size"], bytes(found.bytes())

    def read_range(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes of an object from ``start`` up to ``end``."""
        with _as_os_error():
            return bytes(self._client.get_range(self._store, self._prefix + name, start=start, end=end))

    def now(self) -> float:
        """Return the store's time in Unix seconds, to a second."""
        return self._clock.now(self._measure_time)

    def _measure_time(self) -> datetime:
        """Return when the store writes an object that is put now; it is deleted again."""
        path = f"{self._prefix}_clock/{uuid.uuid4().hex}"
        with _as_os_error():
            self._client.put(self._store, path, b"", use_multipart=False)
            moment: datetime = self._client.head(self._store, path)["last_modified"]
            self._client.delete(self._store, path)
        return moment

    def unsupported_condition(self) -> str | None:
        """Return the condition of a write that the bucket does not honour, None if there is none.

        One object is put twice as a new one, then replaced twice as the first one. Both second writes must be
        refused. The object is deleted afterwards.
        """
        name = f"{uuid.uuid4().hex}.json"
        try:
            found = self._unsupported_condition(name)
        except OSError:
            # That one is the error to be raised.
            with suppress(OSError):
                self.delete(name)
            raise
        self.delete(name)
        return found

    def _unsupported_condition(self, name: str) -> str | None:
        condition = "If-None-Match"
        try:
            first = self.put_new(name, b"first")
            if first is None or self._put_or_refused(name, b"second", "create") is not None:
                return condition
            condition = "If-Match"
            if self.replace(name, b"third", first) is None:
                return condition
            return None if self._put_or_refused(name, b"fourth", first) is None else condition
        except OSError as exc:
            if "501 Not Implemented" not in str(exc):
                raise
            return condition

    def list(self) -> list[str]:
        """Return the names of the objects."""
        with _as_os_error():
            found = self._client.list_with_delimiter(self._store, self._prefix)["objects"]
        return [each["path"].removeprefix(self._prefix) for each in found]

    def list_after(self, name: str, most: int) -> Sequence[tuple[str, datetime]]:
        """Return up to ``most`` objects that follow ``name`` by name, each with the time of its modification."""
        with _as_os_error():
            found = self._client.list(self._store, self._prefix, offset=self._prefix + name, chunk_size=most)
            page = next(iter(found), ())
        return [(each["path"].removeprefix(self._prefix), each["last_modified"]) for each in page]

    def delete(self, *names: str) -> None:
        """Delete objects; up to 1000 are one request on Amazon S3."""
        # Cloud Storage says where there was none.
        with _as_os_error(), suppress(FileNotFoundError):
            self._client.delete(self._store, [self._prefix + name for name in names])


def sync_file(path: str) -> None:
    """Make a local file or folder durable against the loss of power, not only of the process."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@lru_cache(maxsize=16)
def _open_store(
    bucket: str,
    settings: frozenset[tuple[str, str]],  # noqa: ARG001  known by them
) -> tuple[Any, StoreClock]:
    """Return the client of a bucket and its clock, one for all of the process."""
    from obstore.store import from_url

    options: dict[str, Any] = {
        "retry_config": {"max_retries": 5, "retry_timeout": timedelta(seconds=_RETRY_SECONDS)}
    }
    with _as_os_error():
        return from_url(bucket, **options), StoreClock()


def _tag(described: Mapping[str, Any]) -> Tag:
    # Amazon compares the tag, Cloud Storage the generation.
    return {name: described[name] for name in ("e_tag", "version") if described.get(name) is not None}


@contextmanager
def _as_os_error() -> Iterator[None]:
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, FileNotFoundError) as exc:
        # What follows the first line is of use to nobody, but for the store's code.
        first, _, rest = str(exc).partition("\n")
        code = re.search(r"<Code>\w+</Code>", rest)
        raise OSError(first if code is None else f"{first} {code[0]}") from exc
