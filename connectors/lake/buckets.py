"""Partitions an Arrow file by bucket, so that each task reads its own batches only."""

from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Final, Generic, Self, TypeVar

import pyarrow as pa

from connectors.lake.errors import our_errors

_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="lz4")
# To compress a smaller batch, and read it again, takes longer than its bytes are worth.
_COMPRESSED_BYTES: Final = 64 * 1024

Bucket = TypeVar("Bucket", bound=Hashable)
# Where batches begin in a file.
Batches = Sequence[int]


class BucketWriter(Generic[Bucket]):
    """Writes the file ``path``; ``batches`` has the places of each bucket's batches.

    A reader goes to its places, and reads no list of all batches: that is the longer, the more buckets there are.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.batches: dict[Bucket, list[int]] = {}
        self._path = path
        self._file = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_stream(self._file, schema, options=_COMPRESSED)
        # The schema goes with the first batch: an empty one, so that every place is that of a batch.
        self._writer.write_batch(pa.RecordBatch.from_pylist([], schema))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        self._file.close()

    def write(self, bucket: Bucket, batch: pa.RecordBatch) -> None:
        """Add rows to a bucket."""
        place = self._file.tell()
        with our_errors(f"writing {self._path.name}"):
            if batch.nbytes < _COMPRESSED_BYTES:
                self._file.write(batch.serialize())
            else:
                self._writer.write_batch(batch)
        self.batches.setdefault(bucket, []).append(place)


def read_batches(path: Path, batches: Batches, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield some batches of a file that was written in ``schema``; no other is read."""
    if not batches:
        return
    with our_errors(f"reading {path.name}"), pa.OSFile(str(path)) as file:
        for place in batches:
            file.seek(place)
            yield pa.ipc.read_record_batch(pa.ipc.read_message(file), schema)
