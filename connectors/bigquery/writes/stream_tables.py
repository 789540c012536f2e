"""The tables of rows that one stream writes in BigQuery: one lease, one note an attempt, a commit a table."""

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from connectors.bigquery.client import Clients, Connection
from connectors.bigquery.queries.since import delete_since, read_between, read_since
from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables.catalog import apply
from connectors.bigquery.tables.cells import read_columns
from connectors.bigquery.tables.specs import ATTEMPTS, attempts_spec
from connectors.bigquery.writes.attempt_notes import NOTED_IDS_SCHEMA, AttemptNote, AttemptNotes
from connectors.bigquery.writes.attempts import Attempts
from connectors.bigquery.writes.large_rows import drop_large_rows
from connectors.bigquery.writes.leases import BigQueryLeases
from connectors.bigquery.writes.row_table import BigQueryRowTable
from connectors.bigquery.writes.row_writer import BigQueryRowPart
from connectors.bigquery.writes.stream_commit import WriteStreamCommitter
from connectors.bigquery.writes.stream_ends import StreamBudget, StreamEnds, created_streams, flushes_of
from connectors.bigquery.writes.write_streams import finalize_stream
from model import failpoint
from model.archive import Attempt, IdSpan
from model.errors import RefeedError, TableNotFoundError, WarehouseUnavailableError
from model.read_budget import ReadBudget
from model.schema import RowSchema
from model.settings import BigQuerySettings
from model.table import Partitioning
from model.window import Window

_COMMITS_AT_ONCE: Final = 8
# A stream that is not finalized costs one more part, no row.
_DROP_SECONDS: Final = 2.0
_IDS_SCHEMA: Final = NOTED_IDS_SCHEMA.append(pa.field("table", pa.string()))


class RowCommitter:
    """Drives a noted attempt over many tables to its end, each table by itself.

    As with an archive a step can be done again without doing more. A table whose streams BigQuery has dropped
    uncommitted, or that somebody deleted, has none of the attempt's rows; the others have theirs.
    """

    def __init__(self, clients: Clients) -> None:
        self._committer = WriteStreamCommitter(clients)

    def drive(self, note: AttemptNote, *, seconds: float) -> frozenset[str] | None:
        """Commit what ``note`` says and return the full names of the tables that have their rows, None for none.

        Raises:
            CommitOutcomeUnknownError, WarehouseError: the outcome of one table at least is unknown; call it again.
        """
        ends_at = time.monotonic() + seconds
        entries: dict[str, dict[str, Any]] = json.loads(note.document)
        with ThreadPoolExecutor(min(_COMMITS_AT_ONCE, len(entries))) as pool:
            running = {name: pool.submit(self._commit, note, name, entries[name], ends_at) for name in entries}
        return frozenset(name for name, future in running.items() if future.result()) or None

    def _commit(self, note: AttemptNote, name: str, entry: Mapping[str, Any], ends_at: float) -> bool:
        table = TableId.parse(name, "")
        is_in = self._committer.commit_streams(table, entry["streams"], ends_at)
        if not is_in and not self._has_rows(table, entry["ingest_times"]):
            return False
        # A note of an earlier Refeed has none.
        if not self._committer.flush_streams(table, entry.get("flushes", ()), ends_at):
            return False
        # Other tables may be committed already, or not yet.
        failpoint.hit("bigquery.committed")
        self._committer.insert_large(note, table, entry["staged"], ends_at)
        return True

    def _has_rows(self, table: TableId, ingest_times: Sequence[str]) -> bool:
        try:
            return self._committer.has_rows_of(table, "ingest_time", ingest_times, use="pipeline")
        except TableNotFoundError:
            return False


class BigQueryRowTables:
    """The tables that the stream ``stream`` writes under the lease ``lease``.

    They keep what :class:`warehouse.rows.RowTables` promises.

    ``anchor`` is the table beside which attempts and lease are kept. One note stands for an attempt over all of
    its tables, so that a batch over many tables costs one more append and not one a table.
    """

    def __init__(
        self,
        project: str,
        anchor: str,
        settings: BigQuerySettings,
        partitioning: Partitioning = "day",
        *,
        stream: str,
        lease: str,
    ) -> None:
        self._settings = settings
        self._partitioning = partitioning
        self._stream = stream
        self._lease = lease
        self._project = project
        self._anchor = TableId.parse(anchor, project)
        self._clients = Clients(Connection.of(project, settings))
        notes = AttemptNotes(self._clients, self._anchor.companion(ATTEMPTS), _IDS_SCHEMA)
        self._attempts = Attempts(self._clients, self._anchor, notes, RowCommitter(self._clients))
        # Schemas follow the registry in a thread of their own, beside the one that commits.
        self._schema_clients = Clients(Connection.of(project, settings))
        # Nobody else changes these tables while this stream holds the lease.
        self._known: dict[str, RowSchema] = {}
        # What keeps the streams of this object's tasks apart from those of another driver's.
        self._run = uuid.uuid4().hex
        self._ends = StreamEnds()
        self._budget = StreamBudget(settings.streams_per_hour)
        self._last_noted: int | None = None

    def create(self) -> None:
        """Create what the tables need beside themselves; again is fine."""
        apply(self._clients, [attempts_spec(self._anchor, self._settings)])

    def open(self, name: str) -> BigQueryRowTable:
        """Return the table ``name``, which need not exist yet."""
        return BigQueryRowTable(
            self._schema_clients, name, self._settings, self._partitioning, known=self._known, run=self._run
        )

    def leases(self) -> BigQueryLeases:
        """Return the leases beside the anchor; taking one also settles what its last holder left."""
        return self._attempts.leases

    def take(self, name: str) -> int:  # noqa: ARG002  the lease is one for all tables
        """Return the number of the stream's newest attempt that was noted."""
        if self._last_noted is None:
            self._last_noted = self._attempts.last_noted(self._stream)
        return self._last_noted

    def settle(self, number: int, names: Sequence[str], commit_id: int | None = None) -> frozenset[str]:
        """Return which of ``names`` have the rows of the attempt ``number``, for good."""
        return self._named(self._attempts.settle(self._attempt(self._stream, number, commit_id)), names)

    def read_since(
        self, name: str, columns: Sequence[str], publish_column: str, span: IdSpan
    ) -> Iterator[pa.RecordBatch]:
        """Yield ``columns`` of the rows in ``span``; REFEED_BIGQUERY_MERGE_MAX_BYTES_BILLED caps the query."""
        starts = {publish_column: span.published_since, "ingest_time": span.ingested_since}
        if self.open(name).exists():
            limit = self._settings.merge_max_bytes_billed
            yield from read_since(
                self._schema_clients, self._id(name), columns, starts, maximum_bytes_billed=limit
            )

    def read_published(
        self, name: str, columns: Sequence[str], publish_column: str, window: Window, budget: ReadBudget
    ) -> Iterator[pa.RecordBatch]:
        """Yield ``columns`` of the rows published in ``window``; ``budget`` pays for the query."""
        found = self.open(name).columns()
        if found is not None:
            cells = read_columns(found, "t")
            selected = {column: cells[column] for column in columns}
            during = (publish_column, window)
            yield from read_between(self._schema_clients, self._id(name), selected, during, budget)

    def delete_since(self, name: str, since: datetime) -> int:
        """Delete the rows that came in at or after ``since``, by one statement, and return how many there were.

        Raises:
            QueryTooLargeError: it would be billed for more than REFEED_BIGQUERY_MERGE_MAX_BYTES_BILLED.
            WarehouseError: BigQuery failed; nothing is deleted, or all of it, which the next call finds.
        """
        if not self.open(name).exists():
            return 0
        limit = self._settings.merge_max_bytes_billed
        return delete_since(self._schema_clients, self._id(name), since, maximum_bytes_billed=limit)

    def commit(
        self,
        parts: Mapping[str, Sequence[BigQueryRowPart]],
        number: int,
        ids: pa.Table,
        commit_id: int | None = None,
    ) -> tuple[frozenset[str], RefeedError | None]:
        """Add ``parts``, by table; return the tables that have theirs, and what kept the others.

        Raises:
            LeaseLostError: another stream holds the lease; nothing was added and nothing ever will be.
            WarehouseError: nothing was added.
            CommitOutcomeUnknownError: it was noted and not yet seen to its end; :meth:`settle` goes on with it.
        """
        if not all(self.which_follow([part for found in parts.values() for part in found])):
            raise WarehouseUnavailableError("Earlier rows of the same write stream were dropped.")
        noted_ids = ids.select(_IDS_SCHEMA.names).cast(_IDS_SCHEMA)
        document = {str(self._id(name)): _entry(found) for name, found in parts.items()}
        outcome = self._attempts.commit(document, self._attempt(self._stream, number, commit_id), noted_ids)
        committed = self._named(outcome, list(parts))
        for part in (part for name in committed for part in parts[name]):
            self._ends.commit(part.tables)
        if committed == parts.keys():
            return committed, None
        lost = ", ".join(sorted(parts.keys() - committed))
        return committed, WarehouseUnavailableError(f"BigQuery dropped streams of {lost} before their commit.")

    def append(self, name: str, batch: pa.RecordBatch) -> None:
        """Append rows of the driver's own, once; an unknown outcome is settled when the lease is taken again."""
        table = self.open(name)
        schema = table.schema()
        if schema is None:
            raise TableNotFoundError(f"There is no table {name}.")
        # A stream of its own: its numbers do not meet those of the batches.
        stream = f"{self._stream}-{self._id(name).table}"
        part = replace(table.writer(schema), run=None).write_rows([batch])
        number = self._attempts.last_noted(stream) + 1
        document = {str(self._id(name)): _entry([part])}
        if self._attempts.commit(document, self._attempt(stream, number), None) is None:
            raise WarehouseUnavailableError(f"BigQuery dropped the rows for {name} before their commit.")

    def parse_part(self, fields: Mapping[str, Any]) -> BigQueryRowPart:
        """Return the part that its ``as_json`` described."""
        return BigQueryRowPart.from_json(fields)

    def without(self, name: str, part: BigQueryRowPart, is_unwanted: pa.BooleanArray) -> BigQueryRowPart | None:  # noqa: ARG002
        """Drop the part and return None: no row of a stream can be left out, and none can be read before."""
        self.drop(name, part)
        return None

    def which_follow(self, parts: Sequence[BigQueryRowPart]) -> list[bool]:
        """Return of each part whether its rows follow in their streams on those that are committed."""
        return self._ends.which_follow([part.tables for part in parts])

    def drop(self, name: str, part: BigQueryRowPart) -> None:  # noqa: ARG002  its tables say where it is
        """Give up a part that will not be committed: its stream vanishes by itself, staged rows now.

        A stream that a task keeps is finalized, so that the task takes another one.
        """
        for table in part.tables:
            if table.stream is not None and table.first is not None:
                self._ends.give_up(table.stream)
                finalize_stream(self._clients, table.stream, seconds=_DROP_SECONDS)
            if table.staged is not None:
                drop_large_rows(self._clients, table.staged.table)

    def quota_seconds(self, parts: Sequence[BigQueryRowPart]) -> float:
        """Return how long to wait after a batch of ``parts``, by the streams that were created for it."""
        return self._budget.spend(created_streams(table for part in parts for table in part.tables))

    def close(self) -> None:
        """End the connections."""
        self._clients.close()
        self._schema_clients.close()

    def _id(self, name: str) -> TableId:
        return TableId.parse(name, self._project)

    def _attempt(self, stream: str, number: int, commit_id: int | None = None) -> Attempt:
        return Attempt(stream, number, self._lease, self._attempts.epoch(self._lease), commit_id)

    def _named(self, full_names: frozenset[str] | None, names: Sequence[str]) -> frozenset[str]:
        return frozenset(name for name in names if str(self._id(name)) in (full_names or ()))


def _entry(parts: Sequence[BigQueryRowPart]) -> dict[str, Any]:
    """Return what a note keeps of one table's parts."""
    tables = [table for part in parts for table in part.tables]
    return {
        "streams": [table.stream for table in tables if table.stream is not None and table.end is None],
        "flushes": flushes_of((table, part.ingest_time) for part in parts for table in part.tables),
        "staged": [
            {"table": table.staged.table, "rows": table.staged.rows}
            for table in tables
            if table.staged is not None
        ],
        "ingest_times": [part.ingest_time for part in parts],
    }
