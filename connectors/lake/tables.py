"""A Delta table partitioned by when rows came in: commits that happen once, evolution, upkeep that takes nothing.

The archive is one such table (:mod:`connectors.lake.archive`); tables of rows have a schema that may grow.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, Transaction

from connectors.lake.files import (
    PARTITION_COLUMNS,
    WrittenFile,
    partition_value,
    sync_file,
)
from model import failpoint
from model.archive import Attempt
from model.errors import CommitOutcomeUnknownError, LeaseLostError, StorageFullError, WarehouseError
from model.table import Partitioning
from model.window import Window

# A commit a second makes 86,400 log files a day: a checkpoint keeps opening the table cheap, and log files
# behind it go after a day. Transactions (which attempt is in) live in the checkpoints for ever.
CONFIGURATION: Final = {
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.enableExpiredLogCleanup": "true",
}

# A writer may be this long between writing a file and committing it; vacuum leaves younger files alone.
MAX_UNCOMMITTED_HOURS: Final = 1
MIN_VACUUM_HOURS: Final = 2
COMPACTED_BYTES: Final = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file of a snapshot; ``partition`` is the start of its partition, aware UTC."""

    path: str
    size_bytes: int
    rows: int
    partition: datetime


class LakeTable:
    """What every table of a lake can do; one object per thread, because it holds a snapshot that calls move on.

    ``root`` is a folder or a URI, ``table`` is ``dataset.table``: ``backup.messages`` lies in
    ``<root>/backup/messages``.
    """

    def __init__(self, root: str, table: str, partitioning: Partitioning = "day") -> None:
        folder = "/".join(table.split(".")[-2:])
        self.uri = f"{root.rstrip('/')}/{folder}"
        self.partitioning = partitioning
        self._local_log = None if "://" in root else Path(self.uri) / "_delta_log"
        self._delta: DeltaTable | None = None

    def exists(self) -> bool:
        """Say whether the table has been created."""
        return bool(DeltaTable.is_deltatable(self.uri))

    def writer_uri(self) -> str:
        """Return the table's folder as tasks open it."""
        return self.uri if "://" in self.uri else Path(self.uri).absolute().as_uri()

    @property
    def partition_step(self) -> timedelta:
        """How long a partition is."""
        return timedelta(days=1) if self.partitioning == "day" else timedelta(hours=1)

    def version(self) -> int:
        """Return the number of the newest commit."""
        return int(self._table().version())

    def data_files(self, window: Window | None = None) -> list[DataFile]:
        """Return the files of one snapshot, the newest, that may hold rows with an ingest_time in ``window``.

        A file is listed whole when its partition touches the window: filter its rows as well.
        """
        with our_errors("reading the table's log"):
            actions = pa.table(self._table().get_add_actions(flatten=True))
        name = f"partition.{PARTITION_COLUMNS[self.partitioning].name}"
        files = [
            # The log holds paths percent-encoded, as the Delta protocol says.
            DataFile(f"{self.uri}/{unquote(path)}", size, rows, _partition_start(partition))
            for path, size, rows, partition in zip(
                actions.column("path").to_pylist(),
                actions.column("size_bytes").to_pylist(),
                actions.column("num_records").to_pylist(),
                actions.column(name).to_pylist(),
                strict=True,
            )
        ]
        if window is not None:
            step = self.partition_step
            files = [f for f in files if f.partition < window.end and window.start < f.partition + step]
        return sorted(files, key=lambda f: (f.partition, f.path))

    def committed_attempt(self, stream: str) -> int:
        """Return the number of the stream's newest attempt that is in the archive, 0 when there is none."""
        return self._transaction(f"stream:{stream}")

    def settle(self, attempt: Attempt) -> bool:
        """Say whether an attempt that a crash left open is in the archive.

        Only the newest attempt can be open, so the number in the log is compared as it is: where the two do
        not tell one story, a message that comes twice is better than one that is lost. That the commit does not
        come later is what taking the lease saw to.
        """
        return self.committed_attempt(attempt.stream) == attempt.number

    def lease_epoch(self, lease: str) -> int:
        """Return how many times the lease has been taken."""
        return self._transaction(f"lease:{lease}")

    def take_lease(self, lease: str) -> int:
        """Take the lease and return its new epoch: from now on no commit under an older epoch gets in.

        Raises:
            LeaseLostError: another one took it at the same moment.
        """
        table = self._table()
        epoch = int(table.transaction_version(f"lease:{lease}") or 0) + 1
        try:
            self._commit(table, [], {f"lease:{lease}": epoch})
        except CommitFailedError as exc:
            raise LeaseLostError(f"Another stream took the lease {lease} at this moment.", lease=lease) from exc
        return epoch

    def commit(
        self,
        files: Sequence[WrittenFile],
        attempt: Attempt,
        ids: pa.Table | None = None,  # noqa: ARG002
    ) -> None:
        """Add ``files`` in one commit: all of them and the attempt's number, or nothing; ``ids`` are not kept.

        Raises:
            LeaseLostError: another stream holds the lease; nothing was added and nothing ever will be.
            StorageFullError, WarehouseError: nothing was added.
            CommitOutcomeUnknownError: nobody can say; ask :meth:`committed_attempt` before doing anything else.
        """
        oldest_ms = min(file.modified_at_ms for file in files)
        if time.time() * 1000 - oldest_ms > MAX_UNCOMMITTED_HOURS * 3_600_000:
            raise WarehouseError(
                f"A file waited over {MAX_UNCOMMITTED_HOURS} h for its commit; vacuum may take it at any moment."
            )
        # The epoch is checked on the very snapshot that the commit is made from: whoever takes the lease after
        # it wrote the same transaction, and Delta refuses the second writer of one.
        table = self._table()
        if table.transaction_version(f"lease:{attempt.lease}") != attempt.lease_epoch:
            raise LeaseLostError(lease=attempt.lease)
        numbers = {f"stream:{attempt.stream}": attempt.number, f"lease:{attempt.lease}": attempt.lease_epoch}
        failpoint.hit("commit.before")
        try:
            self._commit(table, files, numbers)
        except (DeltaError, OSError) as exc:
            self._resolve(attempt, exc)
        failpoint.hit("commit.after")

    def compact(self, *, max_small_files: int = 0) -> int:
        """Merge small files of each partition into large ones and return how many went away.

        Partitions with up to ``max_small_files`` small files are left alone. Rows do not change, readers of
        older snapshots keep their files until :meth:`vacuum`, and writers may commit meanwhile.
        """
        small: dict[datetime, int] = {}
        for file in self.data_files():
            if file.size_bytes < COMPACTED_BYTES // 2:
                small[file.partition] = small.get(file.partition, 0) + 1
        column = PARTITION_COLUMNS[self.partitioning].name
        removed = 0
        for partition in sorted(p for p, count in small.items() if count > max(1, max_small_files)):
            failpoint.hit("compact.before")
            with our_errors(f"compacting partition {partition}"):
                metrics = self._table().optimize.compact(
                    partition_filters=[(column, "=", partition_value(partition, self.partitioning))],
                    target_size=COMPACTED_BYTES,
                    max_concurrent_tasks=1,
                )
            failpoint.hit("compact.after")
            removed += int(metrics["numFilesRemoved"]) - int(metrics["numFilesAdded"])
        return removed

    def vacuum(self, *, keep_hours: int = 24, dry_run: bool = False) -> list[str]:
        """Delete files that no snapshot of the last ``keep_hours`` names, and return them.

        Those are files that compaction or retention replaced, and files that were written and never committed.
        A writer commits a file within an hour or never, so that none is taken from under it; a reader has
        ``keep_hours`` to finish with a snapshot.

        Raises:
            WarehouseError: ``keep_hours`` is below 2.
        """
        if keep_hours < MIN_VACUUM_HOURS:
            raise WarehouseError(
                f"Vacuum must keep {MIN_VACUUM_HOURS} hours at least: younger files may be in use."
            )
        with our_errors("vacuuming the table"):
            return list(
                self._table().vacuum(
                    retention_hours=keep_hours, dry_run=dry_run, enforce_retention_duration=False, full=True
                )
            )

    def expire(self, *, before: date) -> int:
        """Take the partitions of days before ``before`` out of the table and return how many files went.

        Their files stay on disk until :meth:`vacuum`.
        """
        column = PARTITION_COLUMNS[self.partitioning].name
        literal = before.isoformat() if self.partitioning == "day" else f"{before.isoformat()} 00:00:00"
        with our_errors(f"expiring partitions before {before}"):
            metrics = self._table().delete(f"{column} < '{literal}'")
        return int(metrics["num_removed_files"])

    def _resolve(self, attempt: Attempt, exc: Exception) -> None:
        """Return when the failed commit is in after all; raise the error that says what is true."""
        try:
            self._delta = None
            is_in = self.committed_attempt(attempt.stream) >= attempt.number
            is_ours = self.lease_epoch(attempt.lease) == attempt.lease_epoch
        except WarehouseError as second:
            raise CommitOutcomeUnknownError(
                f"The commit failed ({exc}) and the table can't be read ({second})."
            ) from exc
        if is_in:
            return
        if not is_ours:
            raise LeaseLostError(lease=attempt.lease) from exc
        if _is_disk_full(exc):
            raise StorageFullError from exc
        raise WarehouseError(f"The commit failed and nothing was added: {exc}") from exc

    def _commit(self, table: DeltaTable, files: Sequence[WrittenFile], transactions: Mapping[str, int]) -> None:
        partition = PARTITION_COLUMNS[self.partitioning].name
        table.create_write_transaction(
            [
                AddAction(
                    path=file.path,
                    size=file.size_bytes,
                    partition_values={partition: file.partition},
                    modification_time=file.modified_at_ms,
                    data_change=True,
                    stats=file.stats,
                )
                for file in files
            ],
            mode="append",
            schema=table.schema(),
            partition_by=[partition],
            commit_properties=CommitProperties(
                app_transactions=[Transaction(app, version) for app, version in transactions.items()]
            ),
        )
        if self._local_log is not None:
            # delta-rs leaves the log file in the page cache; an ack may only follow what a power cut can't undo.
            table.update_incremental()
            sync_file(str(self._local_log / f"{table.version():020d}.json"))
            sync_file(str(self._local_log))

    def _transaction(self, app: str) -> int:
        with our_errors("reading the table's log"):
            return int(self._table().transaction_version(app) or 0)

    def _table(self) -> DeltaTable:
        """Return the table at its newest version."""
        with our_errors("opening the table"):
            if self._delta is None:
                self._delta = DeltaTable(self.uri)
            else:
                self._delta.update_incremental()
        return self._delta


def _partition_start(value: Any) -> datetime:
    if isinstance(value, datetime):
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
    return datetime(value.year, value.month, value.day, tzinfo=UTC)


def _is_disk_full(exc: Exception) -> bool:
    return "No space left on device" in str(exc) or "os error 28" in str(exc)


@contextmanager
def our_errors(what: str, *, but: type[Exception] | tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn the lake's exceptions into ours, ``but`` one that the caller wants; ``what`` was being done."""
    try:
        yield
    except but:
        raise
    except TableNotFoundError as exc:
        raise WarehouseError(
            f"There is no table yet ({what}); for the archive, attach a topic and start a backup."
        ) from exc
    except (DeltaError, OSError) as exc:
        if _is_disk_full(exc):
            raise StorageFullError(f"The disk is full while {what}.") from exc
        raise WarehouseError(f"The lake failed while {what}: {exc}") from exc
