"""Reads byte ranges of a bucket's files, several at once."""

from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

from connectors.lake.errors import our_errors
from connectors.lake.objects import is_bucket
from connectors.object_store.bucket import Bucket

# The first request for a file is for its last bytes: its size comes with the answer, its footer is among them, and
# of most files that are not compacted yet they are all.
TAIL_BYTES: Final = 128 * 1024
# More bytes are several requests at once: a bucket is fast by the number of its connections.
PIECE_BYTES: Final = 8 * 1024 * 1024
_AT_ONCE: Final = 16


class Tail(NamedTuple):
    """A file's size, and its last bytes: all of them in a small file."""

    size_bytes: int
    content: bytes


class ObjectReads(Protocol):
    """Reads files of a bucket.

    A future raises WarehouseError, and PermissionError for a file that is not to be read.
    """

    @property
    def scheme(self) -> str:
        """The scheme of the files' URIs, such as ``s3``."""

    def tail(self, path: str) -> Future[Tail]:
        """Read a file's size and its last ``TAIL_BYTES``."""

    def range(self, path: str, start: int, end: int) -> Future[bytes]:
        """Read the bytes from ``start`` up to ``end``, ``PIECE_BYTES`` at most."""


class BucketReads:
    """Reads files of one bucket, those in ``allowed`` alone; credentials are the platform's own."""

    def __init__(self, uri: str, allowed: Collection[str] | None = None) -> None:
        self.scheme, _, path = uri.partition("://")
        self._root = f"{self.scheme}://{path.partition('/')[0]}/"
        self._bucket = Bucket(self._root)
        self._allowed = allowed
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="bucket")

    def tail(self, path: str) -> Future[Tail]:
        """Read a file's end by one request."""
        return self._pool.submit(self._tail, path)

    def range(self, path: str, start: int, end: int) -> Future[bytes]:
        """Read a range by one request."""
        return self._pool.submit(self._range, path, start, end)

    def close(self) -> None:
        """Let requests that have begun end by themselves, and begin no others."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _tail(self, path: str) -> Tail:
        with our_errors(f"reading {path}", but=PermissionError):
            return Tail(*self._bucket.read_tail(self._name(path), TAIL_BYTES))

    def _range(self, path: str, start: int, end: int) -> bytes:
        with our_errors(f"reading {path}", but=PermissionError):
            return self._bucket.read_range(self._name(path), start, end)

    def _name(self, path: str) -> str:
        is_foreign = self._allowed is not None and path not in self._allowed
        if is_foreign or not path.startswith(self._root):
            raise PermissionError(f"{path} is no file that is to be read.")
        return path.removeprefix(self._root)


@contextmanager
def open_reads(paths: Iterable[str], *, is_root: bool = False) -> Iterator[BucketReads | None]:
    """Give what reads the files at ``paths`` alone, or with ``is_root`` their whole bucket; None on a disk."""
    found = frozenset(path for path in paths if is_bucket(path))
    if not found:
        yield None
        return
    reads = BucketReads(next(iter(found)), None if is_root else found)
    try:
        yield reads
    finally:
        reads.close()
