"""A bucket's files as the lake's engine opens them."""

import random
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from connectors.lake import object_files
from connectors.lake.object_files import ObjectFiles
from connectors.lake.object_reads import PIECE_BYTES, TAIL_BYTES, Tail
from model.errors import WarehouseError

FIRST = "s3://shop/1.parquet"


def done(value: object) -> Future:
    found: Future = Future()
    found.set_result(value)
    return found


@dataclass
class Reads:
    """Files in memory; ``asked`` are the requests, each as its path and its range."""

    files: dict[str, bytes]
    scheme: str = "s3"
    asked: list[tuple[str, int, int]] = field(default_factory=list)

    def tail(self, path: str) -> Future[Tail]:
        content = self.files[path]
        self.asked.append((path, -TAIL_BYTES, 0))
        return done(Tail(len(content), content[-TAIL_BYTES:]))

    def range(self, path: str, start: int, end: int) -> Future[bytes]:
        self.asked.append((path, start, end))
        return done(self.files[path][start:end])


def files_of(reads: Reads) -> ObjectFiles:
    files = ObjectFiles(reads)
    for path in reads.files:
        assert files.glob(path) == [path]
    return files


def read_at(files: ObjectFiles, place: int, size: int) -> bytes:
    file = files.open(FIRST)
    file.seek(place)
    return file.read(size)


def test_threads_that_share_a_file_each_read_at_their_own_place() -> None:
    file = files_of(Reads({FIRST: bytes(range(100))})).open(FIRST)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        one.submit(file.seek, 10).result()
        other.submit(file.seek, 50).result()
        assert one.submit(file.read, 2).result() == bytes([10, 11])
        assert other.submit(file.read, 2).result() == bytes([50, 51])


@pytest.mark.parametrize("size", [1, TAIL_BYTES, TAIL_BYTES + 1, PIECE_BYTES * 2 + TAIL_BYTES + 5])
def test_any_range_is_read_as_it_is_and_no_byte_twice(size: int) -> None:
    content = random.Random(size).randbytes(size)
    reads = Reads({FIRST: content})
    files = files_of(reads)
    assert files.size(FIRST) == size
    for start in {0, size // 2, max(0, size - TAIL_BYTES - 3), size - 1}:
        for length in (0, 1, TAIL_BYTES, size, size + 9):
            reads.asked.clear()
            assert read_at(files, start, length) == content[start : start + length]
            assert all(0 < end - begin <= PIECE_BYTES for _, begin, end in reads.asked)
            assert all(end <= size - TAIL_BYTES for _, _, end in reads.asked)


def test_the_files_after_one_that_is_opened_are_read_ahead_and_none_again() -> None:
    paths = [f"s3://shop/{number}.parquet" for number in range(30)]
    reads = Reads(dict.fromkeys(paths, b"some"))
    files = files_of(reads)
    files.open(paths[0])
    assert sorted(path for path, *_ in reads.asked) == sorted(paths[:16])
    for path in paths:
        files.open(path)
        assert files.size(path) == 4
    assert sorted(path for path, *_ in reads.asked) == sorted(paths)


def test_a_file_whose_end_was_let_go_of_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_files, "_KEPT", 1)
    paths = [f"s3://shop/{number}.parquet" for number in range(3)]
    reads = Reads({path: path.encode() for path in paths})
    files = files_of(reads)
    for path in paths * 2:
        file = files.open(path)
        assert files.size(path) == len(path)
        file.seek(2)
        assert file.read(100) == path.encode()[2:]


def test_the_first_failure_is_kept_and_nothing_is_written() -> None:
    files = files_of(Reads({FIRST: b"x"}))
    files._reads.tail = lambda _: _failed(WarehouseError("gone"))
    with pytest.raises(WarehouseError, match="gone"):
        files.size(FIRST)
    assert isinstance(files.failure, WarehouseError)
    with pytest.raises(PermissionError):
        files.open(FIRST, "wb")


def _failed(error: Exception) -> Future:
    found: Future = Future()
    found.set_exception(error)
    return found
