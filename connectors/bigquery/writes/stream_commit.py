"""Commits of noted attempts: streams committed, kept ones flushed, large rows inserted; each step repeatable."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from google.api_core import exceptions as api
from google.cloud.bigquery_storage_v1 import types

from connectors.bigquery.client import ONCE, Clients
from connectors.bigquery.errors import SDK_ERRORS, error_from
from connectors.bigquery.queries.job import NamedParameter, QueryJob
from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables.specs import DEAD_LETTERS
from connectors.bigquery.writes.archive_writer import WrittenPart
from connectors.bigquery.writes.attempt_notes import AttemptNote
from connectors.bigquery.writes.large_rows import LargeRows, insert_large_rows
from connectors.bigquery.writes.write_streams import flush_stream, is_committed
from connectors.patience import retry_passing
from model import failpoint
from model.errors import CommitOutcomeUnknownError, TableNotFoundError, WarehouseError, WarehouseUnavailableError
from model.volume import add_counts

_COMMITTED: Final = types.StorageError.StorageErrorCode.STREAM_ALREADY_COMMITTED
_GONE: Final = frozenset(
    {
        types.StorageError.StorageErrorCode.STREAM_NOT_FOUND,
        types.StorageError.StorageErrorCode.INVALID_STREAM_STATE,
    }
)
# What a commit is answered with when a stream is committed, expired or unknown; the streams then say which.
_LOOK_UP: Final = (api.AlreadyExists, api.FailedPrecondition, api.InvalidArgument, api.NotFound)


def document_of(parts: Sequence[WrittenPart]) -> dict[str, dict[str, Any]]:
    """Return the streams, large rows and volumes of ``parts`` by table, as a note keeps them in JSON."""
    tables: dict[str, dict[str, Any]] = {}
    volumes: dict[str, dict[str, tuple[int, int]]] = {}
    for part in parts:
        add_counts(volumes, part.volumes)
        for table in part.tables:
            entry = tables.setdefault(table.table, {"streams": [], "staged": [], "ingest_times": []})
            entry["ingest_times"].append(part.ingest_time)
            if table.stream is not None:
                entry["streams"].append(table.stream)
            if table.staged is not None:
                entry["staged"].append({"table": table.staged.table, "rows": table.staged.rows})
    for name, entry in tables.items():
        if not name.endswith(DEAD_LETTERS):
            entry["volumes"] = volumes
    dead_first = sorted(tables, key=lambda name: not name.endswith(DEAD_LETTERS))
    return {name: tables[name] for name in dead_first}


class WriteStreamCommitter:
    """Drives a noted attempt to its end: every stream committed and every staged row inserted, or none ever.

    Each step can be repeated without effect: BigQuery commits a stream once, and runs a job id once. So a lost
    answer never ends an attempt that was noted; the commit is repeated. It is abandoned only when BigQuery has
    dropped its streams uncommitted, a day after they were written.
    """

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def drive(self, note: AttemptNote, *, seconds: float) -> frozenset[str] | None:
        """Commit what ``note`` says and return its tables; None when its rows are gone and never can be.

        Raises:
            CommitOutcomeUnknownError: BigQuery did not say within the time; call it again.
            WarehouseError: it is refused; call it again when the reason is removed.
        """
        ends_at = time.monotonic() + seconds
        tables = {TableId.parse(name, ""): entry for name, entry in json.loads(note.document).items()}
        for table, entry in tables.items():
            if self.commit_streams(table, entry["streams"], ends_at):
                continue
            column = "failed_at" if table.table.endswith(f"_{DEAD_LETTERS}") else "ingest_time"
            # A note of an earlier Refeed has no times: a message that comes twice is better than one that is lost.
            if not self.has_rows_of(table, column, entry.get("ingest_times", ()), use="backup"):
                return None
        failpoint.hit("bigquery.committed")
        for table, entry in tables.items():
            self.insert_large(note, table, entry["staged"], ends_at)
        return frozenset(map(str, tables))

    def insert_large(
        self, note: AttemptNote, table: TableId, staged: Sequence[Mapping[str, Any]], ends_at: float
    ) -> None:
        """Insert the attempt's large rows, each table of them once, however often this is called.

        Raises:
            CommitOutcomeUnknownError, WarehouseError: as :func:`insert_large_rows` says.
        """
        for rows in (LargeRows(**fields) for fields in staged):
            insert_large_rows(
                self._clients,
                table,
                rows,
                job=f"refeed-{note.stream}-{note.attempt}-{rows.table.rsplit('_', 1)[-1]}",
                seconds=max(1.0, ends_at - time.monotonic()),
            )

    def has_rows_of(self, table: TableId, column: str, ingest_times: Sequence[str], *, use: str) -> bool:
        """Whether the table holds rows of the last month from an attempt whose streams are gone.

        Each part has a time of its own, to the microsecond, in ``column`` of every row. Message ids would prove
        nothing: another topic, or an earlier delivery of the same message, may have them.

        Raises:
            TableNotFoundError: there is no such table.
            WarehouseError: BigQuery failed.
        """
        # Rows in the write buffer have no partition yet, and the table may insist on a filter.
        sql = (
            f"SELECT COUNT(*) AS found FROM `{table}` WHERE {column} IN UNNEST(@times) AND "  # noqa: S608
            "(_PARTITIONTIME >= TIMESTAMP_SUB(CURRENT_TIMESTAMP(), INTERVAL 31 DAY) OR _PARTITIONTIME IS NULL)"
        )
        query = QueryJob(self._clients, sql, use, {"times": NamedParameter("ARRAY<TIMESTAMP>", ingest_times)})
        return any(int(row["found"]) for row in query.rows(f"looking for an attempt's rows in {table}"))

    def commit_streams(self, table: TableId, streams: Sequence[str], ends_at: float) -> bool:
        """Commit ``streams`` in one step; False when BigQuery has dropped them."""
        if not streams:
            return True

        def call() -> bool:
            what = f"committing {len(streams)} streams of {table}"
            try:
                answer = self._clients.write().batch_commit_write_streams(
                    types.BatchCommitWriteStreamsRequest(parent=table.path, write_streams=streams), **ONCE
                )
            except _LOOK_UP as exc:
                if (is_in := is_committed(self._clients, streams)) is False:
                    raise error_from(exc, what) from exc
                return bool(is_in)
            except SDK_ERRORS as exc:
                raise error_from(exc, what) from exc
            if not answer.stream_errors:
                return True
            codes = {fault.code for fault in answer.stream_errors}
            if codes == {_COMMITTED} and len(answer.stream_errors) == len(streams):
                # No other commit names these streams: it was this attempt's own, and its answer was lost.
                return True
            if codes <= {_COMMITTED, *_GONE} and (is_in := is_committed(self._clients, streams)) is not False:
                return bool(is_in)
            raise WarehouseError(f"{what}: {answer.stream_errors[0].error_message}")

        return _retry_until(ends_at, call)

    def flush_streams(self, table: TableId, flushes: Sequence[Mapping[str, Any]], ends_at: float) -> bool:
        """Flush kept streams as far as the attempt has rows in them; False when none of its rows is in, for good.

        Each stream is flushed by itself. Where BigQuery has dropped one uncommitted after others were flushed,
        their rows are deleted again, so that the attempt is in the table whole or not at all.

        Raises:
            CommitOutcomeUnknownError: BigQuery did not say within the time; call it again.
            WarehouseError: it is refused; call it again when the reason is removed.
        """
        flushed: list[str] = []
        for flush in flushes:
            if not self._flush(table, flush, ends_at):
                if flushed:
                    self._delete_rows_of(table, flushed)
                return False
            flushed += flush["ingest_times"]
            failpoint.hit("bigquery.flushed")
        return True

    def _flush(self, table: TableId, flush: Mapping[str, Any], ends_at: float) -> bool:
        if _retry_until(ends_at, lambda: flush_stream(self._clients, flush["stream"], flush["end"])):
            return True
        try:
            return self.has_rows_of(table, "ingest_time", flush["ingest_times"], use="pipeline")
        except TableNotFoundError:
            return False

    def _delete_rows_of(self, table: TableId, ingest_times: Sequence[str]) -> None:
        """Delete the rows of parts; BigQuery refuses it while they are in its write buffer."""
        sql = (
            f"DELETE FROM `{table}` WHERE ingest_time IN UNNEST(@times) AND "  # noqa: S608
            "_PARTITIONTIME >= TIMESTAMP_SUB(CURRENT_TIMESTAMP(), INTERVAL 31 DAY)"
        )
        times = {"times": NamedParameter("ARRAY<TIMESTAMP>", ingest_times)}
        QueryJob(self._clients, sql, "pipeline", times).rows(
            f"deleting rows of an attempt that was dropped from {table}"
        )
        if self.has_rows_of(table, "ingest_time", ingest_times, use="pipeline"):
            raise WarehouseUnavailableError(f"Rows in the write buffer of {table} can't be deleted yet.")


def _retry_until(ends_at: float, call: Callable[[], bool]) -> bool:
    """Return what ``call`` returns; what fails in passing until ``ends_at`` is an unknown outcome."""
    try:
        return retry_passing(call, seconds=ends_at - time.monotonic())
    except WarehouseUnavailableError as exc:
        raise CommitOutcomeUnknownError(f"{exc.message} Whether the commit succeeded is unknown.") from exc
