"""A folder in a Cloud Storage bucket, for drivers and tasks that share no disk with the service.

Cloud Storage gives what a folder needs: "Cloud Storage consistency" promises that a read or a listing after a
write sees it, and "Request preconditions" that of two writers one is told. It has no append, and takes about one
write a second of one name ("Cloud Storage quotas & limits"): so each piece of a log is an object of its own.
"""

import io
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import IO, Any, Final

from connectors.gcs.errors import SDK_ERRORS, error_from, our_errors
from model.errors import FolderUnavailableError, SettingsError
from model.file_version import FileVersion

# What a task does not see of an order, a second after it was given, it does not obey: see docs/deploy.md.
SIGHT_SECONDS: Final = 1.0
# A call that is answered at all is answered within this; one that takes longer is repeated.
_CALL_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 60.0
_TRIES: Final = 20
# The size of the pieces of a resumable upload, a whole multiple of 256 KiB.
_CHUNK_BYTES: Final = 8 * 1024 * 1024
# How many pieces a log of which the last line counts may have before the older ones are removed.
_PRUNE_EVERY: Final = 8
# A piece of a log: the log's name and its number.
_PIECE: Final = re.compile(r"(?P<log>.+)\.(?P<number>\d{10})\Z")


def open_bucket_files(location: str) -> "BucketFiles":
    """Return the folder ``gs://bucket/prefix``.

    Raises:
        SettingsError: it is no such location, or google-cloud-storage is not installed.
        FolderUnavailableError: there are no credentials.
    """
    found = re.fullmatch(r"gs://([a-z0-9][a-z0-9._\-]{1,220}[a-z0-9])(?:/([^#?\[\]*\r\n]*))?", location)
    if found is None:
        raise SettingsError(f"{location!r} is not gs://bucket/prefix.")
    bucket, prefix = found[1], (found[2] or "").strip("/")
    return BucketFiles(client().bucket(bucket), f"{prefix}/" if prefix else "")


@cache
def client() -> Any:
    """Return the client of this process; STORAGE_EMULATOR_HOST points it at a stand-in.

    Raises:
        SettingsError: google-cloud-storage is not installed.
        FolderUnavailableError: there are no credentials.
    """
    try:
        from google.cloud.storage import Client
    except ImportError as exc:
        raise SettingsError(
            "A folder in gs:// needs google-cloud-storage. Run pip install 'refeed[gcs]', or use Refeed's "
            "container image."
        ) from exc
    with our_errors("Cloud Storage"):
        # It would ask for the bucket's metadata, in threads of its own and with a role more, for traces only.
        os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
        # Objects need no project; the client wants one all the same.
        return Client(project="refeed")


def _retry() -> Any:
    from google.cloud.storage.retry import DEFAULT_RETRY

    # Each call here may be made twice: it replaces, reads, removes, or names the generation that it expects.
    return DEFAULT_RETRY.with_timeout(_RETRY_SECONDS).with_delay(initial=0.2, maximum=8.0, multiplier=2.0)


class BucketFiles:
    """Objects below a prefix: what :class:`jobs.files.Files` promises, for a request or two a call."""

    # Tasks and drivers look again after it, and nothing is written more often under one name.
    sight_seconds = SIGHT_SECONDS
    # It lies on no disk.
    path = None

    def __init__(self, bucket: Any, prefix: str) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._again = {"timeout": _CALL_SECONDS, "retry": _retry()}
        # By log: the number of its last piece that this process wrote, and the one that it read.
        self._written: dict[str, int] = {}
        self._read: dict[str, tuple[int, bytes]] = {}

    def __str__(self) -> str:
        return f"gs://{self._bucket.name}/{self._prefix}".rstrip("/")

    @property
    def name(self) -> str:
        """The folder's own name."""
        return str(self).rpartition("/")[2]

    def folder(self, name: str) -> "BucketFiles":
        """Return the folder ``name`` in this one."""
        return BucketFiles(self._bucket, f"{self._prefix}{name}/")

    def make(self) -> None:
        """Do nothing: a folder is there with its first object, and the bucket says who may read it."""

    def exists(self) -> bool:
        """Whether there is any object below the prefix."""
        return any(True for _ in self._list(self._prefix, max_results=1))

    def list(self) -> list[str]:
        """Return the names of objects, logs and folders here."""
        with our_errors(str(self)):
            found = self._bucket.list_blobs(
                prefix=self._prefix,
                delimiter="/",
                fields="items(name),prefixes,nextPageToken",
                **self._again,
            )
            names = {self._log_of(blob.name) for blob in found}
            return sorted(names | {prefix[len(self._prefix) : -1] for prefix in found.prefixes})

    def versions(self) -> dict[str, FileVersion]:
        """Return the generation of each live object right below the prefix, as one listing gives them.

        "Cloud Storage consistency" counts listing objects among the strongly consistent operations, so what was
        written before is in it, and what was deleted is not: https://cloud.google.com/storage/docs/consistency
        """
        found = self._list(self._prefix, delimiter="/", fields="items(name,generation,size),nextPageToken")
        names = ((blob.name[len(self._prefix) :], blob) for blob in found)
        # A console makes a folder by an empty object of the folder's own name.
        return {name: FileVersion(str(blob.generation), int(blob.size)) for name, blob in names if name}

    def read_version(self, name: str, version: FileVersion) -> bytes | None:
        """Return what an object holds while its live version has this generation."""
        from google.api_core.exceptions import NotFound, PreconditionFailed

        try:
            return bytes(self._blob(name).download_as_bytes(if_generation_match=version.generation, **self._again))
        except (NotFound, PreconditionFailed):
            return None
        except SDK_ERRORS as exc:
            raise error_from(exc, self._where(name)) from exc

    def changed_at(self, name: str) -> float | None:
        """Return when the latest object of a folder was written."""
        found = self._list(f"{self._prefix}{name}/", fields="items(name,updated),nextPageToken")
        return max((blob.updated.timestamp() for blob in found), default=None)

    def take_away(self, name: str, is_wanted: Callable[[], bool]) -> bool:
        """Remove the objects right in the folder first: without its specification nobody begins to use it."""
        if is_wanted():
            return False
        prefix = f"{self._prefix}{name}/"
        blobs = sorted(self._list(prefix), key=lambda blob: blob.name.count("/"))
        for blob in blobs:
            self._delete(blob)
        return bool(blobs)

    def sweep(self) -> None:
        """Do nothing: what is left of a folder is listed like any other."""

    def read(self, name: str) -> bytes:
        """Return what an object holds."""
        with our_errors(self._where(name)):
            return bytes(self._blob(name).download_as_bytes(**self._again))

    def write(self, name: str, content: bytes) -> None:
        """Replace an object, or make it."""
        with our_errors(self._where(name)):
            self._blob(name).upload_from_string(content, **self._again)

    def change(self, name: str, change: Callable[[bytes | None], bytes | None]) -> bool:
        """Replace an object by what ``change`` makes of the generation that was read, or read again."""
        for _ in range(_TRIES):
            blob = self._blob(name)
            try:
                with our_errors(self._where(name)):
                    # The download says of which generation it is.
                    found: bytes | None = blob.download_as_bytes(**self._again)
                generation = blob.generation
            except FileNotFoundError:
                found, generation = None, 0
            content = change(found)
            if content is None:
                return False
            if self._upload(name, content, generation):
                return True
        raise FolderUnavailableError(f"Other processes keep changing {self._where(name)}. Try again.")

    def remove(self, name: str) -> None:
        """Remove an object; one that is gone is no error."""
        self._delete(self._blob(name))

    @contextmanager
    def making(self) -> Iterator["BucketFiles"]:
        """Give this folder itself: what is written to it counts with the last file."""
        yield self

    def own_name(self, name: str) -> str:
        """Return ``name`` with some letters before it: others may be making the same folder."""
        return f"{secrets.token_hex(4)}-{name}"

    def complete(self, name: str, content: bytes) -> None:
        """Write the file that makes the others count, unless it is there."""
        if not self._upload(name, content, 0) and self.read(name) != content:
            raise FileExistsError(f"{self} was created by another process.")

    def is_made(self, name: str) -> bool:
        """Whether the last file of the folder is there."""
        with our_errors(self._where(name)):
            return bool(self._blob(name).exists(**self._again))

    @contextmanager
    def writer(self, name: str) -> Iterator[Any]:
        """Give what sends an object in pieces; after an error the upload is given up and no object is there."""
        with our_errors(self._where(name)):
            file = self._blob(name).open(
                "wb", chunk_size=_CHUNK_BYTES, ignore_flush=True, timeout=_CALL_SECONDS, retry=self._again["retry"]
            )
            try:
                yield file
            except BaseException:
                with suppress(*SDK_ERRORS, ValueError):
                    file.terminate()
                raise
            file.close()

    def source(self, name: str) -> Any:
        """Return what Arrow reads ranges of an object from."""
        return self.reader(name)

    def reader(self, name: str) -> IO[bytes]:
        """Open an object to read ranges of it, one request each."""
        blob = self._blob(name)
        with our_errors(self._where(name)):
            blob.reload(**self._again)
        return _Ranges(blob, self._where(name), self._again)  # type: ignore[return-value]

    def append(self, name: str, lines: bytes) -> None:
        """Add a piece to a log, after all that are there; many writers take their numbers one by one."""
        self._add(name, lines)

    def read_log(self, name: str) -> bytes:
        """Return all pieces of a log."""
        return b"".join(self.read(piece) for piece in self._pieces(name))

    def append_latest(self, name: str, line: bytes) -> None:
        """Add a piece to a log, and remove older ones from time to time."""
        number = self._add(name, line)
        if number % _PRUNE_EVERY == 0:
            for piece in self._pieces(name):
                if int(piece.rpartition(".")[2]) < number:
                    self.remove(piece)

    def read_latest(self, name: str) -> bytes:
        """Return the last piece of a log."""
        for log, content in self.latest(name, lambda found: found == name):
            if log == name:
                return content
        raise FileNotFoundError(self._where(name))

    def latest(self, prefix: str, wanted: Callable[[str], bool] = lambda _: True) -> Iterator[tuple[str, bytes]]:
        """Yield name and last piece of each log; one that has not changed since it was read is not read again."""
        numbers: dict[str, int] = {}
        for blob in self._list(f"{self._prefix}{prefix}"):
            if (found := _PIECE.fullmatch(blob.name[len(self._prefix) :])) is not None and wanted(found["log"]):
                numbers[found["log"]] = int(found["number"])
        for log, number in numbers.items():
            known = self._read.get(log)
            if known is None or known[0] != number:
                try:
                    known = (number, self.read(f"{log}.{number:010d}"))
                except FileNotFoundError:
                    # Newer ones have come, and it went meanwhile; the next look finds them.
                    known = self._read_again(log) or known
            if known is not None:
                self._read[log] = known
                yield log, known[1]

    def _read_again(self, log: str) -> tuple[int, bytes] | None:
        for _ in range(_TRIES):
            pieces = self._pieces(log)
            if not pieces:
                return None
            with suppress(FileNotFoundError):
                return int(pieces[-1].rpartition(".")[2]), self.read(pieces[-1])
        return None

    def _add(self, name: str, content: bytes) -> int:
        """Write the next piece of a log and return its number."""
        number = self._written.get(name)
        for _ in range(_TRIES):
            if number is None:
                pieces = self._pieces(name)
                number = int(pieces[-1].rpartition(".")[2]) if pieces else 0
            number += 1
            if self._upload(f"{name}.{number:010d}", content, 0):
                self._written[name] = number
                return number
            # Somebody else's, or our own of a request whose answer was lost: said twice is as good as once.
            number = None
        raise FolderUnavailableError(f"Other processes keep writing to {self._where(name)}. Try again.")

    def _pieces(self, log: str) -> Sequence[str]:
        names = (blob.name[len(self._prefix) :] for blob in self._list(f"{self._prefix}{log}."))
        return [name for name in names if (found := _PIECE.fullmatch(name)) is not None and found["log"] == log]

    def _upload(self, name: str, content: bytes, generation: int) -> bool:
        """Write an object if it is still of this generation (0: not there), and return whether it was."""
        from google.api_core.exceptions import PreconditionFailed

        try:
            self._blob(name).upload_from_string(content, if_generation_match=generation, **self._again)
        except PreconditionFailed:
            return False
        except SDK_ERRORS as exc:
            raise error_from(exc, self._where(name)) from exc
        return True

    def _delete(self, blob: Any) -> None:
        # A blob's name begins with the prefix.
        with suppress(FileNotFoundError), our_errors(f"gs://{self._bucket.name}/{blob.name}"):
            blob.delete(**self._again)

    def _list(self, prefix: str, **wanted: Any) -> Iterator[Any]:
        with our_errors(str(self)):
            yield from self._bucket.list_blobs(
                prefix=prefix, **{"fields": "items(name),nextPageToken", **wanted}, **self._again
            )

    def _log_of(self, name: str) -> str:
        found = _PIECE.fullmatch(name[len(self._prefix) :])
        return found["log"] if found is not None else str(name[len(self._prefix) :])

    def _blob(self, name: str) -> Any:
        return self._bucket.blob(f"{self._prefix}{name}")

    def _where(self, name: str) -> str:
        return f"{self}/{name}"


class _Ranges(io.RawIOBase):
    """One object of one generation, read by ranges: Arrow asks for the footer and then for a row group."""

    def __init__(self, blob: Any, where: str, again: dict[str, Any]) -> None:
        super().__init__()
        self._blob = blob
        self._where = where
        self._again = again
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._blob.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._blob.size - self._at)
        wanted = left if size is None or size < 0 else min(size, left)
        if wanted == 0:
            return b""
        with our_errors(self._where):
            found = bytes(
                self._blob.download_as_bytes(
                    start=self._at,
                    end=self._at + wanted - 1,
                    if_generation_match=self._blob.generation,
                    **self._again,
                )
            )
        self._at += len(found)
        return found

    def readall(self) -> bytes:
        return self.read()
