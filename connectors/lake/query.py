"""Runs translated SQL over files of one snapshot of the archive, in DuckDB that can reach nothing else."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import duckdb
import pyarrow as pa

from connectors.lake.archive import DataFile
from model.errors import QueryError, QueryStoppedError, QueryTooLargeError
from model.table import ARCHIVE_COLUMNS, PARTITION_DATE, PARTITION_TIME, ColumnType, Partitioning

ARCHIVE_VIEW: Final = "refeed_archive"
_BATCH_ROWS: Final = 8192
_STOP_CHECK_SECONDS: Final = 0.2

_DUCKDB_TYPES: Final[Mapping[ColumnType, str]] = {
    "BYTES": "BLOB",
    "STRING": "VARCHAR",
    "TIMESTAMP": "TIMESTAMPTZ",
    "ATTRIBUTES": "STRUCT(key VARCHAR, value VARCHAR)[]",
}


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """What a query may use: memory ("2GB"; beyond it spills to ``temp_folder``), threads and seconds."""

    memory: str
    temp_folder: Path
    threads: int = 2
    seconds: float = 3600.0
    temp_bytes: int = 50 * 1000 * 1000 * 1000


@dataclass(frozen=True, slots=True)
class ArchiveSnapshot:
    """The files a query may read, and how they are partitioned."""

    files: Sequence[DataFile]
    partitioning: Partitioning

    @property
    def size_bytes(self) -> int:
        """What reading every column of every file comes to."""
        return sum(file.size_bytes for file in self.files)


@contextmanager
def open_query(
    snapshot: ArchiveSnapshot,
    sql: str,
    parameters: Mapping[str, Any],
    limits: QueryLimits,
    *,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[Iterator[pa.RecordBatch]]:
    """Run ``sql`` over a view ``refeed_archive`` of the snapshot and give its rows as they come, in batches.

    The connection reads the snapshot's files and spills to the temp folder; other files, the network,
    extensions and its own settings are locked. ``should_stop`` is asked five times a second.

    Raises:
        QueryTooLargeError: the query needs more memory, disk or time than it may use.
        QueryStoppedError: ``should_stop`` said so.
        QueryError: the query fails for a reason of its own, such as a division by zero.
    """
    with (
        _our_errors(limits),
        _locked_connection(snapshot, limits) as connection,
        _Watch(connection, limits.seconds, should_stop),
    ):
        reader = connection.sql(sql, params=dict(parameters)).to_arrow_reader(_BATCH_ROWS)
        yield _batches(reader)


def run_query(snapshot: ArchiveSnapshot, sql: str, parameters: Mapping[str, Any], limits: QueryLimits) -> pa.Table:
    """Return the whole result of ``sql``; errors and limits are those of :func:`open_query`.

    The limits hold for DuckDB, not for the table that is returned: ask for few rows.
    """
    with (
        _our_errors(limits),
        _locked_connection(snapshot, limits) as connection,
        _Watch(connection, limits.seconds, lambda: False),
    ):
        return connection.sql(sql, params=dict(parameters)).to_arrow_table()


def _batches(reader: Any) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        if batch.num_rows:
            yield batch


class _Watch:
    """Interrupts a connection that takes too long or is to stop."""

    def __init__(self, connection: Any, seconds: float, should_stop: Callable[[], bool]) -> None:
        self._connection = connection
        self._deadline = time.monotonic() + seconds
        self._seconds = seconds
        self._should_stop = should_stop
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="query-watch", daemon=True)
        self._reason: QueryError | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._reason is not None and isinstance(error, (duckdb.Error, pa.ArrowException)):
            raise self._reason from error

    def _run(self) -> None:
        while not self._ended.wait(_STOP_CHECK_SECONDS):
            if self._should_stop():
                self._reason = QueryStoppedError()
            elif time.monotonic() > self._deadline:
                self._reason = QueryTooLargeError(f"The query took longer than {self._seconds:.0f} s.")
            if self._reason is not None:
                self._connection.interrupt()


@contextmanager
def _locked_connection(snapshot: ArchiveSnapshot, limits: QueryLimits) -> Iterator[Any]:
    paths = [file.path for file in snapshot.files]
    limits.temp_folder.mkdir(parents=True, exist_ok=True)
    connection = duckdb.connect(":memory:")
    try:
        for setting, value in (
            ("TimeZone", "'UTC'"),
            ("threads", str(limits.threads)),
            ("memory_limit", _quote(_size(limits.memory))),
            ("temp_directory", _quote(str(limits.temp_folder))),
            ("max_temp_directory_size", _quote(f"{limits.temp_bytes} bytes")),
            # Payloads of 10 MB come in batches of thousands: 32-bit offsets would overflow.
            ("arrow_large_buffer_size", "true"),
            ("autoinstall_known_extensions", "false"),
            ("autoload_known_extensions", "false"),
            ("allow_community_extensions", "false"),
            # A query can't name a variable of the process that runs it.
            ("python_enable_replacements", "false"),
            ("allowed_paths", f"[{', '.join(map(_quote, paths))}]"),
            ("allowed_directories", f"[{_quote(str(limits.temp_folder) + os.sep)}]"),
            ("enable_external_access", "false"),
        ):
            connection.execute(f"SET {setting} = {value}")
        connection.execute(f"CREATE VIEW {ARCHIVE_VIEW} AS {_archive_select(paths, snapshot.partitioning)}")
        connection.execute("SET lock_configuration = true")
        yield connection
    finally:
        connection.close()


def _archive_select(paths: Sequence[str], partitioning: Partitioning) -> str:
    columns = ", ".join(column.name for column in ARCHIVE_COLUMNS)
    if paths:
        source = f"read_parquet([{', '.join(map(_quote, paths))}], hive_partitioning = false)"
    else:
        nulls = ", ".join(f"CAST(NULL AS {_DUCKDB_TYPES[c.type]}) AS {c.name}" for c in ARCHIVE_COLUMNS)
        source = f"(SELECT {nulls} WHERE false)"
    return (
        f"SELECT {columns}, date_trunc('{partitioning}', ingest_time) AS {PARTITION_TIME}, "  # noqa: S608
        f"CAST(ingest_time AS DATE) AS {PARTITION_DATE} FROM {source}"
    )


@contextmanager
def _our_errors(limits: QueryLimits) -> Iterator[None]:
    try:
        yield
    except duckdb.OutOfMemoryException as exc:
        raise QueryTooLargeError(
            f"The query needs more than {limits.memory} of memory (REFEED_QUERY_MEMORY): {exc}"
        ) from exc
    except (duckdb.Error, pa.ArrowException) as exc:
        if "Out of Memory Error" in str(exc):
            raise QueryTooLargeError(
                f"The query needs more than {limits.memory} of memory (REFEED_QUERY_MEMORY): {exc}"
            ) from exc
        raise QueryError(f"The query failed while it ran: {exc}") from exc


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _size(text: str) -> str:
    """Return a size such as 512m in the form that DuckDB reads."""
    return text if text[-1] in "bB" else f"{text}B"
