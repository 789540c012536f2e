"""The data files of a table's snapshot, and which of them may hold rows of a span of time, by their statistics."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from connectors.lake.files import PARTITION_COLUMNS
from model.errors import WarehouseError
from model.table import Partitioning
from model.window import Window

# How far the clocks of producers' Pub/Sub and of tasks are trusted to agree.
_CLOCKS_APART: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file of a snapshot; ``partition`` is the start of its partition, aware UTC."""

    path: str
    size_bytes: int
    rows: int
    partition: datetime


@dataclass(frozen=True, slots=True)
class FileStatistics:
    """A file of the archive; ``topic`` is None when it holds several, or when the log does not have it."""

    file: DataFile
    topic: str | None
    first_ingest_time: datetime | None
    last_ingest_time: datetime | None
    last_publish_time: datetime | None


def partition_step(partitioning: Partitioning) -> timedelta:
    """Return how long a partition is."""
    return timedelta(days=1) if partitioning == "day" else timedelta(hours=1)


def partition_start(value: Any) -> datetime:
    """Return the start of the partition of which ``value`` is the cell."""
    if isinstance(value, datetime):
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
    return datetime(value.year, value.month, value.day, tzinfo=UTC)


def touches(start: datetime, partitioning: Partitioning, window: Window) -> bool:
    """Whether the partition that begins at ``start`` has moments of ``window``."""
    return start < window.end and window.start < start + partition_step(partitioning)


def list_files(table: DeltaTable, uri: str, partitioning: Partitioning) -> list[DataFile]:
    """Return every file of the snapshot; the table is at ``uri``.

    Raises:
        WarehouseError: the table is partitioned by something else.
    """
    actions, column = _partitioned_actions(table, partitioning)
    return [
        # The log holds paths percent-encoded, as the Delta protocol says.
        DataFile(f"{uri}/{unquote(path)}", size, rows, partition_start(partition))
        for path, size, rows, partition in zip(
            actions.column("path").to_pylist(),
            actions.column("size_bytes").to_pylist(),
            actions.column("num_records").to_pylist(),
            actions.column(column).to_pylist(),
            strict=True,
        )
    ]


def list_statistics(table: DeltaTable, uri: str, partitioning: Partitioning) -> list[FileStatistics]:
    """Return every file of a snapshot of the archive; the table is at ``uri``."""
    actions, files = _actions_of(table), list_files(table, uri, partitioning)
    nothing = [None] * len(files)

    def cells(column: str) -> list[Any]:
        return actions.column(column).to_pylist() if column in actions.column_names else nothing

    ends = (cells("min.topic"), cells("max.topic"))
    times = [cells(f"{end}_time") for end in ("min.ingest", "max.ingest", "max.publish")]
    return [
        FileStatistics(
            file, low if low == high else None, *(moment and partition_start(moment) for moment in moments)
        )
        for file, low, high, *moments in zip(files, *ends, *times, strict=True)
    ]


def files_between(table: DeltaTable, column: str, window: Window, partitioning: Partitioning) -> list[str]:
    """Return the files that may have rows with a value of ``column`` in ``window``, by their least values.

    ``column`` is a time at or before a row's ingestion.

    Raises:
        WarehouseError: the table is partitioned by something else.
    """
    actions, partition = _partitioned_actions(table, partitioning)
    ends = [name for name in (f"min.{column}", f"max.{column}") if name in actions.column_names]
    found = []
    for row in actions.select(["path", partition, *ends]).to_pylist():
        least, most = row.get(f"min.{column}"), row.get(f"max.{column}")
        last = most or partition_start(row[partition]) + partition_step(partitioning) + _CLOCKS_APART
        if (least is None or least < window.end) and last >= window.start:
            found.append((least or window.start, unquote(row["path"])))
    return [path for _, path in sorted(found)]


def files_since(table: DeltaTable, starts: Mapping[str, datetime]) -> list[str]:
    """Return the paths of files that may have rows with a value of one column at or after its start."""
    actions = _actions_of(table)
    ends = {f"max.{column}": start for column, start in starts.items()}
    present = [name for name in ends if name in actions.column_names]
    # A column without statistics says nothing against a file.
    found = [
        row["path"]
        for row in actions.select(["path", *present]).to_pylist()
        if any(row.get(name) is None or row[name] >= start for name, start in ends.items())
    ]
    return sorted(map(unquote, found))


def _actions_of(table: DeltaTable) -> pa.Table:
    return pa.table(table.get_add_actions(flatten=True))


def _partitioned_actions(table: DeltaTable, partitioning: Partitioning) -> tuple[pa.Table, str]:
    """Return what the log says of the files, and the column that has the partitions."""
    actions, name = _actions_of(table), PARTITION_COLUMNS[partitioning].name
    if f"partition.{name}" not in actions.column_names:
        raise WarehouseError(
            f"{table.table_uri} is not partitioned by {name}. If this is the archive, correct "
            "REFEED_ARCHIVE_PARTITIONING."
        )
    return actions, f"partition.{name}"
