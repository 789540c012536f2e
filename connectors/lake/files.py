"""Parquet files of the archive: written before they are committed, described for the commit."""

import itertools
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from connectors.lake.errors import our_errors
from connectors.lake.objects import is_bucket, local_path, open_objects
from connectors.lake.reading import OpenFiles, open_files
from model.format import Format
from model.table import ARCHIVE_COLUMNS, ColumnType, Partitioning
from model.volume import HourCounts, add_counts, hour_key

# Of a part that waits for its commit, as a task describes it to the driver.
LAKE_PART_FORMAT: Final = Format(1)

_ARROW_TYPES: Final[Mapping[ColumnType, pa.DataType]] = {
    "BYTES": pa.binary(),
    "STRING": pa.string(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "ATTRIBUTES": pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])),
}

FILE_SCHEMA: Final = pa.schema([(column.name, _ARROW_TYPES[column.type]) for column in ARCHIVE_COLUMNS])

PARTITION_COLUMNS: Final[Mapping[Partitioning, pa.Field]] = {
    "day": pa.field("ingest_date", pa.date32()),
    "hour": pa.field("ingest_hour", pa.timestamp("us", tz="UTC")),
}

# Under this key a file of the archive has the JSON of the volumes of its rows (HourCounts), beside its schema.
VOLUMES_KEY: Final = b"refeed.volumes"

# Payloads and ids do not repeat: a dictionary only costs. Statistics are for columns that queries filter on.
_DICTIONARY_COLUMNS: Final = ["topic", "subscription", "ordering_key", "attributes.list.element.key"]
_STATISTICS_COLUMNS: Final = ["topic", "publish_time", "ingest_time", "message_id"]
_ROW_GROUP_MESSAGES: Final = 65_536
_ROW_GROUP_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A Parquet file in the table's folder that no commit names yet; small, and JSON-ready."""

    path: str
    size_bytes: int
    rows: int
    partition: str | None
    modified_at_ms: int
    stats: str

    # Parquet takes every message and every row.
    dead_letters: ClassVar[int] = 0
    refused: ClassVar[tuple[tuple[int, str], ...]] = ()

    def as_json(self) -> dict[str, Any]:
        """Return its fields."""
        return asdict(self)


def partition_value(moment: datetime, partitioning: Partitioning) -> str:
    """Return the partition of ``moment`` as the Delta log writes it.

    Example:
        >>> partition_value(datetime(2024, 3, 1, 22, 5, tzinfo=UTC), "hour")
        '2024-03-01 22:00:00'
    """
    utc = moment.astimezone(UTC)
    return utc.strftime("%Y-%m-%d" if partitioning == "day" else "%Y-%m-%d %H:00:00")


def is_partition(value: str, partitioning: Partitioning) -> bool:
    """Whether ``value``, of :func:`partition_value`, is a partition of a table with this partitioning.

    Example:
        >>> is_partition("2024-03-01", "day"), is_partition("2024-03-01 22:00:00", "day")
        (True, False)
    """
    return (":" in value) == (partitioning == "hour")


@dataclass(frozen=True, slots=True)
class LakeArchiveWriter:
    """Writes files of the archive into the folder of its table; picklable, so that tasks can carry it."""

    table_uri: str
    partitioning: Partitioning

    dictionary_columns: ClassVar[bool | list[str]] = _DICTIONARY_COLUMNS
    statistics_columns: ClassVar[bool | list[str]] = _STATISTICS_COLUMNS
    bounded_columns: ClassVar[tuple[str, ...]] = ("topic", "publish_time", "ingest_time")
    # Smaller parts have neither dictionaries nor zstd, which cost more than half of their time and save no bytes.
    small_bytes: ClassVar[int] = 0
    # Whether a file says how much of which topic and hour it holds.
    has_volumes: ClassVar[bool] = True
    # A query for one topic skips the row groups of others.
    is_by_topic: ClassVar[bool] = True
    # In which the rows of a file are read, where it is not the file's own.
    schema: ClassVar[pa.Schema | None] = FILE_SCHEMA

    def as_json(self) -> dict[str, Any]:
        """Return its fields."""
        return asdict(self)

    def write(self, parts: Iterable[tuple[str, str, pa.RecordBatch]]) -> WrittenFile:
        """Write one durable file, by topic and subscription, and return what a commit needs of it.

        A part is (topic, subscription, rows with the message columns of the archive, other columns are left
        out). ``ingest_time`` is the time at which all are here, the same for every row. Nobody sees the file
        before it is committed; a file that never is goes with
        :meth:`~connectors.lake.archive.LakeArchive.vacuum`.

        Raises:
            StorageFullError: there is no room; nothing is left behind.
            WarehouseError: the file can't be written.
        """
        ordered = sorted(parts, key=lambda part: part[:2])
        now = datetime.now(UTC)
        batches = [_archive_batch(topic, subscription, rows, now) for topic, subscription, rows in ordered]
        return self._write(pa.Table.from_batches(batches, schema=FILE_SCHEMA), now)

    @contextmanager
    def reading(self, names: Sequence[str]) -> Iterator[OpenFiles]:
        """Give what reads files of the table for :meth:`read_schema` and :meth:`read_batches`, in this order."""
        with open_files([self._path(name) for name in names]) as files:
            yield files

    def read_schema(self, files: OpenFiles, name: str) -> pa.Schema:
        """Return the schema in which :meth:`read_batches` yields the rows of a file of the table."""
        with our_errors(f"reading {name}"):
            return self.schema or files.schema(self._path(name))

    def read_batches(self, files: OpenFiles, names: Iterable[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of files of the table, the files in the order given, with little of them in memory.

        Raises:
            WarehouseError: a file can't be read.
        """
        for name in names:
            with our_errors(f"reading {name}"):
                for batch in files.batches(self._path(name)):
                    yield batch if self.schema is None else batch.cast(self.schema)

    def read_columns(self, names: Sequence[str], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield ``columns`` of the rows of files of the table; one that a file does not have yet is null.

        Raises:
            WarehouseError: a file can't be read.
        """
        with self.reading(names) as files:
            for name in names:
                with our_errors(f"reading {name}"):
                    for batch in files.batches(self._path(name), columns, most_rows=_ROW_GROUP_MESSAGES):
                        missing = pa.nulls(batch.num_rows)
                        present = batch.schema.names
                        yield pa.record_batch(
                            {column: batch.column(column) if column in present else missing for column in columns}
                        )

    def _path(self, name: str) -> str:
        root = self.table_uri if is_bucket(self.table_uri) else local_path(self.table_uri)
        return f"{root}/{name}"

    def write_batches(
        self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, partition: datetime
    ) -> WrittenFile | None:
        """Write rows of the table again as one durable file of their partition; None where there are none.

        Raises:
            StorageFullError: there is no room; nothing is left behind.
            WarehouseError: the file can't be written.
        """
        groups = row_groups(batches, None, _ROW_GROUP_MESSAGES)
        first = next(groups, None)
        return None if first is None else self._write_groups(itertools.chain([first], groups), schema, partition)

    def write_without(self, file: WrittenFile, is_unwanted: pa.BooleanArray) -> WrittenFile | None:
        """Write ``file`` again without the rows where ``is_unwanted`` holds; None when none are left."""
        with self.reading([file.path]) as files:
            schema = self.read_schema(files, file.path)
            table = pa.Table.from_batches(self.read_batches(files, [file.path]), schema)
        kept = table.filter(pc.invert(is_unwanted))
        if kept.num_rows == 0:
            return None
        return self._write(kept, kept.column("ingest_time")[0].as_py())

    def delete(self, file: WrittenFile) -> None:
        """Delete a file that will not be committed; one that is gone already is fine."""
        with our_errors(f"deleting {file.path}"):
            open_objects(self.table_uri).delete(file.path)

    def _write(self, table: pa.Table, ingest_time: datetime) -> WrittenFile:
        is_small = table.nbytes < self.small_bytes
        return self._write_groups([table], table.schema, ingest_time, is_small=is_small)

    def _write_groups(
        self, tables: Iterable[pa.Table], schema: pa.Schema, moment: datetime, *, is_small: bool = False
    ) -> WrittenFile:
        """Write a file of the partition of ``moment``; a small one with what costs least for few rows."""
        name = f"{moment:%Y%m%dT%H%M%S}-{uuid.uuid4().hex}.parquet"
        statistics = _Statistics(self.bounded_columns)
        volumes: dict[str, dict[str, tuple[int, int]]] = {}
        with (
            our_errors(f"writing {name}"),
            open_objects(self.table_uri).writing(name) as made,
            pq.ParquetWriter(
                made.stream,
                schema,
                compression="snappy" if is_small else "zstd",
                compression_level=None if is_small else 1,
                use_dictionary=False if is_small else self.dictionary_columns,
                write_statistics=self.statistics_columns,
            ) as writer,
        ):
            for table in tables:
                writer.write_table(table, _ROW_GROUP_MESSAGES)
                statistics.add(table)
                if self.has_volumes:
                    add_counts(volumes, count_volumes(table))
            if self.has_volumes:
                writer.add_key_value_metadata({VOLUMES_KEY: json.dumps(volumes)})
        return WrittenFile(
            path=name,
            size_bytes=made.size_bytes,
            rows=statistics.rows,
            partition=partition_value(moment, self.partitioning),
            modified_at_ms=made.modified_at_ms,
            stats=statistics.as_json(),
        )


def count_volumes(rows: pa.Table) -> HourCounts:
    """Return how many messages, with how many payload bytes, of each topic came in in each hour.

    ``rows`` have the columns ``topic``, ``ingest_time`` and ``data``.
    """
    times = rows.column("ingest_time")
    ends = pc.min_max(times).as_py()
    if ends["min"] is None:
        return {}
    first, last = hour_key(ends["min"]), hour_key(ends["max"])
    columns = {"topic": rows.column("topic"), "bytes": pc.binary_length(rows.column("data"))}
    if first == last:
        return {first: _count_topics(pa.table(columns))}
    hours = pc.strftime(times, format="%Y-%m-%dT%H")
    found: dict[str, Mapping[str, tuple[int, int]]] = {}
    for hour in pc.unique(hours).to_pylist():
        found[hour] = _count_topics(pa.table(columns).filter(pc.equal(hours, hour)))
    return found


def _count_topics(rows: pa.Table) -> Mapping[str, tuple[int, int]]:
    # A part has a chunk for each topic: 300 of them take 6 ms, and in one piece half of one.
    sums = (
        rows.combine_chunks().group_by("topic", use_threads=False).aggregate([("bytes", "sum"), ([], "count_all")])
    )
    columns = (sums.column(name).to_pylist() for name in ("topic", "count_all", "bytes_sum"))
    return {topic: (messages, size or 0) for topic, messages, size in zip(*columns, strict=True)}


def _archive_batch(topic: str, subscription: str, rows: pa.RecordBatch, ingest_time: datetime) -> pa.RecordBatch:
    constants = {"topic": topic, "subscription": subscription, "ingest_time": ingest_time}
    columns = [
        pa.repeat(pa.scalar(constants[field.name], field.type), rows.num_rows)
        if field.name in constants
        else rows.column(field.name)
        for field in FILE_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=FILE_SCHEMA)


def row_groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema, most_rows: int) -> Iterator[pa.Table]:
    """Yield tables that each are one row group: ``most_rows`` or 64 MB, whichever comes first; none is empty."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= most_rows or (rows and size >= _ROW_GROUP_BYTES):
            yield pa.Table.from_batches(held, schema)
            held, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(held, schema)


class _Statistics:
    """The statistics of the Delta protocol for one file: queries leave files out by them."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.rows = 0
        self._ends: dict[str, tuple[Any, Any]] = {}
        self._columns = columns

    def add(self, table: pa.Table) -> None:
        """Count rows of the file."""
        self.rows += table.num_rows
        for name in self._columns:
            if name not in table.column_names:
                continue
            ends = pc.min_max(table.column(name)).as_py()
            if ends["min"] is not None:
                low, high = self._ends.get(name, (ends["min"], ends["max"]))
                self._ends[name] = (min(low, ends["min"]), max(high, ends["max"]))

    def as_json(self) -> str:
        """Return them as the log has them."""
        low = {name: _bound(ends[0]) for name, ends in self._ends.items()}
        high = {name: _bound(ends[1]) for name, ends in self._ends.items()}
        return json.dumps({"numRecords": self.rows, "minValues": low, "maxValues": high, "nullCount": {}})


def _bound(value: Any) -> str:
    return value if isinstance(value, str) else value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
