"""Attempts: noted through a fence before their commit, completed by every start that finds them noted."""

import json
from collections.abc import Mapping
from typing import Any, Final, Protocol

import pyarrow as pa
import structlog

from connectors.bigquery.client import Clients
from connectors.bigquery.table_id import TableId
from connectors.bigquery.writes.appender import StreamAppender
from connectors.bigquery.writes.attempt_notes import COMMIT_ID, AttemptNote, AttemptNotes
from connectors.bigquery.writes.leases import BigQueryLeases, LeaseState
from connectors.bigquery.writes.write_streams import may_be_gone
from model import failpoint
from model.archive import Attempt
from model.errors import CommitOutcomeUnknownError, LeaseLostError, WarehouseError, WarehouseUnavailableError

_log = structlog.get_logger(__name__)

# How long a commit is driven before the stream ends; the next start goes on with it.
COMMIT_SECONDS: Final = 300.0


class Driver(Protocol):
    """Commits the streams and rows that a note names; a repetition changes nothing."""

    def drive(self, note: AttemptNote, *, seconds: float) -> frozenset[str] | None:
        """Return the full names of the tables whose rows are committed for good; None when no row ever will be."""


class Attempts:
    """The attempts of streams that write to ``anchor`` and tables beside it; one object per thread.

    A commit is two steps: a note through the lease's fence, then the commit itself. From the note on the
    attempt is completed by every start that finds it, so that no crash leaves an outcome open. Before the note
    nothing can be committed, and a stream that has lost its lease can't note anything.
    docs/decisions/0010-bigquery-append.md says why.
    """

    def __init__(self, clients: Clients, anchor: TableId, notes: AttemptNotes, driver: Driver) -> None:
        self.leases = BigQueryLeases(clients, anchor, notes, self._open_epoch)
        self._clients = clients
        self._notes = notes
        self._driver = driver
        self._fences: dict[str, tuple[LeaseState, StreamAppender]] = {}

    def _open_epoch(self, lease: str, state: LeaseState) -> None:
        """Begin to note attempts under a lease that was taken; what its last holder had noted is settled first.

        Where it can't be settled, nothing can be committed under the lease until it is taken again.
        """
        self._fences[lease] = (state, StreamAppender(self._clients, state.fence))
        try:
            found = self._notes.newest(lease)
            if found is not None:
                self._settle(found)
        except WarehouseError:
            del self._fences[lease]
            raise

    def epoch(self, lease: str) -> int:
        """Return the epoch under which this object holds the lease, 0 before it was taken."""
        return self._fences[lease][0].epoch if lease in self._fences else 0

    def last_noted(self, stream: str) -> int:
        """Return the number of the stream's newest attempt that was noted, 0 when there is none."""
        return self._notes.last_attempt(stream)

    def settle(self, attempt: Attempt) -> frozenset[str] | None:
        """Settle an attempt that a crash left open; return the tables that have its rows, None when none has.

        One that was noted is committed now if it was not; one that was not noted never will be.
        """
        note = self._notes.find(attempt)
        return None if note is None else self._settle(note)

    def commit(
        self, document: Mapping[str, Mapping[str, Any]], attempt: Attempt, ids: pa.Table | None
    ) -> frozenset[str] | None:
        """Note ``document``, by table, then commit the rows that it names until their outcome is known.

        Returned are the tables that have their rows, None when BigQuery dropped all rows before they were
        committed. ``ids`` (topic, message_id, publish_time) are kept for an earlier Refeed that takes the lease
        over.

        Raises:
            LeaseLostError: another stream holds the lease; nothing was added and nothing ever will be.
            WarehouseError: nothing was added.
            CommitOutcomeUnknownError: it was noted and not yet seen to its end; :meth:`settle` goes on with it.
        """
        if attempt.lease not in self._fences or self.epoch(attempt.lease) != attempt.lease_epoch:
            raise LeaseLostError(lease=attempt.lease)
        failpoint.hit("commit.before")
        if attempt.commit_id is not None:
            # Beside what an earlier Refeed reads of a table.
            document = {name: {**entry, COMMIT_ID: attempt.commit_id} for name, entry in document.items()}
        note = AttemptNote(
            attempt.lease, attempt.lease_epoch, attempt.stream, attempt.number, json.dumps(document)
        )
        self._add_note(note, attempt, ids)
        failpoint.hit("bigquery.noted")
        try:
            outcome = self._driver.drive(note, seconds=COMMIT_SECONDS)
        except CommitOutcomeUnknownError:
            raise
        except WarehouseError as exc:
            # It is noted and may still be committed: it must not be treated as undone.
            raise CommitOutcomeUnknownError(f"The attempt was recorded, but not committed: {exc.message}") from exc
        if outcome is None:
            self._abandon(note)
        else:
            failpoint.hit("commit.after")
        return outcome

    def _add_note(self, note: AttemptNote, attempt: Attempt, ids: pa.Table | None) -> None:
        """Note the attempt; an error that may hide a note is an unknown outcome."""
        state, appender = self._fences[note.lease]
        before = appender.offset
        try:
            try:
                self._append_note(note, attempt, ids)
            except WarehouseError as exc:
                if appender.offset != before or not may_be_gone(exc):
                    raise
                # The epoch is still ours (_append_note has looked), so that no successor has closed the fence:
                # BigQuery has forgotten or finalized it, as it does with idle streams.
                state = self.leases.replace_fence(note.lease, state.epoch)
                self._fences[note.lease] = (state, StreamAppender(self._clients, state.fence))
                self._append_note(note, attempt, ids)
        except WarehouseUnavailableError as exc:
            raise CommitOutcomeUnknownError(
                f"It is unknown whether the attempt was recorded: {exc.message}"
            ) from exc

    def _append_note(self, note: AttemptNote, attempt: Attempt, ids: pa.Table | None) -> None:
        state, appender = self._fences[note.lease]
        try:
            self._notes.add(appender, note, ids)
        except WarehouseUnavailableError:
            raise
        except WarehouseError as exc:
            if self.leases.epoch(note.lease) == state.epoch:
                raise
            # The stream that took over has closed the fence; an earlier try may have passed it.
            if self._notes.find(attempt) is not None:
                raise CommitOutcomeUnknownError(
                    "After the attempt was recorded, another stream took over the lease."
                ) from exc
            raise LeaseLostError(lease=note.lease) from exc

    def _settle(self, note: AttemptNote) -> frozenset[str] | None:
        outcome = self._driver.drive(note, seconds=COMMIT_SECONDS)
        if outcome is None:
            self._abandon(note)
        _log.info("attempt_settled", attempt=note.attempt, stream=note.stream, is_in=outcome is not None)
        return outcome

    def _abandon(self, note: AttemptNote) -> None:
        _, appender = self._fences[note.lease]
        self._notes.abandon(appender, note)
