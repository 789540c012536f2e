"""A folder in a bucket, for drivers and tasks that share no disk with the service.

Amazon S3 and Cloud Storage give what a folder needs: a read or a listing after a write sees it ("Amazon S3 data
consistency model", "Cloud Storage consistency"), and of two writers one is told ("Conditional requests", "Request
preconditions"). They have no append, and Cloud Storage takes about one write a second of one name ("Cloud Storage
quotas & limits"): so each piece of a log is an object of its own.
"""

import io
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any, Final

from connectors.object_store.bucket import FIT, UNFIT, Bucket, ListedObject, open_spool
from connectors.object_store.errors import folder_errors
from model.errors import FolderUnavailableError, SettingsError
from model.file_version import FileVersion

# What a task does not see of an order, a second after it was given, it does not obey: see docs/deploy.md.
SIGHT_SECONDS: Final = 1.0
_TRIES: Final = 20
# How many pieces a log of which the last line counts may have before the older ones are removed.
_PRUNE_EVERY: Final = 8
# A piece of a log: the log's name and its number.
_PIECE: Final = re.compile(r"(?P<log>.+)\.(?P<number>\d{10})\Z")


def open_bucket_files(location: str) -> "BucketFiles":
    """Return the folder ``s3://bucket/prefix`` or ``gs://bucket/prefix``.

    Raises:
        SettingsError: it is no such location.
        FolderUnavailableError: there are no credentials that can be used.
    """
    found = re.fullmatch(r"((?:gs|s3)://[a-z0-9][a-z0-9._\-]{1,220}[a-z0-9])(?:/([^#?\[\]*\r\n]*))?", location)
    prefix = (found[2] or "").strip("/") if found is not None else ""
    if found is None or any(part in ("", ".", "..") for part in prefix.split("/")[:-1]):
        raise SettingsError(f"{location!r} is not s3://bucket/prefix or gs://bucket/prefix.")
    return BucketFiles(f"{found[1]}/{prefix}".rstrip("/"))


class BucketFiles:
    """Objects below a prefix: what :class:`jobs.files.Files` promises, for a request or two a call."""

    # Tasks and drivers look again after it, and nothing is written more often under one name.
    sight_seconds = SIGHT_SECONDS
    path = None

    def __init__(self, location: str) -> None:
        self._location = location
        with folder_errors(location):
            self._bucket = Bucket(location)
        # By log: the number of its last piece that this process wrote, and the one that it read.
        self._written: dict[str, int] = {}
        self._read: dict[str, tuple[int, bytes]] = {}

    def __str__(self) -> str:
        return self._location

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self._location.rpartition("/")[2]

    def folder(self, name: str) -> "BucketFiles":
        """Return the folder ``name`` in this one."""
        return BucketFiles(self._where(name))

    def make(self) -> None:
        """Do nothing: a folder is there with its first object, and the bucket says who may read it."""

    def check(self) -> None:
        """Raise unless the bucket honours the conditions of writes."""
        with folder_errors(str(self)):
            condition = Bucket(self._where("_probe")).unsupported_condition()
        if condition is not None:
            raise FolderUnavailableError(
                f"The bucket of {self} {UNFIT.format(condition)} Two processes could overwrite each other's "
                f"changes. Use {FIT}"
            )

    def exists(self) -> bool:
        """Whether there is any object below the prefix."""
        return any(True for _ in self._find(""))

    def list(self) -> list[str]:
        """Return the names of objects, logs and folders here."""
        with folder_errors(str(self)):
            objects, folders = self._bucket.list_folder()
        return sorted({_log_of(each.name) for each in objects} | set(folders))

    def versions(self) -> dict[str, FileVersion]:
        """Return the tag of each object right below the prefix, by one listing; a new content has a new tag."""
        with folder_errors(str(self)):
            objects, _ = self._bucket.list_folder()
        return {each.name: FileVersion(each.e_tag, each.size_bytes) for each in objects}

    def read_version(self, name: str, version: FileVersion) -> bytes | None:
        """Return what an object holds while it has this tag."""
        with folder_errors(self._where(name)):
            found = self._bucket.read(name, version.generation)
        return None if found is None else found.content

    def changed_at(self, name: str) -> float | None:
        """Return when the latest object of a folder was written."""
        return max((each.modified_at.timestamp() for each in self._find(f"{name}/")), default=None)

    def take_away(self, name: str, is_wanted: Callable[[], bool]) -> bool:
        """Remove the objects right in the folder first: without its specification nobody begins to use it."""
        if is_wanted():
            return False
        found = sorted((each.name for each in self._find(f"{name}/")), key=lambda each: each.count("/"))
        with folder_errors(self._where(name)):
            right_in = [each for each in found if each.count("/") == 1]
            self._bucket.delete(*right_in)
            self._bucket.delete(*found[len(right_in) :])
        return bool(found)

    def sweep(self) -> None:
        """Do nothing: what is left of a folder is listed like any other."""

    def read(self, name: str) -> bytes:
        """Return what an object holds."""
        with folder_errors(self._where(name)):
            found = self._bucket.read(name)
            if found is None:
                raise FileNotFoundError
            return found.content

    def write(self, name: str, content: bytes) -> None:
        """Replace an object, or make it."""
        with folder_errors(self._where(name)):
            self._bucket.put(name, content)

    def change(self, name: str, change: Callable[[bytes | None], bytes | None]) -> bool:
        """Replace an object by what ``change`` makes of the one that was read, or read again.

        If the answer to a write is lost, the write may have been made. Then ``change`` is called again, with its
        own result. The same content in the object would be no proof, because another process may have written it.
        """
        with folder_errors(self._where(name)):
            for _ in range(_TRIES):
                found = self._bucket.read(name)
                content = change(None if found is None else found.content)
                if content is None:
                    return False
                if self._bucket.try_put(name, content, None if found is None else found.tag) is not None:
                    return True
        raise FolderUnavailableError(f"Other processes keep changing {self._where(name)}. Try again.")

    def remove(self, name: str) -> None:
        """Remove an object; one that is gone is no error."""
        with folder_errors(self._where(name)):
            self._bucket.delete(name)

    @contextmanager
    def making(self) -> Iterator["BucketFiles"]:
        """Give this folder itself: what is written to it counts with the last file."""
        yield self

    def own_name(self, name: str) -> str:
        """Return ``name`` with some letters before it: others may be making the same folder."""
        return f"{secrets.token_hex(4)}-{name}"

    def complete(self, name: str, content: bytes) -> None:
        """Write the file that makes the others count, unless it is there."""
        with folder_errors(self._where(name)):
            if self._bucket.put_new(name, content) is None:
                raise FileExistsError(f"{self} was created by another process.")

    def is_made(self, name: str) -> bool:
        """Whether the last file of the folder is there."""
        with suppress(FileNotFoundError), folder_errors(self._where(name)):
            return bool(self._bucket.look_up(name))
        return False

    @contextmanager
    def writer(self, name: str) -> Iterator[Any]:
        """Give a temporary file that becomes an object when the block ends; after an error none is there."""
        with open_spool() as file:
            yield file
            with folder_errors(self._where(name)):
                self._bucket.upload(name, file)

    def source(self, name: str) -> Any:
        """Return what Arrow reads ranges of an object from."""
        return self.reader(name)

    def reader(self, name: str) -> IO[bytes]:
        """Open an object to read ranges of it, one request each."""
        with folder_errors(self._where(name)):
            return _Ranges(self._bucket, self._bucket.look_up(name), self._where(name))  # type: ignore[return-value]

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
            with folder_errors(self._where(name)):
                self._bucket.delete(*(piece for piece in self._pieces(name) if _number_of(piece) < number))

    def read_latest(self, name: str) -> bytes:
        """Return the last piece of a log."""
        for log, content in self.latest(f"{name}.", lambda found: found == name):
            if log == name:
                return content
        raise FileNotFoundError(self._where(name))

    def latest(self, prefix: str, wanted: Callable[[str], bool] = lambda _: True) -> Iterator[tuple[str, bytes]]:
        """Yield name and last piece of each log; one that has not changed since it was read is not read again."""
        numbers: dict[str, int] = {}
        for each in self._find(prefix):
            if (found := _PIECE.fullmatch(each.name)) is not None and wanted(found["log"]):
                numbers[found["log"]] = int(found["number"])
        for log, number in numbers.items():
            known = self._read.get(log)
            if known is None or known[0] != number:
                try:
                    known = (number, self.read(_piece(log, number)))
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
                return _number_of(pieces[-1]), self.read(pieces[-1])
        return None

    def _add(self, name: str, content: bytes) -> int:
        """Write the next piece of a log and return its number."""
        number = self._written.get(name)
        for _ in range(_TRIES):
            if number is None:
                pieces = self._pieces(name)
                number = _number_of(pieces[-1]) if pieces else 0
            number += 1
            with folder_errors(self._where(name)):
                if self._bucket.try_put(_piece(name, number), content, None) is not None:
                    self._written[name] = number
                    return number
            # Somebody else's, or our own of a request whose answer was lost: said twice is as good as once.
            number = None
        raise FolderUnavailableError(f"Other processes keep writing to {self._where(name)}. Try again.")

    def _pieces(self, log: str) -> Sequence[str]:
        names = (each.name for each in self._find(f"{log}."))
        return [name for name in names if (found := _PIECE.fullmatch(name)) is not None and found["log"] == log]

    def _find(self, start: str) -> Iterator[ListedObject]:
        with folder_errors(str(self)):
            yield from self._bucket.find(start)

    def _where(self, name: str) -> str:
        return f"{self}/{name}"


def _piece(log: str, number: int) -> str:
    return f"{log}.{number:010d}"


def _number_of(piece: str) -> int:
    return int(piece.rpartition(".")[2])


def _log_of(name: str) -> str:
    found = _PIECE.fullmatch(name)
    return found["log"] if found is not None else name


class _Ranges(io.RawIOBase):
    """One object of one tag, read by ranges: Arrow asks for the footer and then for a row group."""

    def __init__(self, bucket: Bucket, found: ListedObject, where: str) -> None:
        super().__init__()
        self._bucket = bucket
        self._found = found
        self._where = where
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._found.size_bytes}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._found.size_bytes - self._at)
        wanted = left if size is None or size < 0 else min(size, left)
        if wanted == 0:
            return b""
        with folder_errors(self._where):
            found = self._bucket.read_range(self._found.name, self._at, self._at + wanted, self._found.e_tag)
        self._at += len(found)
        return found

    def readall(self) -> bytes:
        return self.read()
