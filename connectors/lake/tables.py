"""A Delta table partitioned by when rows came in: commits that happen once, evolution, upkeep that takes nothing.

The archive is one such table (:mod:`connectors.lake.archive`); tables of rows have a schema that may grow.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import partial
from typing import Final, Self

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from connectors.lake.bucket_log import LOG_RETENTION, parse_interval
from connectors.lake.clocks import refuse_wrong_clock
from connectors.lake.data_files import DataFile
from connectors.lake.delta_table import KEPT_IN_BUCKET
from connectors.lake.errors import error_from, is_entry_refused, our_errors
from connectors.lake.files import WrittenFile, is_partition, partition_value
from connectors.lake.leases import LakeLeases
from connectors.lake.log_entries import add_action, append_entries, remove_action
from connectors.lake.reading import OpenFiles
from connectors.lake.table_files import TableFiles
from connectors.patience import retry_passing
from model import failpoint
from model.archive import Attempt
from model.errors import CommitOutcomeUnknownError, LeaseLostError, WarehouseError, WarehouseUnavailableError
from model.table import Partitioning

# A commit a second makes 86,400 log files a day: a checkpoint keeps opening the table cheap, and log files
# behind it go after a day. Transactions (which attempt is in) live in the checkpoints for ever.
CONFIGURATION: Final = {
    "delta.checkpointInterval": "100",
    LOG_RETENTION: "interval 1 days",
    "delta.enableExpiredLogCleanup": "true",
}

# A writer may be this long between writing a file and committing it; vacuum leaves younger files alone.
MAX_UNCOMMITTED_HOURS: Final = 1
MIN_VACUUM_HOURS: Final = 2
COMPACTED_BYTES: Final = 128 * 1024 * 1024
# For how long a store that does not answer is asked what became of a commit; its messages are held meanwhile.
OUTCOME_SECONDS: Final = 300.0
# Streams commit every second or two; a commit takes milliseconds.
_REPLACE_TRIES: Final = 10


@dataclass(frozen=True, slots=True)
class _Tip:
    """The version that a commit under a lease made, when it was the newest; the lease was held at it."""

    version: int
    lease: str
    lease_epoch: int


class LakeTable(TableFiles):
    """A table partitioned by when rows came in; one object per thread."""

    def __init__(self, root: str, table: str, partitioning: Partitioning = "day") -> None:
        super().__init__(root, table, partitioning)
        self._tip: _Tip | None = None

    def another(self) -> Self:
        """Return another object for the same table, for another thread."""
        return type(self)(self._root, self.name, self.partitioning)

    def leases(self) -> LakeLeases:
        """Return the leases beside the table."""
        return LakeLeases(self.uri, self.take_lease)

    def committed_attempt(self, stream: str) -> int:
        """Return the number of the stream's newest attempt that is in, durably; 0 when there is none."""
        number = self._transaction(f"stream:{stream}")
        # The process that committed it may have died before it was durable.
        with our_errors("syncing the table's log"):
            self._log.sync(self._table())
        return number

    def settle(self, attempt: Attempt) -> bool:
        """Return whether an attempt that a crash left open is in the table.

        Only the newest attempt can be open, so its number and its commit in the log are compared as they are:
        where they do not agree, a message that comes twice is better than one that is lost. The commit can't
        come later: the lease has been taken since.
        """
        if self.committed_attempt(attempt.stream) != attempt.number:
            return False
        return attempt.commit_id in (None, self._transaction(f"commit:{attempt.stream}"))

    def lease_epoch(self, lease: str) -> int:
        """Return how many times the lease has been taken."""
        return self._transaction(f"lease:{lease}")

    def take_lease(self, lease: str) -> int:
        """Take the lease and return its new epoch: from now on no commit under an older epoch gets in.

        Raises:
            LeaseLostError: another one took it at the same moment.
            StorageFullError, WarehouseError: it is not taken, or nobody knows of it.
        """
        self._keep_log()
        table = self._table()
        with our_errors(f"taking the lease {lease}"):
            epoch = int(table.transaction_version(f"lease:{lease}") or 0) + 1
        commit_id = secrets.randbits(63)
        try:
            self._commit(table, [], {f"lease:{lease}": epoch, f"taken:{lease}": commit_id})
        except (DeltaError, OSError) as exc:
            # The answer may be lost, and a store that is asked again says that the entry is there.
            self._delta = self._tip = None
            newest = self.lease_epoch(lease)
            if newest < epoch:
                with our_errors(f"taking the lease {lease}"):
                    raise
            if (newest, self._transaction(f"taken:{lease}")) != (epoch, commit_id):
                message = f"Another stream has just taken the lease {lease}."
                raise LeaseLostError(message, lease=lease) from exc
            with our_errors("syncing the table's log"):
                self._log.sync(self._table())
        return epoch

    def _keep_log(self) -> None:
        """Have a bucket keep the log for as long as a table that is created now keeps it there."""
        table = self._table()
        interval = table.metadata().configuration.get(LOG_RETENTION)
        if self._log.is_local or interval is None:
            return
        wanted, kept = parse_interval(KEPT_IN_BUCKET[LOG_RETENTION]), parse_interval(interval)
        if kept is not None and wanted is not None and kept >= wanted:
            return
        with our_errors(f"changing {self.name}"):
            table.alter.set_table_properties(KEPT_IN_BUCKET, post_commithook_properties=self._log.hooks)

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
            CommitOutcomeUnknownError: it is not known; call :meth:`committed_attempt` before anything else.
        """
        refuse_old(files, self._now())
        numbers = {f"stream:{attempt.stream}": attempt.number, f"lease:{attempt.lease}": attempt.lease_epoch}
        if attempt.commit_id is not None:
            numbers[f"commit:{attempt.stream}"] = attempt.commit_id
        # While nobody else commits, the lease that was held at the last commit is held still.
        tip = self._tip_of(attempt)
        table = None if tip is not None else self._held_table(attempt)
        self._refuse_astray(files)
        failpoint.hit("commit.before")
        try:
            if tip is None or not self._append(tip, files, numbers):
                table = self._held_table(attempt) if table is None else table
                self._commit(table, files, numbers)
                is_held = table.transaction_version(f"lease:{attempt.lease}") == attempt.lease_epoch
                self._tip = _Tip(table.version(), attempt.lease, attempt.lease_epoch) if is_held else None
        except (DeltaError, OSError) as exc:
            self._resolve(files, attempt, exc)
        failpoint.hit("commit.after")

    def _refuse_astray(self, files: Sequence[WrittenFile]) -> None:
        """Raise for a file of another partitioning than the table's: committed, it makes the table unreadable."""
        for file in files:
            if file.partition is not None and not is_partition(file.partition, self.partitioning):
                raise WarehouseError(
                    f"{file.path} is a file of the partition {file.partition}, but {self.name} is partitioned "
                    f"by {self.partitioning}. Nothing was added."
                )

    def _tip_of(self, attempt: Attempt) -> _Tip | None:
        """Return the newest version that is known, None where another lease or nothing is known of it."""
        tip, self._tip = self._tip, None
        is_its_own = tip is not None and (tip.lease, tip.lease_epoch) == (attempt.lease, attempt.lease_epoch)
        return tip if is_its_own else None

    def _held_table(self, attempt: Attempt) -> DeltaTable:
        """Return the table where the attempt's lease is held.

        The epoch is checked on the very snapshot that the commit is made from: a stream that takes the lease
        after it wrote the same transaction, and Delta refuses the second writer of one.
        """
        table = self._table()
        with our_errors("reading the table's log"):
            epoch = table.transaction_version(f"lease:{attempt.lease}")
        if epoch != attempt.lease_epoch:
            raise LeaseLostError(lease=attempt.lease)
        return table

    def _append(self, tip: _Tip, files: Sequence[WrittenFile], transactions: Mapping[str, int]) -> bool:
        """Make one durable commit that follows ``tip``; False, and nothing is made, where another did."""
        actions = append_entries(files, transactions, self._partition.name, now=self._now())
        if not self._log.append(tip.version, actions):
            return False
        self._tip = replace(tip, version=tip.version + 1)
        if self._log.is_checkpoint_due(self._tip.version):
            self._log.shorten(self._tip.version)
            self._delta = None
        return True

    def compact(self, *, max_small_files: int = 0) -> int:
        """Merge small files of each partition into large ones and return how many went away.

        Partitions with up to ``max_small_files`` small files are left alone. Rows do not change, readers of
        older snapshots keep their files until :meth:`vacuum`, and writers may commit meanwhile.
        """
        small: dict[datetime, list[DataFile]] = {}
        for file in self.data_files():
            if file.size_bytes < COMPACTED_BYTES // 2:
                small.setdefault(file.partition, []).append(file)
        removed = 0
        for partition, files in sorted(small.items()):
            if len(files) <= max(1, max_small_files):
                continue
            failpoint.hit("compact.before")
            with self.writer().reading([self._name(file) for file in files]) as opened:
                for schema, together in self._bins(opened, files):
                    removed += self._merge(opened, schema, partition, together)
            failpoint.hit("compact.after")
        return removed

    def vacuum(self, *, keep_hours: int = 24, dry_run: bool = False) -> list[str]:
        """Delete files that no snapshot of the last ``keep_hours`` names, and return them.

        Those are files that compaction or retention replaced, and files that were written and never committed.
        A writer commits a file within an hour or never, so that none is taken from under it; a reader has
        ``keep_hours`` to finish with a snapshot.

        Raises:
            WarehouseError: ``keep_hours`` is below 2, or this machine's clock is not the storage's.
        """
        if keep_hours < MIN_VACUUM_HOURS:
            raise WarehouseError(
                f"Vacuum must keep at least {MIN_VACUUM_HOURS} hours, because younger files may be in use."
            )
        refuse_wrong_clock(self._now(), "delete files")
        with our_errors("vacuuming the table"):
            table = self._table()
            # A file may only go when the entry that took it out of the table can't be undone any more.
            self._log.sync(table)
            deleted = table.vacuum(
                retention_hours=keep_hours,
                dry_run=dry_run,
                enforce_retention_duration=False,
                post_commithook_properties=self._log.hooks,
                full=True,
            )
            self._log.committed(table)
        return list(deleted)

    def expire(self, *, before: date) -> int:
        """Take the partitions of days before ``before`` out of the table and return how many files went.

        Their files stay on disk until :meth:`vacuum`.
        """
        start = datetime(before.year, before.month, before.day, tzinfo=UTC)
        expired = [file for file in self.data_files() if file.partition < start]
        if expired:
            with our_errors(f"expiring partitions before {before}"):
                self._replace(expired, [])
        return len(expired)

    def uncounted(self) -> tuple[int, int]:
        """Return (0, 0): only an archive has volumes."""
        return 0, 0

    def count(self) -> int:
        """Return 0: only an archive has volumes."""
        return 0

    def _bins(self, opened: OpenFiles, files: Sequence[DataFile]) -> Iterator[tuple[pa.Schema, list[DataFile]]]:
        """Yield the files of a partition that become one: of one schema, and of the size that is aimed at."""
        writer = self.writer()
        bins: list[tuple[pa.Schema, list[DataFile]]] = []
        for file in files:
            schema = writer.read_schema(opened, self._name(file))
            found = next((held for known, held in bins if known.equals(schema)), None)
            if found is None:
                found = []
                bins.append((schema, found))
            found.append(file)
            if sum(held.size_bytes for held in found) >= COMPACTED_BYTES:
                yield schema, found
                bins = [(known, held) for known, held in bins if held is not found]
        yield from ((known, held) for known, held in bins if len(held) > 1)

    def _merge(self, opened: OpenFiles, schema: pa.Schema, partition: datetime, files: Sequence[DataFile]) -> int:
        """Put one file in the place of several with the same rows; return how many there are less."""
        writer = self.writer()
        batches = writer.read_batches(opened, [self._name(file) for file in files])
        merged = writer.write_batches(batches, schema, partition)
        with our_errors(f"compacting partition {partition}"):
            self._replace(files, [] if merged is None else [merged], is_same_rows=True)
        return len(files) - (merged is not None)

    def _replace(
        self, removed: Sequence[DataFile], added: Sequence[WrittenFile], *, is_same_rows: bool = False
    ) -> None:
        """Put ``added`` in the place of ``removed`` in one commit.

        delta-rs lets two writers remove one file, so a commit is made only from the newest version, looked at
        before. Files that are not added in the end are vacuum's: the commit may be in though it seemed to fail.

        Raises:
            WarehouseError: another took one of the files away, or commits all the time; nothing was changed.
        """
        old = {file.path for file in removed}
        new = {f"{self.uri}/{file.path}" for file in added}
        for left in reversed(range(_REPLACE_TRIES)):
            refuse_old(added, self._now())
            table = self._table()
            current = {file.path for file in self._files(table)}
            if new and new <= current:
                # The try before is in after all.
                self._log.committed(table)
                return
            if not old <= current:
                raise WarehouseError("The files to replace are gone: another process changed them.")
            try:
                self._commit(table, added, {}, removed=removed, is_same_rows=is_same_rows)
            except CommitFailedError:
                if not left:
                    raise
            else:
                return

    def _resolve(self, files: Sequence[WrittenFile], attempt: Attempt, exc: Exception) -> None:
        """Return when the failed commit is in after all; else raise what became of it.

        A store that does not answer is asked for minutes: only then the stream ends, and its next start asks.
        """
        if is_entry_refused(exc):
            raise error_from(exc, "committing (nothing was added)") from exc
        try:
            is_in = retry_passing(partial(self._find_out, files, attempt), seconds=OUTCOME_SECONDS)
        except LeaseLostError:
            raise
        except WarehouseError as second:
            raise CommitOutcomeUnknownError(
                f"The commit failed ({exc}), but the table may still get it: {second}"
            ) from exc
        if not is_in:
            raise error_from(exc, "committing (nothing was added)") from exc

    def _find_out(self, files: Sequence[WrittenFile], attempt: Attempt) -> bool:
        """Return whether an attempt that failed is in; one that is not never will be.

        An owner that took the lease may be the same stream, where a home was copied, and go on with the same
        number. So only the commit's id and its files say whose commit is in. Where that owner has committed since,
        and merged the files, their messages come again.
        """
        self._delta = self._tip = None
        is_settled = self._log.is_local or self._take_place(attempt)
        is_ours = self.lease_epoch(attempt.lease) == attempt.lease_epoch
        is_in = self.settle(attempt) and (is_ours or attempt.commit_id is not None)
        if not is_in and not is_ours:
            new = {f"{self.uri}/{file.path}" for file in files}
            is_in = bool(new) and new <= {file.path for file in self._files(self._table())}
        if not is_in and not is_ours:
            raise LeaseLostError(lease=attempt.lease)
        if not is_in and not is_settled:
            raise WarehouseError("Delta Lake may still write the commit.")
        return is_in

    def _take_place(self, attempt: Attempt) -> bool:
        """Make sure that an attempt that is not in now never will be; return whether that worked.

        An object store may make a commit after its client gave up. It goes to the one place in the log that was
        free, and a commit of nothing takes that. Under a lease that another one took, its commit has done so.
        """
        try:
            with our_errors("taking the place of a commit"):
                self._commit(self._held_table(attempt), [], {f"lease:{attempt.lease}": attempt.lease_epoch})
        except LeaseLostError:
            return True
        except WarehouseUnavailableError:
            raise
        except WarehouseError:
            return False
        return True

    def _commit(
        self,
        table: DeltaTable,
        files: Sequence[WrittenFile],
        transactions: Mapping[str, int],
        *,
        removed: Sequence[DataFile] = (),
        is_same_rows: bool = False,
        schema: pa.Schema | None = None,
    ) -> None:
        """Make one durable commit; with a ``schema`` all of the table's files are removed and it changes to that.

        One that removes files fails when any other commit came since ``table`` was looked at.
        """
        column, is_change, now = self._partition.name, not is_same_rows, self._now()
        actions: list[AddAction | RemoveAction] = [
            remove_action(
                self._name(file),
                file.size_bytes,
                {column: partition_value(file.partition, self.partitioning)},
                now=now,
                is_data_change=is_change,
            )
            for file in removed
        ]
        actions += [add_action(file, column, is_data_change=is_change) for file in files]
        retries = 0 if removed or schema is not None else None
        self._write(table, actions, transactions, schema=schema, retries=retries)

    def _transaction(self, app: str) -> int:
        with our_errors("reading the table's log"):
            return int(self._table().transaction_version(app) or 0)


def refuse_old(files: Sequence[WrittenFile], now: float, *, max_hours: int = MAX_UNCOMMITTED_HOURS) -> None:
    """Raise when a file has waited ``max_hours`` for its commit at ``now``, so long that vacuum may take it.

    Raises:
        WarehouseError: one has; nothing was added.
    """
    oldest = min((file.modified_at_ms / 1000 for file in files), default=now)
    if now - oldest > max_hours * 3600:
        raise WarehouseError(
            f"A file waited more than {max_hours} h for its commit. Vacuum may delete it at any moment."
        )
