"""One batch's way from files to the archive: known ids out, journal, commit, acks, in this order."""

import threading
import time
from collections import Counter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from backup.source import PulledFile
from connectors.lake.archive import LakeArchive
from connectors.lake.files import WrittenFile
from jobs.stream.hold import Hold, raise_reported, read_faults
from jobs.stream.journal import EntryState, Journal, concat_ids
from jobs.stream.status import StatusFile
from model import failpoint
from model.archive import Attempt
from model.errors import CommitOutcomeUnknownError, RefeedError

_log = structlog.get_logger(__name__)

_COMPACT_AT_FILES: Final = 64
_COMPACT_EVERY_SECONDS: Final = 30.0
_REPORT_EVERY_SECONDS: Final = 10.0


class Archiver:
    """Commits what the tasks wrote and acknowledges it; the one writer of its journal.

    The order is the promise. Ids are journaled before the commit, so that after a crash the archive says which
    attempt is in; they are acknowledged after it, and only they. A message that comes again while its id is
    known is acknowledged and not written again.
    """

    def __init__(
        self,
        *,
        archive: LakeArchive,
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
        self.failure: RefeedError | None = None
        self._journal = journal
        self._hold = Hold(channel, project)
        self._stream = stream
        self._lease = lease
        self._lease_epoch = lease_epoch
        self._writer = archive.writer()
        self._last_attempt = max(journal.last_attempt(), archive.committed_attempt(stream))
        self._totals: Counter[str] = Counter()
        self._reported_at = time.monotonic()
        self._compactor: threading.Thread | None = None
        self._compacted_at = time.monotonic()

    def recover(self) -> None:
        """Settle what a crash left between journal and acks: acknowledge what is in the archive, forget the rest.

        Only the newest attempt can be under way, so the archive's number for the stream is compared as it is:
        where the two do not tell one story, a message that comes twice is better than one that is lost.
        """
        committed = self.archive.committed_attempt(self._stream)
        for entry in self._journal.entries(EntryState.PENDING):
            if entry.attempt == committed:
                self._acknowledge(entry.read_ids())
                self._journal.move(entry, EntryState.RECOVERED)
                _log.info("attempt_recovered", attempt=entry.attempt)
            else:
                self._journal.forget(entry)
                _log.info("attempt_forgotten", attempt=entry.attempt)

    def archive_batch(self, results: Any, batch_id: int) -> None:
        """Take one batch's results, as Spark's foreachBatch hands them over.

        The batch id is not used: a batch that Spark plans again holds other messages.
        """
        try:
            self._archive_rows(results.collect())
        except RefeedError as exc:
            # Spark turns it into an exception of its own; the job wants this one.
            self.failure = exc
            _log.error("batch_failed", batch=batch_id, code=exc.code, error=exc.message)
            raise

    def _archive_rows(self, rows: list[Any]) -> None:
        failpoint.hit("batch.collected")
        self.failure = None
        if faults := read_faults(rows):
            self._totals["faults"] += len(faults)
        pulled = [PulledFile.decode(bytes(row.result)) for row in rows if row.result is not None]
        try:
            raise_reported(rows)
        except RefeedError:
            for part in pulled:
                self._drop(part.file)
            raise
        if pulled:
            self._archive_files(pulled)
        self._journal.prune()
        self._report()

    def _archive_files(self, pulled: list[PulledFile]) -> None:
        held = concat_ids([table for part in pulled for table in (part.ids, part.replays)])
        with self._hold.extended(held):
            files = self._without_known(pulled)
            if files:
                self._last_attempt += 1
                entry = self._journal.write(self._last_attempt, held)
                self._commit(files)
                self._acknowledge(held)
                failpoint.hit("ack.after")
                self._journal.move(entry, EntryState.DONE)
                failpoint.hit("journal.done")
            else:
                self._acknowledge(held)
        self._totals["messages"] += sum(file.rows for file in files)
        self._totals["file_bytes"] += sum(file.size_bytes for file in files)
        self._totals["replays"] += sum(part.replays.num_rows for part in pulled)
        if files:
            self._totals["commits"] += 1
            self._compact_aside()

    def _without_known(self, pulled: list[PulledFile]) -> list[WrittenFile]:
        """Return the files to commit; rows whose ids are known were delivered twice and are left out."""
        written = [part for part in pulled if part.file is not None]
        if not written:
            return []
        is_known = self._journal.find_known(pa.concat_tables([part.ids for part in written]).unify_dictionaries())
        files: list[WrittenFile] = []
        at = 0
        for part in written:
            flags = is_known.slice(at, part.ids.num_rows)
            at += part.ids.num_rows
            repeated = pc.sum(flags).as_py()
            file: WrittenFile | None = part.file
            if repeated and part.file is not None:
                file = self._writer.write_without(part.file, flags)
                self._writer.delete(part.file)
                self._totals["redelivered"] += repeated
            if file is not None:
                files.append(file)
        return files

    def _commit(self, files: list[WrittenFile]) -> None:
        attempt = Attempt(self._stream, self._last_attempt, self._lease, self._lease_epoch)
        try:
            self.archive.commit(files, attempt)
        except CommitOutcomeUnknownError:
            # The journal's entry stays pending: the next start finds out.
            raise
        except RefeedError:
            for entry in self._journal.entries(EntryState.PENDING):
                self._journal.forget(entry)
            for file in files:
                self._drop(file)
            raise

    def _acknowledge(self, ids: pa.Table) -> None:
        """Acknowledge ``ids``; what fails comes again and is known by its id."""
        if failed := self._hold.acknowledge(ids):
            self._totals["faults"] += failed

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

    def _drop(self, file: WrittenFile | None) -> None:
        try:
            if file is not None:
                self._writer.delete(file)
        except RefeedError as exc:
            _log.warning("file_not_deleted", file=file.path if file else None, error=exc.message)

    def _report(self) -> None:
        self.status.write(state="running", totals=dict(self._totals), last_batch_at=time.time())
        now = time.monotonic()
        if now - self._reported_at >= _REPORT_EVERY_SECONDS:
            self._reported_at = now
            _log.info("backup_totals", **self._totals)
