"""One batch's way from parts to tables: known ids out, journal, a commit for each table, acks."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from connectors.pubsub.source import collect_results
from model import failpoint
from model.errors import CommitOutcomeUnknownError, RefeedError, StorageFullError
from pipeline.group import Committer
from pipeline.inferred import Variation
from pipeline.paths import MAX_COUNTED, OTHERS
from pipeline.source import FORGED_REPLAY, StagedParts, TablePart
from streams.ack_leases import AckLeases, raise_reported, read_faults
from streams.journal import (
    Entry,
    EntryState,
    Journal,
    concat_ids,
    is_among,
)
from streams.status import StatusFile
from warehouse.rows import RowPart, RowTables

_log = structlog.get_logger(__name__)

# A total, and the kind of finding that it sums up over all sources.
_SUMMED: Final = {"dead_letters": "refused", "unknown_fields": "unknown", "forged_replays": FORGED_REPLAY}
_COUNTED: Final = ("messages", *_SUMMED, "redelivered", "faults")

_COMPACT_AT_FILES: Final = 64
_COMPACT_EVERY_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.1


class Stager:
    """Commits what the tasks wrote, table by table, and acknowledges it; the one writer of its journal.

    An attempt is one batch; of every table that it wrote the warehouse can say whether it is in. A message is
    acknowledged when its own table has it, whatever became of the others.
    """

    def __init__(
        self,
        *,
        tables: RowTables,
        names: Iterable[str],
        journal: Journal,
        ack_leases: AckLeases,
        status: StatusFile,
        learn: Callable[[Committer, Sequence[Variation]], bool] = lambda *_: True,
    ) -> None:
        self.status = status
        self._learn = learn
        self.failure: RefeedError | None = None
        # A table does not change while commits are made: whoever changes one takes this first.
        self.lock = threading.Lock()
        # While this file exists the stream drains: nothing is waited for.
        self.stop_file: Path | None = None
        self._tables = tables
        self._taken: set[str] = set()
        self._journal = journal
        self._ack_leases = ack_leases
        self._last_attempt = journal.last_attempt()
        # What is counted from the start is 0 and not unknown while there was none.
        self._totals: Counter[str] = Counter(dict.fromkeys(_COUNTED, 0))
        self._batch_seconds: float | None = None
        self._sources: dict[str, dict[str, Counter[str]]] = {}
        self._compactor: threading.Thread | None = None
        self._compacted_at = time.monotonic()
        self._touched: set[str] = set()
        for name in names:
            self.take(name)

    def take(self, name: str) -> None:
        """Let no other stream of the group's name commit to a table that exists any more."""
        if name not in self._taken:
            self._last_attempt = max(self._last_attempt, self._tables.take(name))
            self._taken.add(name)

    def recover(self) -> None:
        """Settle what a crash left between journal and acks, for each table by itself.

        What a table has is acknowledged and its ids stay known; what it has not comes again and is new. What
        another home's stream committed and perhaps did not acknowledge is known from now on, where the
        warehouse can tell.
        """
        for entry in self._journal.entries(EntryState.PENDING):
            ids = entry.read_ids()
            names = _tables_of(ids)
            committed = sorted(self._tables.settle(entry.attempt, names))
            if not committed:
                self._journal.forget(entry)
                _log.info("attempt_forgotten", attempt=entry.attempt)
                continue
            kept = _of_tables(ids, committed)
            self._ack_leases.acknowledge(kept)
            self._journal.move(self._journal.keep_only(entry, kept), EntryState.RECOVERED)
            _log.info("attempt_recovered", attempt=entry.attempt, tables=len(committed), of=len(names))
        inherited = self._tables.inherited_ids()
        if inherited.num_rows:
            self._last_attempt += 1
            self._journal.remember(self._last_attempt, inherited)
            _log.info("ids_inherited", messages=inherited.num_rows)

    def stage_batch(self, results: Any, batch_id: int) -> None:
        """Take one batch's results, as Spark's foreachBatch hands them over; the batch id means nothing."""
        try:
            self._stage_rows(collect_results(results))
        except RefeedError as exc:
            # Spark turns it into an exception of its own; the job wants this one.
            self.failure = exc
            _log.error("batch_failed", batch=batch_id, code=exc.code, error=exc.message)
            raise

    def _stage_rows(self, rows: list[Any]) -> None:
        failpoint.hit("batch.collected")
        self.failure = None
        self._totals["faults"] += len(read_faults(rows))
        staged = [
            StagedParts.decode(bytes(row.result), self._tables.parse_part)
            for row in rows
            if row.result is not None
        ]
        try:
            raise_reported(rows)
        except RefeedError:
            self._drop(_by_table(staged))
            raise
        has_messages = any(part.ids.num_rows for part in staged)
        if has_messages:
            began = time.monotonic()
            self._stage(staged)
            self._batch_seconds = round(time.monotonic() - began, 3)
        self._make_room(staged)
        self._wait_for_quota([one.part for part in staged for one in part.parts])
        self._journal.prune(has_messages=has_messages)
        self.status.write(
            state="running",
            totals=dict(self._totals),
            batch_seconds=self._batch_seconds,
            last_batch_at=time.time(),
            sources=self._counted(),
        )

    def _counted(self) -> dict[str, dict[str, dict[str, int]]]:
        """Return a copy of the counts, which the status may keep."""
        return {
            source: {kind: dict(found) for kind, found in kinds.items()} for source, kinds in self._sources.items()
        }

    def _stage(self, staged: Sequence[StagedParts]) -> None:
        with self._ack_leases.extended(concat_ids([part.ids for part in staged])):
            parts, held, returned = self._without_known(staged)
            if parts:
                self._last_attempt += 1
                entry = self._journal.write(self._last_attempt, held)
                with self.lock:
                    committed, failure = self._commit(parts, held)
                if failure is None:
                    failed = self._acknowledge(held)
                    failpoint.hit("ack.after")
                    self._journal.finish(entry, failed)
                    failpoint.hit("journal.done")
                else:
                    self._settle(entry, held, parts, committed, failure)
            elif (failed := self._acknowledge(held)).num_rows:
                # They are known by an entry that may be forgotten before they come again.
                self._last_attempt += 1
                self._journal.remember(self._last_attempt, failed)
        if returned.num_rows:
            self._ack_leases.give_back(returned)
            self._totals["given_back"] += returned.num_rows
        self._count(staged, parts)

    def _wait_for_quota(self, parts: Sequence[RowPart]) -> None:
        """Wait as long as the warehouse's quotas want after a batch of ``parts``; nothing is held meanwhile.

        Messages that were pulled for the next batch are given back after two seconds.
        """
        ends_at = time.monotonic() + self._tables.quota_seconds(parts)
        while time.monotonic() < ends_at and not (self.stop_file is not None and self.stop_file.exists()):
            time.sleep(_POLL_SECONDS)

    def _make_room(self, staged: Sequence[StagedParts]) -> None:
        """Let tables become wide enough for messages that do not fit yet, then have those come again.

        Variations of messages that fit are noted on the way.

        This is between two batches: no file of an older shape waits for its commit.
        """
        variations = [variation for part in staged for variation in part.variations]
        unfit = [part.unfit for part in staged if part.unfit.num_rows]
        if not unfit:
            if variations:
                self._learn(self, variations)
            return
        held = concat_ids(unfit)
        with self._ack_leases.extended(held):
            is_room = self._learn(self, variations)
        self._totals["unfit"] += held.num_rows
        # Where there is no room they come when their leases run out, not over and over.
        if is_room:
            self._ack_leases.give_back(held)

    def _settle(
        self,
        entry: Entry,
        held: pa.Table,
        parts: dict[str, list[RowPart]],
        committed: frozenset[str],
        failure: RefeedError,
    ) -> None:
        """Finish what was committed, give up the rest, and raise what kept it."""
        if isinstance(failure, CommitOutcomeUnknownError):
            # The entry stays pending: the next start finds out, table by table.
            raise failure
        self._drop({name: found for name, found in parts.items() if name not in committed})
        # A table whose parts were all known already has nothing to commit; its messages are in it.
        done = _of_tables(held, [name for name in _tables_of(held) if name in committed or name not in parts])
        if done.num_rows:
            self._finish_some(entry, done)
        else:
            self._journal.forget(entry)
        raise failure

    def _finish_some(self, entry: Entry, done: pa.Table) -> None:
        failed = self._acknowledge(done)
        try:
            kept = self._journal.keep_only(entry, done)
        except StorageFullError:
            # Messages that no table has must not be known: one that comes twice is better than one that is lost.
            self._journal.forget(entry)
        else:
            self._journal.finish(kept, failed)

    def _without_known(self, staged: Sequence[StagedParts]) -> tuple[dict[str, list[RowPart]], pa.Table, pa.Table]:
        """Return the parts to commit, by table, the ids that are done with them, and ids that have to come again.

        Rows whose ids are known were delivered twice and are left out. A warehouse that takes a part whole or
        not at all takes none of it then: what was new in it comes again without the rest, and so does a part that
        depends on one that was given up.
        """
        ids = concat_ids([part.ids for part in staged])
        is_known = self._journal.find_known(ids)
        written = [one for part in staged for one in part.parts]
        flags: list[pa.BooleanArray] = []
        owns: list[pa.Table] = []
        found: list[RowPart | None] = []
        at = 0
        for one in written:
            flags.append(is_known.slice(at, one.part.rows))
            owns.append(ids.slice(at, one.part.rows))
            found.append(one.part)
            at += one.part.rows
            if repeated := pc.sum(flags[-1]).as_py():
                found[-1] = self._tables.without(one.table, one.part, flags[-1])
                self._totals["redelivered"] += repeated
        self._drop_dependent(written, found)
        parts: dict[str, list[RowPart]] = {}
        held: list[pa.Table] = []
        returned: list[pa.Table] = []
        for one, known, own, kept in zip(written, flags, owns, found, strict=True):
            if kept is not None:
                held.append(own)
                parts.setdefault(one.table, []).append(kept)
            else:
                returned.append(own.filter(pc.invert(known)))
                held.append(own.filter(known))
        none = [ids.slice(0, 0)]
        done, again = concat_ids(held or none), concat_ids(returned or none)
        # A row may have been left out because of an earlier one that was in a part which is not taken either.
        is_again = is_among(done, again)
        return parts, done.filter(pc.invert(is_again)), concat_ids([again, done.filter(is_again)])

    def _drop_dependent(self, written: Sequence[TablePart], found: list[RowPart | None]) -> None:
        """Drop those of ``found`` that can't be committed because of one that was given up, and make them None."""
        places = [place for place, part in enumerate(found) if part is not None]
        is_next = self._tables.which_follow([found[place] for place in places])
        for place in (place for place, follows in zip(places, is_next, strict=True) if not follows):
            self._drop({written[place].table: [written[place].part]})
            found[place] = None

    def _commit(self, parts: dict[str, list[RowPart]], ids: pa.Table) -> tuple[frozenset[str], RefeedError | None]:
        """Commit each table's parts; return the tables that have theirs, and what kept another."""
        for name in parts:
            self.take(name)
        try:
            return self._tables.commit(parts, self._last_attempt, ids)
        except RefeedError as exc:
            return frozenset(), exc

    def _acknowledge(self, ids: pa.Table) -> pa.Table:
        """Acknowledge ``ids`` and return those that failed: they come again and have to be known then."""
        failed = self._ack_leases.acknowledge(ids)
        self._totals["faults"] += pc.count_distinct(failed.column("subscription").cast(pa.string())).as_py()
        return failed

    def _drop(self, parts: dict[str, list[RowPart]]) -> None:
        for name, found in parts.items():
            for part in found:
                try:
                    self._tables.drop(name, part)
                except RefeedError as exc:
                    _log.warning("part_not_dropped", table=name, error=exc.message)

    def _count(self, staged: Sequence[StagedParts], parts: dict[str, list[RowPart]]) -> None:
        rows = sum(part.rows for found in parts.values() for part in found)
        self._totals["messages"] += rows
        self._totals["commits"] += len(parts)
        for part in staged:
            for source, kinds in part.counts.items():
                found = self._sources.setdefault(source, {})
                for total, kind in _SUMMED.items():
                    self._totals[total] += sum(kinds.get(kind, {}).values())
                for kind, counts in kinds.items():
                    _add(source, kind, found.setdefault(kind, Counter()), counts)
        self._touched |= parts.keys()
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
                    self._tables.open(name).compact(max_small_files=_COMPACT_AT_FILES)
                except RefeedError as exc:
                    _log.warning("compaction_failed", table=name, code=exc.code, error=exc.message)

        self._compactor = threading.Thread(target=compact, name="compact", daemon=True)
        self._compactor.start()


def _add(source: str, kind: str, found: Counter[str], counts: dict[str, int]) -> None:
    """Count what was found, and say so the first time: a person has to look at the schema or at the producer."""
    for path, count in counts.items():
        counted = path if path in found or len(found) < MAX_COUNTED else OTHERS
        if counted not in found and kind != "rows":
            _log.warning(f"{kind}_found", source=source, path=counted)
        found[counted] += count


def _by_table(staged: Sequence[StagedParts]) -> dict[str, list[RowPart]]:
    found: dict[str, list[RowPart]] = {}
    for one in (one for part in staged for one in part.parts):
        found.setdefault(one.table, []).append(one.part)
    return found


def _tables_of(ids: pa.Table) -> list[str]:
    return [str(name) for name in pc.unique(ids.column("table").cast(pa.string())).to_pylist()]


def _of_tables(ids: pa.Table, names: Sequence[str]) -> pa.Table:
    wanted = pa.array(list(names), pa.string())
    return ids.filter(pc.is_in(ids.column("table").cast(pa.string()), value_set=wanted))
