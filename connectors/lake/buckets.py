"""Partitions an Arrow file by bucket, so that each task reads its own batches only."""

from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeVar

import pyarrow as pa

from connectors.lake.tables import our_errors

_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="lz4")

Bucket = TypeVar("Bucket", bound=Hashable)
# The numbers of batches in a file.
Batches = Sequence[int]


class BucketWriter(Generic[Bucket]):
    """Writes the file ``path``; ``batches`` has the numbers of each bucket's batches."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.batches: dict[Bucket, list[int]] = {}
        self._path = path
        self._writer = pa.ipc.new_file(str(path), schema, options=_COMPRESSED)
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def write(self, bucket: Bucket, batch: pa.RecordBatch) -> None:
        """Add rows to a bucket."""
        with our_errors(f"writing {self._path.name}"):
            self._writer.write_batch(batch)
        self.batches.setdefault(bucket, []).append(self._count)
        self._count += 1


def read_batches(path: Path, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Yield some batches of a file; no other is read."""
    if not batches:
        return
    with our_errors(f"reading {path.name}"), pa.OSFile(str(path)) as file:
        reader: Any = pa.ipc.open_file(file)
        for number in batches:
            yield reader.get_batch(number)
