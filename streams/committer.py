"""Commits a batch: drops known ids, writes the journal, commits to the tables and acknowledges, in this order."""

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from connectors.pubsub.ack_deadline import AckDeadline
from connectors.pubsub.source import TaskResult
from model import failpoint
from model.errors import CommitOutcomeUnknownError, RefeedError, StorageFullError
from streams.ack_leases import AckLeases
from streams.batch import Batch, find_new, read_batch
from streams.compaction import Compactor
from streams.ids import concat_ids, ids_of_tables, tables_of, without_topics
from streams.journal import Entry, EntryState, Journal
from streams.learning import Learner
from streams.status import StatusFile
from streams.targets import TargetPart, Targets, Work, is_topic

_log = structlog.get_logger(__name__)

_COUNTED: Final = ("messages", "redelivered", "faults")
_LOG_TOTALS_EVERY_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.1


class StreamCommitter:
    """Commits the parts that tasks wrote, and acknowledges their messages; the only writer of its journal.

    The order keeps the promise. The ids of an attempt are in the journal before the commit, so that after a crash
    each table shows whether it has the attempt. Only these ids are acknowledged, after the commit. A message is
    acknowledged as soon as its own table has it, and its topic if it has one; other tables may have failed. A
    redelivered message with a known id is acknowledged, and not written again.
    """

    def __init__(
        self,
        *,
        work: Work,
        targets: Targets,
        names: Iterable[str],
        journal: Journal,
        ack_leases: AckLeases,
        status: StatusFile,
        learner: Learner | None = None,
    ) -> None:
        self.status = status
        # Take this lock to change a table: no table may change during a commit.
        self.lock = threading.Lock()
        # Held from a batch's journal entry to its acknowledgements. The holder is between two commits.
        self.turn = threading.Lock()
        # While this file exists the stream drains, and does not wait for quotas.
        self.stop_file: Path | None = None
        self._work = work
        self._targets = targets
        self._journal = journal
        self._ack_leases = ack_leases
        self._compactor = Compactor(targets)
        # The registry's thread takes tables while this thread numbers attempts.
        self._numbers = threading.Lock()
        self._last_attempt = journal.last_attempt()
        self._taken: set[str] = set()
        # An attempt that some tables lack: its entry, the ids of the other tables, and the unacknowledged ids.
        self._half_done: tuple[Entry, pa.Table, pa.Table] | None = None
        # Begin with 0, because a missing figure means unknown.
        self._totals: Counter[str] = Counter(dict.fromkeys((*_COUNTED, *work.counted), 0))
        self._batch_seconds: float | None = None
        # Wall times of this process's first and last commit, which measure the pause of a hand-over.
        self._committed_at: dict[str, float] = {}
        self._totals_logged_at = time.monotonic()
        self._learner = learner
        for name in names:
            self.take(name)

    @property
    def name(self) -> str:
        """The stream's name in the log."""
        return self._work.name

    def take(self, name: str) -> None:
        """Fence older streams off the table ``name``, and learn its ids if the journal does not know them.

        Raises:
            RefeedError: another stream has the table, or its ids can't be learned; then the table is not taken.
        """
        if name in self._taken:
            return
        newest = self._targets.take(name)
        with self._numbers:
            self._last_attempt = max(self._last_attempt, newest)
        if self._learner is not None:
            self._learner.take(name, newest, self._next_attempt)
        self._taken.add(name)

    def recover(self) -> None:
        """Settle the attempts that a crash left between journal and acknowledgements, table by table.

        Messages that are in their table are acknowledged, and their ids stay known. The others are forgotten, and
        are new when they are redelivered.
        """
        for entry in self._journal.entries(EntryState.PENDING):
            ids = entry.read_ids()
            names = tables_of(ids)
            committed = sorted(self._targets.settle(entry.attempt, names, entry.commit_id))
            if not committed:
                self._journal.forget(entry)
                _log.info("attempt_forgotten", attempt=entry.attempt)
                continue
            kept = ids_of_tables(ids, committed)
            self._expect_again(kept)
            missing = ids_of_tables(ids, [name for name in names if name not in committed])
            self._acknowledge(kept, AckDeadline(), but=missing)
            held = entry if kept.num_rows == ids.num_rows else self._journal.keep_only(entry, kept)
            self._journal.move(held, EntryState.RECOVERED)
            _log.info("attempt_recovered", attempt=entry.attempt, tables=len(committed), of=len(names))

    def open_batch(self, rows: Sequence[TaskResult]) -> Batch:
        """Return the batch whose tasks returned ``rows``."""
        failpoint.hit("batch.collected")
        return read_batch(rows, self._work, self._targets)

    def hold(self, batch: Batch) -> AbstractContextManager[None]:
        """Extend the leases of the batch's messages for as long as the block runs."""
        return self._ack_leases.extended(batch.ids(), batch.deadline)

    def give_up(self, batch: Batch) -> None:
        """Stop extending the leases of a batch that will not be committed; its messages are redelivered."""
        self._drop(batch.parts)

    def give_back(self, batch: Batch) -> int:
        """Return a batch to Pub/Sub for immediate redelivery; return the number of its messages."""
        ids = batch.ids()
        self._ack_leases.give_back(ids)
        self.give_up(batch)
        return len(ids)

    def commit_batch(self, batch: Batch) -> None:
        """Commit the batch and acknowledge it, learn from it, and wait for the quotas, in this order.

        Raises:
            RefeedError: a task reported the error, or a table lacks its part: its messages are redelivered, or the
                next start settles the attempt.
        """
        with self._own_turn(batch):
            self._settle_batch(batch)
        self._wait_until(batch.next_at)

    @contextmanager
    def _own_turn(self, batch: Batch) -> Iterator[None]:
        """Hold the turn while the block runs; while a pause holds it, the leases of the batch are extended."""
        if not self.turn.acquire(blocking=False):
            with self.hold(batch):
                self.turn.acquire()
        try:
            yield
        finally:
            self.turn.release()

    def _settle_batch(self, batch: Batch) -> None:
        self._totals["faults"] += batch.faults
        if batch.error is not None:
            self.give_up(batch)
            raise batch.error
        has_messages = batch.done_ids().num_rows > 0
        if batch.outputs:
            with self.hold(batch):
                if has_messages:
                    began = time.monotonic()
                    self._commit_parts(batch)
                    self._batch_seconds = round(time.monotonic() - began, 3)
                self._learn(batch)
        self._journal.prune(has_messages=has_messages)
        self._report()

    def _commit_parts(self, batch: Batch) -> None:
        self._prepare(batch)
        new = find_new(batch, self._journal, self._targets)
        parts, held = new.parts, new.done
        self._drop(new.dropped)
        self._totals["redelivered"] += new.redelivered
        if new.redelivered:
            self._expect_again(held)
        if parts:
            entry = self._journal.write(self._next_attempt(), held)
            committed, failure = self._commit(parts, entry, held)
            if committed:
                now = time.time()
                self._committed_at = {"first_commit_at": now, **self._committed_at, "last_commit_at": now}
            if failure is None:
                if any(is_topic(name) for name in parts):
                    # A topic can't be queried: after a crash from here on, the journal counts its messages as
                    # published.
                    entry = self._journal.move(entry, EntryState.RECOVERED)
                failed = self._acknowledge(held, batch.deadline, but=new.again)
                failpoint.hit("ack.after")
                self._journal.finish(entry, failed)
                failpoint.hit("journal.done")
            else:
                self._settle(entry, held, parts, committed, failure, again=new.again, deadline=batch.deadline)
        elif (failed := self._acknowledge(held, batch.deadline, but=new.again)).num_rows:
            # Their present entry may be forgotten before they are redelivered.
            self._journal.remember(self._next_attempt(), failed)
        if new.again.num_rows:
            self._ack_leases.give_back(new.again)
            self._totals["given_back"] += new.again.num_rows
        tables = {name: found for name, found in parts.items() if not is_topic(name)}
        self._totals["messages"] += sum(part.rows for found in tables.values() for part in found)
        self._totals["commits"] += len(tables)
        self._work.count(self._totals, batch.outputs, parts, new.is_written)
        if tables:
            self._compactor.touch({name: len(found) for name, found in tables.items()})

    def _prepare(self, batch: Batch) -> None:
        """Take the batch's tables, so that their ids are known and the attempt is newer than any in them.

        Raises:
            RefeedError: a table can't be taken, or the previous attempt is still half done; the batch is given up.
        """
        try:
            self._finish_half_done()
            for one in batch.parts:
                self.take(one.table)
        except RefeedError:
            self.give_up(batch)
            raise

    def _commit(
        self, parts: Mapping[str, Sequence[Any]], entry: Entry, ids: pa.Table
    ) -> tuple[frozenset[str], RefeedError | None]:
        """Commit each table's parts; return the tables that have their parts, and the error of another table."""
        try:
            with self.lock:
                return self._targets.commit(parts, entry.attempt, ids, entry.commit_id)
        except RefeedError as exc:
            return frozenset(), exc

    def _settle(
        self,
        entry: Entry,
        held: pa.Table,
        parts: Mapping[str, Sequence[Any]],
        committed: frozenset[str],
        failure: RefeedError,
        *,
        again: pa.Table,
        deadline: AckDeadline,
    ) -> None:
        """Finish the tables that have their parts, give up the rest, and raise the error of the rest."""
        if isinstance(failure, CommitOutcomeUnknownError):
            # The entry stays pending: the next start asks each table.
            raise failure
        self._drop_parts({name: parts[name] for name in parts.keys() - committed})
        # A table with only known messages has no parts to commit; it has all of its messages already.
        names = tables_of(held)
        done = ids_of_tables(held, [name for name in names if name in committed or name not in parts])
        if done.num_rows:
            missing = ids_of_tables(held, [name for name in names if name in parts and name not in committed])
            self._finish_some(entry, done, deadline, but=concat_ids([missing, again]))
        else:
            self._journal.forget(entry)
        raise failure

    def _finish_some(self, entry: Entry, done: pa.Table, deadline: AckDeadline, *, but: pa.Table) -> None:
        self._half_done = entry, done, self._acknowledge(done, deadline, but=but)
        # With a full disk the next batch tries again, before it commits.
        with suppress(StorageFullError):
            self._finish_half_done()

    def _finish_half_done(self) -> None:
        """Remove the messages of failed tables from the entry of the half-done attempt.

        Before that the journal knows messages that no table has, so that no lookup is allowed.

        Raises:
            StorageFullError: the disk is full; the entry stays pending.
        """
        if self._half_done is not None:
            entry, done, failed = self._half_done
            self._journal.finish(self._journal.keep_only(entry, done), failed)
            self._half_done = None

    def _learn(self, batch: Batch) -> None:
        """Widen tables for messages that do not fit yet, then return these messages for redelivery.

        The next batch is planned only after that, so that no file with an older schema waits for its commit.
        """
        is_room = self._work.learn(self, batch.outputs)
        unfit = batch.unfit()
        if unfit.num_rows:
            self._totals["delayed_by_new_columns"] += unfit.num_rows
            # With a full disk they are redelivered when their leases expire, instead of again and again.
            if is_room:
                self._ack_leases.give_back(unfit)

    def _next_attempt(self) -> int:
        with self._numbers:
            self._last_attempt += 1
            return self._last_attempt

    def _acknowledge(self, ids: pa.Table, deadline: AckDeadline, *, but: pa.Table) -> pa.Table:
        """Acknowledge ``ids``; return the ids that failed, which must stay known until they are redelivered.

        A message with rows in several targets is acknowledged once, and not at all if one of its rows is in
        ``but``.
        """
        pulled = without_topics(ids)
        if but.num_rows:
            pulled = pulled.filter(pc.invert(_is_same(pulled, but)))
        failed = self._ack_leases.acknowledge(pulled, deadline)
        self._totals["faults"] += pc.count_distinct(failed.column("subscription").cast(pa.string())).as_py()
        if not but.num_rows and pulled.num_rows == ids.num_rows:
            return failed
        left = _is_same(ids, failed)
        return ids.filter(pc.or_(left, _is_same(ids, but)) if but.num_rows else left)

    def _expect_again(self, ids: pa.Table) -> None:
        if self._learner is not None:
            self._learner.expect_again(ids)

    def _drop(self, parts: Iterable[TargetPart]) -> None:
        for one in parts:
            self._drop_parts({one.table: [one.part]})

    def _drop_parts(self, parts: Mapping[str, Sequence[Any]]) -> None:
        for table, part in ((table, part) for table, found in parts.items() for part in found):
            try:
                self._targets.drop(table, part)
            except RefeedError as exc:
                _log.warning("part_not_dropped", table=table, error=exc.message)

    def _wait_until(self, at: float) -> None:
        """Wait for the warehouse's quotas, without holding messages, unless the stream drains."""
        while time.monotonic() < at and not (self.stop_file is not None and self.stop_file.exists()):
            time.sleep(_POLL_SECONDS)

    def _report(self) -> None:
        self.status.write(
            totals=dict(self._totals),
            batch_seconds=self._batch_seconds,
            **self._committed_at,
            **self._work.status(),
        )
        now = time.monotonic()
        if now - self._totals_logged_at >= _LOG_TOTALS_EVERY_SECONDS:
            self._totals_logged_at = now
            _log.info(f"{self.name}_totals", **self._totals)


def _is_same(ids: pa.Table, others: pa.Table) -> pa.ChunkedArray:
    """Return for each of ``ids`` whether its delivery is among ``others`` too."""
    return pc.is_in(ids.column("ack_id"), value_set=others.column("ack_id"))
