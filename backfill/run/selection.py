"""The immutable result of a backfill's query: made once, read by slices in parallel."""

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backfill.plan.options import UNBOUNDED, SelectionBounds
from jobs.files import Files, open_files
from model import failpoint
from model.disk import check_room
from model.errors import (
    CheckpointCorruptError,
    QueryError,
    QueryStoppedError,
    SelectionTooLargeError,
    StorageFullError,
)
from model.moment import render_time

SELECTION_SCHEMA: Final = pa.schema(
    [
        ("refeed_row", pa.int64()),
        ("data", pa.binary()),
        ("attributes", pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))),
        ("message_id", pa.string()),
        ("publish_time", pa.timestamp("us", tz="UTC")),
        ("topic", pa.string()),
        ("ordering_key", pa.string()),
    ]
)

# A slice is one task's work and one row group: half a second of publishing, and little enough memory.
_SLICE_ROWS: Final = 25_000
_SLICE_BYTES: Final = 32 * 1024 * 1024
_FILE_SLICES: Final = 40
_MANIFEST: Final = "manifest.json"


@dataclass(frozen=True, slots=True)
class SelectionSlice:
    """Rows [first_row, first_row + rows) of a selection: one row group of one file.

    ``continues`` is whether it begins with the ordering key that the slice before it ends with.
    """

    number: int
    file: str
    row_group: int
    first_row: int
    rows: int
    continues: bool = False


@dataclass(frozen=True, slots=True)
class Selection:
    """What a query selected: how much, from where, and the slices it lies in."""

    rows: int
    bytes: int
    rows_by_topic: dict[str, int]
    first_publish_time: str | None
    last_publish_time: str | None
    slices: tuple[SelectionSlice, ...]


def write_selection(
    batches: Iterable[pa.RecordBatch],
    folder: Files | Path,
    *,
    by_key: bool = False,
    max_rows: int | None = None,
    bounds: SelectionBounds = UNBOUNDED,
) -> Selection:
    """Write a query's rows to ``folder``, all or nothing, numbered from 0 in their order.

    The folder appears only when every row is in it. With ``by_key`` the rows come sorted by
    ordering key, and a slice ends where a key does, unless the key is larger than a slice.

    Raises:
        QueryError: a column has a type that no message has.
        SelectionTooLargeError: there are more than ``max_rows``, or more than ``bounds`` allow.
        StorageFullError: the disk would have less room left than ``bounds`` want.
        QueryStoppedError: another attempt has made the selection meanwhile; that one counts.
    """
    files = open_files(folder)
    try:
        with files.making() as made:
            numbered = _numbered(_bounded(batches, made.path, bounds), max_rows)
            parts = _slices_by_key(numbered) if by_key else _slices(numbered)
            try:
                selection = _write_slices(parts, made, by_key=by_key)
            except (SelectionTooLargeError, StorageFullError):
                # Another attempt would end in the same way: what is written only fills the disk.
                if made.path is not None:
                    shutil.rmtree(made.path, ignore_errors=True)
                raise
            failpoint.hit("backfill.selection.written")
            made.complete(_MANIFEST, json.dumps(asdict(selection)).encode())
    except FileExistsError as exc:
        raise QueryStoppedError(f"Another attempt of the job has already written the selection {files}.") from exc
    return selection


def _write_slices(parts: Iterator[pa.Table], made: Files, *, by_key: bool) -> Selection:
    """Write the slices, 40 a file."""
    slices: list[SelectionSlice] = []
    totals = _Totals()
    last_key = ""
    with ExitStack() as files:
        writer: pq.ParquetWriter | None = None
        for rows in parts:
            if writer is None or len(slices) % _FILE_SLICES == 0:
                files.close()
                name = made.own_name(f"{len(slices) // _FILE_SLICES:05d}.parquet")
                writer = files.enter_context(_open_writer(files.enter_context(made.writer(name))))
            writer.write_table(rows, row_group_size=rows.num_rows)
            first_key, ending_key = _outer_keys(rows) if by_key else ("", "")
            continues = bool(first_key) and first_key == last_key
            place = len(slices) % _FILE_SLICES
            slices.append(SelectionSlice(len(slices), name, place, totals.rows, rows.num_rows, continues))
            totals.add(rows)
            last_key = ending_key
    return totals.selection(tuple(slices))


def _open_writer(where: Any) -> pq.ParquetWriter:
    return pq.ParquetWriter(where, SELECTION_SCHEMA, compression="lz4", use_dictionary=["topic"])


def read_selection(folder: Files | Path) -> Selection | None:
    """Return the selection in ``folder``, or None when it has not been made.

    Raises:
        CheckpointCorruptError: its manifest can't be read.
    """
    files = open_files(folder)
    if not files.is_made(_MANIFEST):
        return None
    try:
        found = json.loads(files.read(_MANIFEST))
        slices = tuple(SelectionSlice(**fields) for fields in found.pop("slices"))
        return Selection(slices=slices, **found)
    except (OSError, ValueError, TypeError, KeyError) as exc:
        raise CheckpointCorruptError(f"The selection {files} can't be read: {exc}", path=str(files)) from exc


def read_slice(folder: Files | Path, part: SelectionSlice, offset: int = 0) -> pa.RecordBatch:
    """Return the slice's rows from ``offset`` on (SELECTION_SCHEMA).

    Raises:
        CheckpointCorruptError: the file is gone, damaged, or holds another number of rows.
    """
    files = open_files(folder)
    path = f"{files}/{part.file}"
    try:
        # Buffered ahead: one range a row group, where each range is a request.
        with pq.ParquetFile(files.source(part.file), pre_buffer=True) as file:
            # Tasks have a core each.
            table = file.read_row_group(part.row_group, use_threads=False)
    except (OSError, pa.ArrowException) as exc:
        raise CheckpointCorruptError(f"The selection's file {path} can't be read: {exc}", path=path) from exc
    if table.num_rows != part.rows:
        raise CheckpointCorruptError(
            f"The selection's file {path} has {table.num_rows} rows, but {part.rows} were written.",
            path=path,
        )
    (rows,) = table.combine_chunks().to_batches()
    return rows.slice(offset)


class _Totals:
    """The figures of a selection, added up while it is written."""

    def __init__(self) -> None:
        self.rows = 0
        self.bytes = 0
        self._topics: Counter[str] = Counter()
        self._first: datetime | None = None
        self._last: datetime | None = None

    def add(self, rows: pa.Table) -> None:
        self.rows += rows.num_rows
        self.bytes += int(_data_lengths(rows).sum())
        for count in pc.value_counts(rows.column("topic").combine_chunks()).to_pylist():
            if count["values"] is not None:
                self._topics[count["values"]] += count["counts"]
        ends = pc.min_max(rows.column("publish_time")).as_py()
        if ends["min"] is not None:
            self._first = ends["min"] if self._first is None else min(self._first, ends["min"])
            self._last = ends["max"] if self._last is None else max(self._last, ends["max"])

    def selection(self, slices: tuple[SelectionSlice, ...]) -> Selection:
        return Selection(
            rows=self.rows,
            bytes=self.bytes,
            rows_by_topic=dict(self._topics.most_common()),
            first_publish_time=render_time(self._first),
            last_publish_time=render_time(self._last),
            slices=slices,
        )


def _bounded(
    batches: Iterable[pa.RecordBatch], disk: Path | None, bounds: SelectionBounds
) -> Iterator[pa.RecordBatch]:
    """Hand the batches on for as long as they, and the disk that they go to, keep to ``bounds``."""
    rows = size = 0
    for batch in batches:
        rows, size = rows + batch.num_rows, size + batch.get_total_buffer_size()
        bounds.check(rows, size)
        if disk is not None:
            check_room(disk, bounds.min_free_bytes)
        yield batch


def _numbered(batches: Iterable[pa.RecordBatch], max_rows: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the batches in the selection's schema, their rows numbered; columns it does not know are dropped."""
    first = 0
    for batch in batches:
        # SQL does not tell Data from data.
        named = batch.rename_columns([name.lower() for name in batch.schema.names])
        for rows in _small_enough(named):
            numbers = pa.array(np.arange(first, first + rows.num_rows, dtype=np.int64))
            columns = [
                numbers,
                *(_column(rows, field) for field in SELECTION_SCHEMA if field.name != "refeed_row"),
            ]
            first += rows.num_rows
            if max_rows is not None and first > max_rows:
                raise SelectionTooLargeError(
                    f"The query selects more than {max_rows} rows, the limit in max_rows.", max_rows=max_rows
                )
            yield pa.RecordBatch.from_arrays(columns, schema=SELECTION_SCHEMA)


def _small_enough(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield ``batch`` in pieces of a slice's size at most: 8,000 payloads can be 10 MB each."""
    data = batch.column(batch.schema.get_field_index("data"))
    ends = np.cumsum(pc.binary_length(data).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64))
    start, before = 0, 0
    while start < batch.num_rows:
        fitting = int(np.searchsorted(ends, before + _SLICE_BYTES, side="right"))
        end = max(start + 1, min(fitting, start + _SLICE_ROWS))
        yield batch.slice(start, end - start)
        start, before = end, int(ends[end - 1])


def _slices(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        batch_size = batch.nbytes
        if held and (rows + batch.num_rows > _SLICE_ROWS or size + batch_size > _SLICE_BYTES):
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch_size
    if held:
        yield pa.Table.from_batches(held)


def _slices_by_key(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Cut as ``_slices`` does, but leave a key that has begun to the next slice, where that can hold it."""
    pending: pa.Table | None = None
    for rows in _slices(batches):
        following = rows
        if pending is not None:
            keys = _keys(pending)
            last = int(pc.index(pc.equal(keys, keys[-1]), True).as_py()) if keys[-1].as_py() else 0
            yield pending.slice(0, last or pending.num_rows)
            if last:
                following = pa.concat_tables([pending.slice(last), rows])
        pending = following
    if pending is not None:
        yield pending


def _keys(rows: pa.Table) -> pa.ChunkedArray:
    return pc.fill_null(rows.column("ordering_key"), "")


def _outer_keys(rows: pa.Table) -> tuple[str, str]:
    keys = _keys(rows)
    return keys[0].as_py(), keys[-1].as_py()


def _column(rows: pa.RecordBatch, field: pa.Field) -> pa.Array:
    index = rows.schema.get_field_index(field.name)
    if index < 0:
        return pa.nulls(rows.num_rows, field.type)
    try:
        return rows.column(index).cast(field.type)
    except pa.ArrowException as exc:
        raise QueryError(
            f"The query's column {field.name} has the type {rows.schema.field(index).type}, but "
            f"it must be {field.type}."
        ) from exc


def _data_lengths(rows: pa.Table) -> Any:
    lengths = pc.binary_length(rows.column("data")).fill_null(0)
    return lengths.to_numpy().astype(np.int64)
