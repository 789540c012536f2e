"""The objects of a bucket below a URI, by requests to Amazon S3 or Cloud Storage."""

import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from tempfile import SpooledTemporaryFile
from typing import IO, Any, Final, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa

from connectors.object_store.clock import StoreClock

# No further try begins after this time; one that is not answered ends after 30 s, the client's own default.
_RETRY_SECONDS: Final = 60
# A larger object waits in a temporary file and goes in parts, of which some are in memory at a time.
_ONE_REQUEST_BYTES: Final = 32 * 1024 * 1024
_PART_BYTES: Final = 16 * 1024 * 1024
_PARTS_AT_ONCE: Final = 4
# A Parquet writer writes in pieces of a few KB.
BUFFER_BYTES: Final = 64 * 1024
# A store answers a listing in pages of this many.
_PAGE_OBJECTS: Final = 1000
# To make a client takes 13 ms. It reads its settings from these variables.
_CLIENT_SETTINGS: Final = ("AWS_", "GOOGLE_")

# What is wrong with a bucket that has :meth:`Bucket.unsupported_condition`, and which one to use.
UNFIT: Final = "does not support conditional writes ({}): it ignores the condition, or does not accept it."
FIT: Final = (
    "a bucket of Amazon S3 or Google Cloud Storage. Another object store must answer a write whose condition is "
    "not met with status 412, and must make a write whose condition is met, so a newer version of the store may "
    "help."
)

# What an object is known by until it is replaced: its store's tag and generation, or on a disk its content.
Tag = Mapping[str, str] | bytes


class StoredObject(NamedTuple):
    """The content of an object and its tag."""

    content: bytes
    tag: Tag


class ListedObject(NamedTuple):
    """An object as a listing has it; ``e_tag`` changes with each content."""

    name: str
    size_bytes: int
    e_tag: str
    modified_at: datetime


@dataclass(slots=True)
class WrittenObject:
    """An object that is written to ``stream``; ``size_bytes`` and ``modified_at_ms`` are set at its end."""

    stream: pa.NativeFile
    size_bytes: int = 0
    modified_at_ms: int = 0


class Bucket:
    """Objects of a bucket; credentials are the platform's own, from where delta-rs has them too.

    All methods raise OSError: a FileNotFoundError if an object is not there, but not if the bucket is not there.
    A write that raises may have been made, or be made later.
    """

    def __init__(self, uri: str) -> None:
        # What lies on a disk needs none of it.
        import obstore

        parts = urlsplit(uri)
        settings = frozenset(each for each in os.environ.items() if each[0].startswith(_CLIENT_SETTINGS))
        self._client = obstore
        self._store, self._clock = _open_store(f"{parts.scheme}://{parts.netloc}", settings)
        self._prefix = f"{path}/" if (path := parts.path.strip("/")) else ""

    @contextmanager
    def writing(self, name: str) -> Iterator[WrittenObject]:
        """Put an object of any size."""
        with open_spool() as content:
            stream = pa.BufferedOutputStream(pa.PythonFile(content, mode="w"), BUFFER_BYTES)
            made = WrittenObject(stream)
            yield made
            stream.flush()
            made.size_bytes = content.tell()
            # The answer to an upload has no time.
            made.modified_at_ms = int(self.now() * 1000)
            self.upload(name, content)

    def upload(self, name: str, content: IO[bytes]) -> None:
        """Put what has been written to a file, of any size, whatever is there."""
        size_bytes = content.tell()
        content.seek(0)
        with _as_os_error():
            self._client.put(
                self._store,
                self._prefix + name,
                content,
                use_multipart=size_bytes > _ONE_REQUEST_BYTES,
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )

    def put(self, name: str, content: bytes) -> None:
        """Put an object, whatever is there."""
        with _as_os_error():
            self._client.put(self._store, self._prefix + name, content, use_multipart=False)

    def put_new(self, name: str, content: bytes) -> Tag | None:
        """Put an object where there is none."""
        return self._put(name, content, None)

    def replace(self, name: str, content: bytes, tag: Tag) -> Tag | None:
        """Put an object in the place of the one with ``tag``."""
        return self._put(name, content, tag)

    def _put(self, name: str, content: bytes, tag: Tag | None) -> Tag | None:
        made = self.try_put(name, content, tag)
        if made is None:
            # Of two requests at the same moment a store refuses one, and the other one may come to nothing.
            found = self.read(name)
            made = found.tag if found is not None and found.content == content else None
        return made

    def try_put(self, name: str, content: bytes, tag: Tag | None) -> Tag | None:
        """Put an object in the place of the one with ``tag``, or of none; None where the store refuses to.

        A refusal may be that of a second try, after a first one whose answer was lost: then the object is there.
        """
        put, path = self._client.put, self._prefix + name
        mode: Any = "create" if tag is None else tag
        refusals = (self._client.exceptions.AlreadyExistsError, self._client.exceptions.PreconditionError)
        with _as_os_error(), suppress(*refusals):
            return _tag(put(self._store, path, content, mode=mode, use_multipart=False))
        return None

    def read(self, name: str, e_tag: str | None = None) -> StoredObject | None:
        """Return an object, None where there is none; with ``e_tag`` also where there is another."""
        refusal = self._client.exceptions.PreconditionError
        with suppress(FileNotFoundError), _as_os_error(), suppress(refusal):
            found = self._get(name, e_tag)
            return StoredObject(bytes(found.bytes()), _tag(found.meta))
        return None

    def read_tail(self, name: str, most_bytes: int) -> tuple[int, bytes]:
        """Return the size of an object and its last bytes, all of them where there are no more; by one request."""
        with _as_os_error():
            found = self._get(name, range={"suffix": most_bytes})
            return found.meta["size"], bytes(found.bytes())

    def read_range(self, name: str, start: int, end: int, e_tag: str | None = None) -> bytes:
        """Return the bytes of an object from ``start`` up to ``end``; of another than ``e_tag`` is an error."""
        with _as_os_error():
            return bytes(self._get(name, e_tag, range=(start, end)).bytes())

    def _get(self, name: str, e_tag: str | None = None, **options: Any) -> Any:
        options |= {"if_match": e_tag} if e_tag else {}
        return self._client.get(self._store, self._prefix + name, options=options)  # type: ignore[arg-type]

    def look_up(self, name: str) -> ListedObject:
        """Return what a listing says of an object."""
        with _as_os_error():
            return self._listed(self._client.head(self._store, self._prefix + name))

    def now(self) -> float:
        """Return the store's time in Unix seconds, to a second."""
        return self._clock.now(self._measure_time)

    def _measure_time(self) -> datetime:
        """Return when the store writes an object that is put now; it is deleted again."""
        name = f"_clock/{uuid.uuid4().hex}"
        self.put(name, b"")
        moment = self.look_up(name).modified_at
        self.delete(name)
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
            if first is None or self.try_put(name, b"second", None) is not None:
                return condition
            condition = "If-Match"
            if self.replace(name, b"third", first) is None:
                return condition
            return None if self.try_put(name, b"fourth", first) is None else condition
        except OSError as exc:
            if "501 Not Implemented" not in str(exc):
                raise
            return condition

    def list(self) -> list[str]:
        """Return the names of the objects."""
        return list(self.times())

    def times(self) -> Mapping[str, float]:
        """Return when each object was written."""
        return {each.name: each.modified_at.timestamp() for each in self.list_folder()[0]}

    def list_folder(self) -> tuple[Sequence[ListedObject], Sequence[str]]:
        """Return the objects, without those in folders, and the names of the folders."""
        with _as_os_error():
            found = self._client.list_with_delimiter(self._store, self._prefix)
        folders = [each.removeprefix(self._prefix).rstrip("/") for each in found["common_prefixes"]]
        return list(self._listed_below(found["objects"])), folders

    def list_after(self, name: str, most: int) -> Sequence[tuple[str, datetime]]:
        """Return up to ``most`` objects that follow ``name`` by name, each with the time of its modification."""
        with _as_os_error():
            found = self._client.list(self._store, self._prefix, offset=self._prefix + name, chunk_size=most)
            page = next(iter(found), ())
        return [(each.name, each.modified_at) for each in self._listed_below(page)]

    def find(self, start: str = "") -> Iterator[ListedObject]:
        """Yield the objects, also those in folders, whose name is longer than ``start`` and begins with it.

        They come in the order of their names, a page of 1000 a request.
        """
        with _as_os_error():
            for page in self._client.list(
                self._store, self._prefix, offset=self._prefix + start, chunk_size=_PAGE_OBJECTS
            ):
                for each in self._listed_below(page):
                    if not each.name.startswith(start):
                        # All that begin with it are next to each other.
                        return
                    yield each

    def delete(self, *names: str) -> None:
        """Delete objects; up to 1000 are one request on Amazon S3."""
        paths = [self._prefix + name for name in names]
        try:
            with _as_os_error():
                self._client.delete(self._store, paths)
        except FileNotFoundError:
            # Cloud Storage says where there was none, and the client leaves the rest.
            for path in paths if len(paths) > 1 else ():
                with suppress(FileNotFoundError), _as_os_error():
                    self._client.delete(self._store, path)

    def _listed_below(self, found: Iterable[Mapping[str, Any]]) -> Iterator[ListedObject]:
        # A console makes a folder by an empty object of the folder's own name.
        return (self._listed(each) for each in found if each["path"].startswith(self._prefix))

    def _listed(self, found: Mapping[str, Any]) -> ListedObject:
        name = found["path"].removeprefix(self._prefix)
        return ListedObject(name, found["size"], found["e_tag"] or "", found["last_modified"])


def open_spool() -> IO[bytes]:
    """Return a temporary file in which an object waits for its upload; a small one stays in memory."""
    return SpooledTemporaryFile(_ONE_REQUEST_BYTES)


@lru_cache(maxsize=16)
def _open_store(
    bucket: str,
    settings: frozenset[tuple[str, str]],  # noqa: ARG001  known by them
) -> tuple[Any, StoreClock]:
    """Return the client of a bucket and its clock, one for all of the process."""
    from obstore.exceptions import GenericError
    from obstore.store import from_url

    options: dict[str, Any] = {
        "retry_config": {"max_retries": 5, "retry_timeout": timedelta(seconds=_RETRY_SECONDS)}
    }
    with _as_os_error():
        try:
            return from_url(bucket, **options), StoreClock()
        except GenericError:
            if not bucket.startswith("gs://"):
                raise
            return from_url(bucket, credential_provider=_google_account(), **options), StoreClock()


def _google_account() -> Any:
    """Return what asks for tokens of an account that the client can't use, such as a federated one.

    delta-rs can't use such an account for a lake.
    """
    import google.auth
    from google.auth.exceptions import GoogleAuthError
    from obstore.auth.google import GoogleCredentialProvider

    try:
        credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/devstorage.read_write"])
    except GoogleAuthError as exc:
        raise OSError(f"No Google credentials: {exc}") from exc
    return GoogleCredentialProvider(credentials)


def _tag(described: Mapping[str, Any]) -> Tag:
    # Amazon compares the tag, Cloud Storage the generation.
    return {name: described[name] for name in ("e_tag", "version") if described.get(name) is not None}


@contextmanager
def _as_os_error() -> Iterator[None]:
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, FileNotFoundError) as exc:
        # What follows the first line is of use to nobody, but for the store's code and its time.
        first, _, rest = str(exc).partition("\n")
        said = re.findall(r"<(?:Code|ServerTime)>[^<]+</\w+>", rest)
        is_missing = isinstance(exc, FileNotFoundError) and "<Code>NoSuchBucket</Code>" not in said
        kind = FileNotFoundError if is_missing else OSError
        raise kind(" ".join((first, *dict.fromkeys(said)))) from exc
