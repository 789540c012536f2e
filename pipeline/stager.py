"""One batch's way from files to tables: known ids out, journal, a commit for each table, acks."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from connectors.lake.files import WrittenFile
from connectors.lake.rows import RowTable
from jobs.stream.hold import Hold, raise_reported, read_faults
from jobs.stream.journal import EntryState, Journal, concat_ids
from jobs.stream.status import StatusFile
from model import failpoint
from model.archive import Attempt
from model.errors import CommitOutcomeUnknownError, RefeedError
from pipeline.group import Committer
from pipeline.inferred import Variation
from pipeline.source import StagedFiles

_log = structlog.get_logger(__name__)

_COMMITS_AT_ONCE: Final = 4
_COMPACT_AT_FILES: Final = 64
_COMPACT_EVERY_SECONDS: Final = 30.0
# A field that is unknown in every message is named once; the status names this many.
_MAX_COUNTED: Final = 1000


class Stager:
    """Commits what the tasks wrote, table by table, and acknowledges it; the one writer of its journal.

    An attempt is one batch; its number is in the log of every table that it wrote. A message is acknowledged
    when its own table has it, whatever became of the others.
    """

    def __init__(
        self,
        *,
        open_table: Callable[[str], RowTable],
        tables: Iterable[str],
        journal: Journal,
        hold: Hold,
        stream: str,
        lease: str,
        status: StatusFile,
        learn: Callable[[Committer, Sequence[Variation]], bool] = lambda *_: True,
    ) -> None:
        self.status = status
        self._learn = learn
        self.failure: RefeedError | None = None
        # A table does not change while commits are made: whoever changes one takes this first.
        self.lock = threading.Lock()
        self._open = open_table
        self._journal = journal
        self._hold = hold
        self._stream = stream
        self._lease = lease
        self._tables: dict[str, tuple[RowTable, int]] = {}
        self._last_attempt = journal.last_attempt()
        self._totals: Counter[str] = Counter()
        self._sources: dict[str, dict[str, Counter[str]]] = {}
        self._compactor: threading.Thread | None = None
        self._compacted_at = time.monotonic()
        self._touched: set[str] = set()
        for name in tables:
            self.take(name)

    def take(self, name: str) -> None:
        """Take the lease on a table that exists: no other stream of the group's name commits to it any more."""
        if name not in self._tables:
            table = self._open(name)
            self._tables[name] = (table, table.take_lease(self._lease))
            self._last_attempt = max(self._last_attempt, table.committed_attempt(self._stream))

    def recover(self) -> None:
        """Settle what a crash left between journal and acks, for each table by itself.

        What a table has is acknowledged and its ids stay known; what it has not comes again and is new.
        """
        for entry in self._journal.entries(EntryState.PENDING):
            ids = entry.read_ids()
            names = pc.unique(ids.column("table").cast(pa.string())).to_pylist()
            committed = [name for name in names if self._has(name, entry.attempt)]
            if not committed:
                self._journal.forget(entry)
                _log.info("attempt_forgotten", attempt=entry.attempt)
                continue
            kept = _of_tables(ids, committed)
            self._hold.acknowledge(kept)
            self._journal.move(self._journal.keep_only(entry, kept), EntryState.RECOVERED)
            _log.info("attempt_recovered", attempt=entry.attempt, tables=len(committed), of=len(names))

    def stage_batch(self, results: Any, batch_id: int) -> None:
        """Take one batch's results, as Spark's foreachBatch hands them over; the batch id means nothing."""
        try:
            self._stage_rows(results.collect())
        except RefeedError as exc:
            # Spark turns it into an exception of its own; the job wants this one.
            self.failure = exc
            _log.error("batch_failed", batch=batch_id, code=exc.code, error=exc.message)
            raise

    def _has(self, name: str, attempt: int) -> bool:
        if name not in self._tables and not self._open(name).exists():
            return False
        self.take(name)
        return self._tables[name][0].committed_attempt(self._stream) == attempt

    def _stage_rows(self, rows: list[Any]) -> None:
        failpoint.hit("batch.collected")
        self.failure = None
        self._totals["faults"] += len(read_faults(rows))
        staged = [StagedFiles.decode(bytes(row.result)) for row in rows if row.result is not None]
        try:
            raise_reported(rows)
        except RefeedError:
            self._drop({name: files for part in staged for name, files in _by_table(part).items()})
            raise
        if any(part.ids.num_rows for part in staged):
            self._stage(staged)
        self._make_room(staged)
        self._journal.prune()
        self.status.write(
            state="running", totals=dict(self._totals), last_batch_at=time.time(), sources=self._counted()
        )

    def _counted(self) -> dict[str, dict[str, dict[str, int]]]:
        """Return a copy of the counts, which the status may keep."""
        return {
            source: {kind: dict(found) for kind, found in kinds.items()} for source, kinds in self._sources.items()
        }

    def _stage(self, staged: Sequence[StagedFiles]) -> None:
        held = concat_ids([part.ids for part in staged])
        with self._hold.extended(held):
            files = self._without_known(staged)
            if files:
                self._last_attempt += 1
                entry = self._journal.write(self._last_attempt, held)
                with self.lock:
                    committed, failure = self._commit(files)
                if failure is None:
                    self._acknowledge(held)
                    failpoint.hit("ack.after")
                    self._journal.move(entry, EntryState.DONE)
                    failpoint.hit("journal.done")
                else:
                    self._settle(entry, held, files, committed, failure)
            else:
                self._acknowledge(held)
        self._count(staged, files)

    def _make_room(self, staged: Sequence[StagedFiles]) -> None:
        """Let tables become wide enough for messages that do not fit yet, then have those come again.

        This is between two batches: no file of an older shape waits for its commit.
        """
        unfit = [part.unfit for part in staged if part.unfit.num_rows]
        if not unfit:
            return
        held = concat_ids(unfit)
        with self._hold.extended(held):
            is_room = self._learn(self, [variation for part in staged for variation in part.variations])
        self._totals["unfit"] += held.num_rows
        # Where there is no room they come when their leases run out, not over and over.
        if is_room:
            self._hold.give_back(held)

    def _settle(
        self,
        entry: Any,
        held: pa.Table,
        files: dict[str, list[WrittenFile]],
        committed: set[str],
        failure: RefeedError,
    ) -> None:
        """Finish what was committed, give up the rest, and raise what kept it."""
        if isinstance(failure, CommitOutcomeUnknownError):
            # The entry stays pending: the next start finds out, table by table.
            raise failure
        self._drop({name: parts for name, parts in files.items() if name not in committed})
        # A table whose files were all known already has nothing to commit; its messages are in it.
        done = _of_tables(held, [name for name in _tables_of(held) if name in committed or name not in files])
        if done.num_rows:
            self._acknowledge(done)
            self._journal.move(self._journal.keep_only(entry, done), EntryState.DONE)
        else:
            self._journal.forget(entry)
        raise failure

    def _without_known(self, staged: Sequence[StagedFiles]) -> dict[str, list[WrittenFile]]:
        """Return the files to commit, by table; rows whose ids are known were delivered twice and are left out."""
        is_known = self._journal.find_known(concat_ids([part.ids for part in staged]))
        files: dict[str, list[WrittenFile]] = {}
        at = 0
        for part in staged:
            for table_file in part.files:
                flags = is_known.slice(at, table_file.file.rows)
                at += table_file.file.rows
                file: WrittenFile | None = table_file.file
                if repeated := pc.sum(flags).as_py():
                    writer = self._table(table_file.table)[0].writer()
                    file = writer.write_without(table_file.file, flags)
                    writer.delete(table_file.file)
                    self._totals["redelivered"] += repeated
                if file is not None:
                    files.setdefault(table_file.table, []).append(file)
        return files

    def _commit(self, files: dict[str, list[WrittenFile]]) -> tuple[set[str], RefeedError | None]:
        """Commit each table's files by itself; return the tables that have theirs, and what kept another."""
        committed: set[str] = set()
        failures: list[RefeedError] = []

        def commit(name: str) -> None:
            table, epoch = self._table(name)
            try:
                table.commit(files[name], Attempt(self._stream, self._last_attempt, self._lease, epoch))
            except RefeedError as exc:
                failures.append(exc)
            else:
                committed.add(name)

        with ThreadPoolExecutor(_COMMITS_AT_ONCE) as pool:
            list(pool.map(commit, sorted(files)))
        unknown = [failure for failure in failures if isinstance(failure, CommitOutcomeUnknownError)]
        return committed, next(iter(unknown or failures), None)

    def _table(self, name: str) -> tuple[RowTable, int]:
        self.take(name)
        return self._tables[name]

    def _acknowledge(self, ids: pa.Table) -> None:
        self._totals["faults"] += self._hold.acknowledge(ids)

    def _drop(self, files: dict[str, list[WrittenFile]]) -> None:
        for name, parts in files.items():
            for part in parts:
                try:
                    self._open(name).writer().delete(part)
                except RefeedError as exc:
                    _log.warning("file_not_deleted", file=part.path, error=exc.message)

    def _count(self, staged: Sequence[StagedFiles], files: dict[str, list[WrittenFile]]) -> None:
        rows = sum(file.rows for parts in files.values() for file in parts)
        self._totals["messages"] += rows
        self._totals["commits"] += len(files)
        for part in staged:
            for source, kinds in part.counts.items():
                found = self._sources.setdefault(source, {})
                for kind, counts in kinds.items():
                    _add(source, kind, found.setdefault(kind, Counter()), counts)
        self._touched |= files.keys()
        self._compact_aside()

    def _compact_aside(self) -> None:
        """Merge small files in a thread when they pile up; the stream goes on committing meanwhile."""
        now = time.monotonic()
        is_running = self._compactor is not None and self._compactor.is_alive()
        if is_running or now - self._compacted_at < _COMPACT_EVERY_SECONDS:
            return
        self._compacted_at = now
        names, self._touched = sorted(self._touched), set()

        def compact() -> None:
            for name in names:
                try:
                    # A table object of its own: the stream's moves on with each commit.
                    self._open(name).compact(max_small_files=_COMPACT_AT_FILES)
                except RefeedError as exc:
                    _log.warning("compaction_failed", table=name, code=exc.code, error=exc.message)

        self._compactor = threading.Thread(target=compact, name="compact", daemon=True)
        self._compactor.start()


def _add(source: str, kind: str, found: Counter[str], counts: dict[str, int]) -> None:
    """Count what was found, and say so the first time: a person has to look at the schema or at the producer."""
    for path, count in counts.items():
        if path not in found and len(found) >= _MAX_COUNTED:
            continue
        if path not in found and kind != "rows":
            _log.warning(f"{kind}_found", source=source, path=path)
        found[path] += count


def _by_table(staged: StagedFiles) -> dict[str, list[WrittenFile]]:
    found: dict[str, list[WrittenFile]] = {}
    for part in staged.files:
        found.setdefault(part.table, []).append(part.file)
    return found


def _tables_of(ids: pa.Table) -> list[str]:
    return [str(name) for name in pc.unique(ids.column("table").cast(pa.string())).to_pylist()]


def _of_tables(ids: pa.Table, names: Sequence[str]) -> pa.Table:
    wanted = pa.array(list(names), pa.string())
    return ids.filter(pc.is_in(ids.column("table").cast(pa.string()), value_set=wanted))
