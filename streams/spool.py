"""Sorts any number of message ids by publish time on disk, with little memory."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

_BUCKETS: Final = 256
_HELD_ROWS: Final = 131_072
# A lookup reads a whole entry of the journal.
TABLE_ROWS: Final = 65_536
_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="lz4")


class IdSpool:
    """Rows of ``schema``, which has a ``publish_time``, in the file ``path``, in buckets of equal spans of time.

    The buckets divide the time from ``first`` to ``last`` (microseconds since 1970); earlier and later rows are in
    the outermost buckets. ``check_room`` is called before each write and may raise. The file is deleted after the
    block.
    """

    def __init__(
        self, path: Path, schema: pa.Schema, *, first: int, last: int, check_room: Callable[[], Any]
    ) -> None:
        self._path = path
        self._schema = schema
        self._first = first
        self._width = max(1, (last - first) // _BUCKETS + 1)
        self._check_room = check_room
        self._held: list[pa.RecordBatch] = []
        self._places: list[list[int]] = [[] for _ in range(_BUCKETS)]
        self._rows = np.zeros(_BUCKETS, dtype=np.int64)
        self._ends = [(2**63 - 1, -(2**63))] * _BUCKETS
        self._file = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_stream(self._file, schema, options=_COMPRESSED)
        # An empty first batch carries the schema, so that every later position is the position of a batch.
        self._writer.write_batch(pa.RecordBatch.from_pylist([], schema))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        self._file.close()
        self._path.unlink(missing_ok=True)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows with at least the columns of the schema; rows without a time are left out."""
        rows = batch.select(self._schema.names).cast(self._schema)
        if rows.column("publish_time").null_count:
            rows = rows.filter(pc.is_valid(rows.column("publish_time")))
        self._held.append(rows)
        if sum(held.num_rows for held in self._held) >= _HELD_ROWS:
            self._flush()

    def tables(self) -> Iterator[pa.Table]:
        """Yield all rows by time, in tables of at most :data:`TABLE_ROWS` whose time spans hardly overlap."""
        held: list[pa.RecordBatch] = []
        count = 0
        for batch in self._in_order():
            rest = batch
            while count + rest.num_rows >= TABLE_ROWS:
                taken = TABLE_ROWS - count
                yield pa.Table.from_batches([*held, rest.slice(0, taken)])
                rest = rest.slice(taken)
                held, count = [], 0
            if rest.num_rows:
                held.append(rest)
                count += rest.num_rows
        if held:
            yield pa.Table.from_batches(held)

    def _flush(self) -> None:
        """Write the rows in memory, one batch for each bucket."""
        held, self._held = self._held, []
        for rows in pa.Table.from_batches(held, self._schema).combine_chunks().to_batches():
            self._check_room()
            times = _microseconds(rows)
            buckets = np.clip((times - self._first) // self._width, 0, _BUCKETS - 1)
            order = np.argsort(buckets, kind="stable")
            ordered = rows.take(pa.array(order))
            counts = np.bincount(buckets, minlength=_BUCKETS)
            self._rows += counts
            starts = np.cumsum(counts) - counts
            for bucket in np.flatnonzero(counts).tolist():
                start, count = int(starts[bucket]), int(counts[bucket])
                own = times[order[start : start + count]]
                low, high = self._ends[bucket]
                self._ends[bucket] = min(low, int(own.min())), max(high, int(own.max()))
                self._places[bucket].append(self._file.tell())
                self._writer.write_batch(ordered.slice(start, count))

    def _in_order(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows bucket by bucket; a bucket with too many rows is divided again."""
        self._flush()
        self._file.flush()
        for bucket in np.flatnonzero(self._rows).tolist():
            first, last = self._ends[bucket]
            if self._rows[bucket] <= TABLE_ROWS or first == last:
                yield from self._read(bucket)
                continue
            path = self._path.with_name(f"{self._path.name}.{bucket}")
            with IdSpool(path, self._schema, first=first, last=last, check_room=self._check_room) as inner:
                for batch in self._read(bucket):
                    inner.add(batch)
                yield from inner._in_order()

    def _read(self, bucket: int) -> Iterator[pa.RecordBatch]:
        with pa.OSFile(str(self._path)) as file:
            for place in self._places[bucket]:
                file.seek(place)
                yield pa.ipc.read_record_batch(pa.ipc.read_message(file), self._schema)


def _microseconds(rows: pa.RecordBatch) -> Any:
    return rows.column("publish_time").cast(pa.int64()).to_numpy()
