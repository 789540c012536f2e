"""Small objects below a URI, by one protocol: on a disk, or in a bucket of Amazon S3 or Cloud Storage."""

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit
from urllib.request import url2pathname

# No further try begins after this time; one that is not answered ends after 30 s, the client's own default.
_RETRY_SECONDS: Final = 60

# What an object is known by until it is replaced: its store's tag and generation, or on a disk its content.
Tag = Mapping[str, str] | bytes


@dataclass(frozen=True, slots=True)
class StoredObject:
    """The content of an object and its tag."""

    content: bytes
    tag: Tag


class Objects(Protocol):
    """The objects below a URI. All raise OSError; a write that does may have been made, or be made later."""

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

    def list(self) -> list[str]:
        """Return the names of the objects, without those in folders."""

    def delete(self, name: str) -> None:
        """Delete an object; one that is gone already is fine."""


def open_objects(uri: str, *, is_swept: bool = False) -> Objects:
    """Return the objects below a path or a URI; ``is_swept`` has a disk's unfinished files in the folder above."""
    if "://" in uri and not uri.startswith("file:"):
        return Bucket(uri)
    folder = Path(url2pathname(urlsplit(uri).path) if "://" in uri else uri).absolute()
    return Disk(folder, folder.parent if is_swept else folder)


class Disk:
    """A folder, which need not exist yet; what is put survives a power cut.

    Several processes may put an object, and only one of them may replace it.
    """

    def __init__(self, folder: Path, scratch: Path) -> None:
        self._folder = folder
        self._scratch = scratch

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

    def list(self) -> list[str]:
        """Return the names of the objects."""
        try:
            return [entry.name for entry in os.scandir(self._folder) if entry.is_file()]
        except FileNotFoundError:
            return []

    def delete(self, name: str) -> None:
        """Delete an object."""
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
        from obstore.store import from_url

        self._client = obstore
        tries = {"max_retries": 5, "retry_timeout": timedelta(seconds=_RETRY_SECONDS)}
        options: dict[str, Any] = {"retry_config": tries}
        with _as_os_error():
            self._store = from_url(uri, **options)

    def put_new(self, name: str, content: bytes) -> Tag | None:
        """Put an object where there is none."""
        return self._put(name, content, "create")

    def replace(self, name: str, content: bytes, tag: Tag) -> Tag | None:
        """Put an object in the place of the one with ``tag``."""
        return self._put(name, content, tag)

    def _put(self, name: str, content: bytes, mode: Any) -> Tag | None:
        refusals = (self._client.exceptions.AlreadyExistsError, self._client.exceptions.PreconditionError)
        with _as_os_error():
            try:
                return _tag(self._client.put(self._store, name, content, mode=mode, use_multipart=False))
            except refusals:
                # Of two requests at the same moment a store refuses one, and the other one may come to nothing.
                found = self.read(name)
        return found.tag if found is not None and found.content == content else None

    def read(self, name: str) -> StoredObject | None:
        """Return an object, None where there is none."""
        with _as_os_error():
            try:
                found = self._client.get(self._store, name)
                return StoredObject(bytes(found.bytes()), _tag(found.meta))
            except FileNotFoundError:
                return None

    def list(self) -> list[str]:
        """Return the names of the objects."""
        with _as_os_error():
            return [each["path"] for each in self._client.list_with_delimiter(self._store)["objects"]]

    def delete(self, name: str) -> None:
        """Delete an object."""
        with _as_os_error():
            self._client.delete(self._store, name)


def sync_file(path: str) -> None:
    """Make a local file or folder durable against the loss of power, not only of the process."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _tag(described: Mapping[str, Any]) -> Tag:
    # Amazon compares the tag, Cloud Storage the generation.
    return {name: described[name] for name in ("e_tag", "version") if described.get(name) is not None}


@contextmanager
def _as_os_error() -> Iterator[None]:
    from obstore.exceptions import BaseError

    try:
        yield
    except BaseError as exc:
        # What follows the first line is of use to nobody.
        raise OSError(str(exc).partition("\n")[0]) from exc
