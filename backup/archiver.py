"""One batch's way from its tasks' parts to the archive: known ids out, journal, commit, acks, in this order."""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from backup.source import PulledPart
from connectors.pubsub.source import TaskResult
from model import failpoint
from model.archive import Attempt
from model.errors import CommitOutcomeUnknownError, RefeedError
from streams.ack_leases import AckLeases, raise_reported, read_faults
from streams.journal import IDS_SCHEMA, Entry, EntryState, Journal, concat_ids, is_among
from streams.status import StatusFile
from warehouse.archive import Archive, ArchivePart

_log = structlog.get_logger(__name__)

_COMPACT_AT_FILES: Final = 64
_COMPACT_EVERY_SECONDS: Final = 30.0
_COUNTED: Final = ("messages", "dead_letters", "replays", "redelivered", "faults")
_REPORT_EVERY_SECONDS: Final = 10.0


@dataclass(slots=True)
class Pulled:
    """What one task handed over; ``ids`` are those that its part, if it has one, still stands for."""

    part: Any
    ids: pa.Table
    replays: pa.Table

    @classmethod
    def of(cls, archive: Archive, encoded: bytes) -> Self:
        """Return what a task encoded."""
        found = PulledPart.decode(encoded)
        return cls(None if found.part is None else archive.parse_part(found.part), found.ids, found.replays)


@dataclass(frozen=True, slots=True)
class PulledParts:
    """What the tasks of one batch handed over, and how many of their subscriptions could not be pulled."""

    pulled: list[Pulled]
    faults: int

    def ids(self) -> pa.Table:
        """Return the ids of every message that its parts stand for, and of the replays."""
        if not self.pulled:
            return IDS_SCHEMA.empty_table()
        # The empty one keeps a batch that brought nothing from having no schema.
        tables = [table for one in self.pulled for table in (one.ids, one.replays)]
        return concat_ids([IDS_SCHEMA.empty_table(), *tables])


class Archiver:
    """Commits what the tasks wrote and acknowledges it; the one writer of its journal.

    The order is the promise. Ids are journaled before the commit, so that after a crash the archive says which
    attempt is in; they are acknowledged after it, and only they. A message that comes again while its id is
    known is acknowledged and not written again.
    """

    def __init__(
        self,
        *,
        archive: Archive,
        journal: Journal,
        channel: Any,
        project: str,
        stream: str,
        lease: str,
        lease_epoch: int,
        status: StatusFile,
    ) -> None:
        self.archive = archive
        self.status = status
        self._journal = journal
        self._ack_leases = AckLeases(channel, project)
        self._stream = stream
        self._lease = lease
        self._lease_epoch = lease_epoch
        self._last_attempt = max(journal.last_attempt(), archive.committed_attempt(stream))
        # What is counted from the start is 0 and not unknown while there was none.
        self._totals: Counter[str] = Counter(dict.fromkeys(_COUNTED, 0))
        self._batch_seconds: float | None = None
        self._reported_at = time.monotonic()
        self._compactor: threading.Thread | None = None
        self._compacted_at = time.monotonic()

    def recover(self) -> None:
        """Settle what a crash left between journal and acks: acknowledge what is in the archive, forget the rest.

        What another home's stream archived and perhaps did not acknowledge is known from now on, where the
        archive can tell.
        """
        for entry in self._journal.entries(EntryState.PENDING):
            if self.archive.settle(self._attempt(entry.attempt)):
                self._acknowledge(entry.read_ids())
                self._journal.move(entry, EntryState.RECOVERED)
                _log.info("attempt_recovered", attempt=entry.attempt)
            else:
                self._journal.forget(entry)
                _log.info("attempt_forgotten", attempt=entry.attempt)
        inherited = self.archive.inherited_ids(self._stream)
        if inherited.num_rows:
            self._last_attempt += 1
            self._journal.remember(self._last_attempt, inherited)
            _log.info("ids_inherited", messages=inherited.num_rows)

    def open_batch(self, rows: Sequence[TaskResult]) -> PulledParts:
        """Return what the tasks of one batch handed over.

        Raises:
            RefeedError: a task reported it; what the others wrote is given up.
        """
        failpoint.hit("batch.collected")
        faults = read_faults(rows)
        pulled = [Pulled.of(self.archive, row.result) for row in rows if row.result is not None]
        batch = PulledParts(pulled, len(faults))
        try:
            raise_reported(rows)
        except RefeedError:
            self.give_up(batch)
            raise
        return batch

    def hold(self, batch: PulledParts) -> AbstractContextManager[None]:
        """Extend the leases of the batch's messages for as long as the block runs."""
        return self._ack_leases.extended(batch.ids())

    def give_up(self, batch: PulledParts) -> None:
        """Let go of a batch that will not be archived: its messages come again."""
        for one in batch.pulled:
            self._drop(one.part)

    def archive_batch(self, batch: PulledParts) -> None:
        """Commit the batch and acknowledge it, before the next one is begun.

        Raises:
            RefeedError: it is not in the archive and its messages come again, or the next start will say so.
        """
        if batch.faults:
            self._totals["faults"] += batch.faults
        if batch.pulled:
            began = time.monotonic()
            with self.hold(batch):
                self._archive_parts(batch)
            self._batch_seconds = round(time.monotonic() - began, 3)
        self._journal.prune(has_messages=bool(batch.pulled))
        self._report()

    def _archive_parts(self, batch: PulledParts) -> None:
        parts, fresh, returned = self._without_known(batch.pulled)
        held = batch.ids()
        if parts:
            self._last_attempt += 1
            entry = self._journal.write(self._last_attempt, held)
            self._commit(entry, parts, concat_ids(fresh))
            failed = self._acknowledge(held)
            failpoint.hit("ack.after")
            self._journal.finish(entry, failed)
            failpoint.hit("journal.done")
        elif (failed := self._acknowledge(held)).num_rows:
            # They are known by an entry that may be forgotten before they come again.
            self._last_attempt += 1
            self._journal.remember(self._last_attempt, failed)
        for ids in returned:
            self._ack_leases.give_back(ids)
            self._totals["given_back"] += ids.num_rows
        self._totals["messages"] += sum(part.rows for part in parts)
        self._totals["file_bytes"] += sum(part.size_bytes for part in parts)
        self._totals["replays"] += sum(one.replays.num_rows for one in batch.pulled)
        if dead_letters := sum(part.dead_letters for part in parts):
            self._totals["dead_letters"] += dead_letters
        if parts:
            self._totals["commits"] += 1
            self._compact_aside()

    def _without_known(self, pulled: list[Pulled]) -> tuple[list[ArchivePart], list[pa.Table], list[pa.Table]]:
        """Return the parts to commit, the ids that they hold, and those of messages that have to come again.

        Rows whose ids are known were delivered twice and are left out. An archive that takes a part whole or
        not at all takes none of it then: what was new in it is given back, and comes again without the rest.
        """
        written = [one for one in pulled if one.part is not None]
        if not written:
            return [], [], []
        is_known = self._journal.find_known(pa.concat_tables([one.ids for one in written]).unify_dictionaries())
        parts: list[ArchivePart] = []
        fresh: list[pa.Table] = []
        returned: list[pa.Table] = []
        at = 0
        for one in written:
            flags = is_known.slice(at, one.ids.num_rows)
            at += one.ids.num_rows
            repeated = pc.sum(flags).as_py()
            part, unknown = one.part, one.ids.filter(pc.invert(flags)) if repeated else one.ids
            if repeated:
                self._totals["redelivered"] += repeated
                part = self.archive.without(one.part, flags)
                if part is None:
                    self._drop(one.part)
                if part is None and repeated < one.ids.num_rows:
                    returned.append(unknown)
                    one.ids = one.ids.filter(flags)
            if part is not None:
                parts.append(part)
                fresh.append(unknown)
        if returned:
            # A row may have been left out because of an earlier one, in a part that is not taken either.
            again = pa.concat_tables(returned)
            for one in written:
                is_again = is_among(one.ids, again)
                returned.append(one.ids.filter(is_again))
                one.ids = one.ids.filter(pc.invert(is_again))
        return parts, fresh, returned

    def _commit(self, entry: Entry, parts: list[ArchivePart], ids: pa.Table) -> None:
        try:
            self.archive.commit(parts, self._attempt(entry.attempt), ids)
        except CommitOutcomeUnknownError:
            # The journal's entry stays pending: the next start finds out.
            raise
        except RefeedError:
            self._journal.forget(entry)
            for part in parts:
                self._drop(part)
            raise

    def _attempt(self, number: int) -> Attempt:
        return Attempt(self._stream, number, self._lease, self._lease_epoch)

    def _acknowledge(self, ids: pa.Table) -> pa.Table:
        """Acknowledge ``ids`` and return those that failed: they come again and have to be known then."""
        failed = self._ack_leases.acknowledge(ids)
        if failed.num_rows:
            self._totals["faults"] += pc.count_distinct(failed.column("subscription").cast(pa.string())).as_py()
        return failed

    def _compact_aside(self) -> None:
        """Merge small files in a thread when they pile up; the stream goes on committing meanwhile."""
        now = time.monotonic()
        is_running = self._compactor is not None and self._compactor.is_alive()
        if is_running or now - self._compacted_at < _COMPACT_EVERY_SECONDS:
            return
        self._compacted_at = now

        def compact() -> None:
            # A table object of its own: the stream's moves on with each commit.
            own = self.archive.another()
            try:
                removed = own.compact(max_small_files=_COMPACT_AT_FILES)
            except RefeedError as exc:
                _log.warning("compaction_failed", code=exc.code, error=exc.message)
            else:
                if removed:
                    _log.info("compacted", files_removed=removed)

        self._compactor = threading.Thread(target=compact, name="compact", daemon=True)
        self._compactor.start()

    def _drop(self, part: ArchivePart | None) -> None:
        try:
            if part is not None:
                self.archive.drop(part)
        except RefeedError as exc:
            _log.warning("part_not_dropped", error=exc.message)

    def _report(self) -> None:
        self.status.write(
            state="running",
            totals=dict(self._totals),
            batch_seconds=self._batch_seconds,
            last_batch_at=time.time(),
        )
        now = time.monotonic()
        if now - self._reported_at >= _REPORT_EVERY_SECONDS:
            self._reported_at = now
            _log.info("backup_totals", **self._totals)
