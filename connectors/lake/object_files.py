"""The lake's engine reads a bucket's files through this file system; it opens files and nothing else."""

import os
import threading
from collections import OrderedDict
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, Final

from fsspec import AbstractFileSystem

from connectors.lake.object_reads import PIECE_BYTES, TAIL_BYTES, ObjectReads, Tail

# So many files' ends are asked for before the engine opens these files.
_AHEAD: Final = 16
# So many ends are kept, 64 MiB at most: the engine opens a file several times.
_KEPT: Final = 512

_UNCHANGED: Final = datetime.fromtimestamp(0, UTC)


class ObjectFiles(AbstractFileSystem):  # type: ignore[misc]
    """A bucket's files for one connection of DuckDB, which calls it from several threads.

    DuckDB names every file of a list (``glob``) before it opens the first one. ``failure`` is the first error of a
    read: DuckDB gives its text alone.
    """

    cachable = False

    def __init__(self, reads: ObjectReads) -> None:
        super().__init__()
        self.protocol = reads.scheme
        self.failure: Exception | None = None
        self._reads = reads
        self._order: dict[str, int] = {}
        self._paths: list[str] = []
        self._sizes: dict[str, int] = {}
        self._tails: OrderedDict[str, Future[Tail]] = OrderedDict()
        self._lock = threading.Lock()

    def glob(self, path: str, **_: Any) -> list[str]:
        """Return the path itself: a file's name is no pattern."""
        with self._lock:
            if path not in self._order:
                self._order[path] = len(self._paths)
                self._paths.append(path)
        return [path]

    def exists(self, path: str, **_: Any) -> bool:
        """Whether there is a file; one that is listed is."""
        return path in self._order

    def open(self, path: str, mode: str = "rb", **_: Any) -> "_ObjectFile":
        """Open a file, which sends the request for its end."""
        if mode != "rb":
            raise PermissionError(f"{path} can only be read.")
        if self._sizes.get(path, 0) <= TAIL_BYTES:
            self._ask(path)
        return _ObjectFile(self, path)

    def size(self, path: str) -> int:
        """Return a file's size."""
        if path not in self._sizes:
            self._sizes[path] = self._result(self._ask(path)).size_bytes
        return self._sizes[path]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return what fsspec says of a file."""
        return {"name": path, "size": self.size(path), "type": "file"}

    def modified(self, path: str) -> datetime:  # noqa: ARG002
        """Return the same moment for all: no file of a lake is ever changed."""
        return _UNCHANGED

    def read(self, path: str, start: int, size: int) -> bytes:
        """Return ``size`` bytes, or what there is of them up to the file's end."""
        whole = self.size(path)
        tail = self._kept(path)
        first = whole - len(tail)
        end = min(start + size, whole)
        stop = min(end, first)
        pieces = [
            self._reads.range(path, at, min(at + PIECE_BYTES, stop)) for at in range(start, stop, PIECE_BYTES)
        ]
        return b"".join([*map(self._result, pieces), tail[max(0, start - first) : max(0, end - first)]])

    def _kept(self, path: str) -> bytes:
        with self._lock:
            tail = self._tails.get(path)
        return b"" if tail is None else self._result(tail).content

    def _ask(self, path: str) -> Future[Tail]:
        """Return what gives the end of a file; those of the files after it are asked for as well."""
        with self._lock:
            place = self._order.get(path, len(self._paths))
            for each in self._paths[place + 1 : place + _AHEAD]:
                if each not in self._tails and self._sizes.get(each, 0) <= TAIL_BYTES:
                    self._tails[each] = self._reads.tail(each)
            if path not in self._tails:
                self._tails[path] = self._reads.tail(path)
            self._tails.move_to_end(path)
            while len(self._tails) > _KEPT:
                self._tails.popitem(last=False)
            return self._tails[path]

    def _result(self, future: Future[Any]) -> Any:
        try:
            return future.result()
        except Exception as exc:
            self.failure = self.failure or exc
            raise


class _ObjectFile:
    """One open file, as DuckDB and Arrow read it.

    DuckDB reads at a place by two calls, ``seek`` and ``read``, and threads that share a file make them at once.
    So each thread has a place of its own: with one for all, a thread gets the bytes of another's place.
    """

    def __init__(self, files: ObjectFiles, path: str) -> None:
        self._files = files
        self._path = path
        # Not threading.local: a thread of DuckDB's is a new one for Python with each call.
        self._places: dict[int, int] = {}
        self.closed = False

    def seek(self, place: int, whence: int = 0) -> int:
        place += self._files.size(self._path) if whence == os.SEEK_END else 0
        self._places[threading.get_ident()] = place
        return place

    def tell(self) -> int:
        return self._places.get(threading.get_ident(), 0)

    def read(self, size: int = -1) -> bytes:
        place = self._places.pop(threading.get_ident(), 0)
        return self._files.read(self._path, place, self._files.size(self._path) if size < 0 else size)

    def close(self) -> None:
        self.closed = True
        self._places.clear()
