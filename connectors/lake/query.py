"""Runs translated SQL over files of one snapshot of the archive, in DuckDB that can reach nothing else."""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

import duckdb
import pyarrow as pa

from connectors.lake.archive import LakeArchive
from connectors.lake.data_files import DataFile
from connectors.lake.engine import EngineLimits, open_engine, quote_text
from connectors.lake.object_reads import ObjectReads, open_reads
from connectors.lake.query_tables import LakeTables, TableSnapshot, render_view
from connectors.lake.udfs import register_functions
from model.disk import check_room
from model.errors import QueryError, QueryStoppedError, QueryTooLargeError
from model.table import ARCHIVE_COLUMNS, PARTITION_DATE, PARTITION_TIME, ColumnType, Partitioning, TableRead
from model.window import Window

ARCHIVE_VIEW: Final = "refeed_archive"
ROWS_VIEW: Final = "refeed_rows"
_BATCH_ROWS: Final = 8192
_STOP_CHECK_SECONDS: Final = 0.2
_POWERS: Final = {"k": 10**3, "m": 10**6, "g": 10**9}
_SIZE: Final = re.compile(r"(\d+)([kmgKMG])[bB]?")

_DUCKDB_TYPES: Final[Mapping[ColumnType, str]] = {
    "BYTES": "BLOB",
    "STRING": "VARCHAR",
    "TIMESTAMP": "TIMESTAMPTZ",
    "ATTRIBUTES": "STRUCT(key VARCHAR, value VARCHAR)[]",
}


@dataclass(frozen=True, slots=True)
class QueryLimits(EngineLimits):
    """What a query may use, of time and disk too."""

    seconds: float = 3600.0
    temp_bytes: int = 50 * 1000 * 1000 * 1000
    # What a process of its own may take beside: the interpreter, its libraries, a batch on its way.
    overhead_bytes: int = 1000 * 1000 * 1000
    # What stays free on the disk of ``temp_folder``.
    min_free_bytes: int = 0

    @property
    def memory_bytes(self) -> int:
        """``memory`` as a number; the letters are powers of 1,000, as the lake's engine reads them."""
        found = _SIZE.fullmatch(self.memory)
        if found is None:
            raise ValueError(f"{self.memory!r} is not a size such as 512m or 2GB")
        return int(found[1]) * _POWERS[found[2].lower()]


@dataclass(frozen=True, slots=True)
class ArchiveSnapshot:
    """The files a query may read, of the archive and of the tables beside it, and how they are partitioned."""

    files: Sequence[DataFile]
    partitioning: Partitioning
    tables: tuple[TableSnapshot, ...] = ()

    @property
    def size_bytes(self) -> int:
        """How many bytes every column of every file has together."""
        return sum(file.size_bytes for file in self.files) + sum(table.size_bytes for table in self.tables)

    @property
    def paths(self) -> list[str]:
        """Every file, each once."""
        files = [file.path for file in self.files]
        return list(dict.fromkeys([*files, *(file.path for table in self.tables for file in table.files)]))


def read_snapshot(
    lake: str,
    archive_table: str,
    partitioning: Partitioning,
    *,
    window: Window | None,
    reads_archive: bool = True,
    extra_reads: Sequence[TableRead] = (),
) -> ArchiveSnapshot:
    """Return the newest snapshot of what a query reads; ``window`` leaves out files of the archive.

    Raises:
        WarehouseError: a table is not there, or the lake does not answer.
    """
    files = LakeArchive(lake, archive_table, partitioning).data_files(window) if reads_archive else []
    tables = LakeTables(lake, [read.table for read in extra_reads]).snapshot(extra_reads)
    return ArchiveSnapshot(files, partitioning, tables)


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
        WarehouseError: a file in a bucket can't be read.
    """
    with (
        open_reads(snapshot.paths) as reads,
        open_connection(snapshot, limits, should_stop=should_stop, reads=reads) as run,
    ):
        yield (batch for batch in run(sql, parameters) if batch.num_rows)


@contextmanager
def open_rows_query(
    rows: pa.RecordBatchReader, sql: str, limits: QueryLimits, *, should_stop: Callable[[], bool] = lambda: False
) -> Iterator[Iterator[pa.RecordBatch]]:
    """Run ``sql`` over a view ``refeed_rows`` of rows from elsewhere, which are read once, as they come.

    Limits and errors are those of :func:`open_query`; what does not fit into memory spills.
    """
    with _locked_connection(ArchiveSnapshot((), "day"), limits, should_stop) as connection:
        connection.register(ROWS_VIEW, rows)
        yield (batch for batch in connection.sql(sql).to_arrow_reader(_BATCH_ROWS) if batch.num_rows)


@contextmanager
def open_connection(
    snapshot: ArchiveSnapshot,
    limits: QueryLimits,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    reads: ObjectReads | None = None,
) -> Iterator[Callable[[str, Mapping[str, Any]], Any]]:
    """Give what runs one query after the other over ``snapshot``, each as a reader of Arrow batches.

    ``limits`` hold for all of them together; errors are those of :func:`open_query`. ``reads`` read files in a
    bucket.
    """
    with _locked_connection(snapshot, limits, should_stop, reads) as connection:
        yield lambda sql, parameters: connection.sql(sql, params=dict(parameters)).to_arrow_reader(_BATCH_ROWS)


def warm_up() -> None:
    """Load what the first query of a process would wait for."""
    with duckdb.connect(":memory:") as connection:
        connection.sql("SELECT 1").to_arrow_reader(1).read_all()


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
        if self._reason is not None and isinstance(error, (duckdb.Error, pa.ArrowException, UnicodeDecodeError)):
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
def _locked_connection(
    snapshot: ArchiveSnapshot,
    limits: QueryLimits,
    should_stop: Callable[[], bool],
    reads: ObjectReads | None = None,
) -> Iterator[Any]:
    """Give a connection that reads the snapshot's files and no others; it is interrupted when it is to end."""
    paths = snapshot.paths
    limits.temp_folder.mkdir(parents=True, exist_ok=True)
    room = check_room(limits.temp_folder, limits.min_free_bytes)
    settings = {
        "max_temp_directory_size": quote_text(f"{min(limits.temp_bytes, room)} bytes"),
        "autoload_known_extensions": "false",
        "allow_community_extensions": "false",
        # A query can't name a variable of the process that runs it.
        "python_enable_replacements": "false",
        "allowed_paths": f"[{', '.join(map(quote_text, paths))}]",
        "allowed_directories": f"[{quote_text(str(limits.temp_folder) + os.sep)}]",
        "enable_external_access": "false",
    }
    with _our_errors(limits), open_engine(limits, reads, **settings) as connection:
        register_functions(connection)
        archive = _archive_select([file.path for file in snapshot.files], snapshot.partitioning)
        connection.execute(f"CREATE VIEW {ARCHIVE_VIEW} AS {archive}")
        for table in snapshot.tables:
            connection.execute(f"CREATE VIEW {table.view} AS {render_view(table)}")
        connection.execute("SET lock_configuration = true")
        with _Watch(connection, limits.seconds, should_stop):
            yield connection


def _archive_select(paths: Sequence[str], partitioning: Partitioning) -> str:
    columns = ", ".join(column.name for column in ARCHIVE_COLUMNS)
    if paths:
        source = f"read_parquet([{', '.join(map(quote_text, paths))}], hive_partitioning = false)"
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
    except (duckdb.Error, pa.ArrowException) as exc:
        if isinstance(exc, duckdb.OutOfMemoryException) or "Out of Memory Error" in str(exc):
            # What follows the first line tells how to configure a database that is not the reader's.
            reason = str(exc).strip().splitlines()[0]
            raise QueryTooLargeError(
                f"The query needs more than {limits.memory} of memory (REFEED_QUERY_MEMORY): {reason}"
            ) from exc
        raise QueryError(f"The query failed while it ran: {exc}") from exc
    except UnicodeDecodeError as exc:
        # The engine's message holds a byte of a character: FROM_HEX names the one that is no digit.
        raise QueryError(
            "The query failed while it ran. The input of a function contains a character that the function "
            "does not accept."
        ) from exc
