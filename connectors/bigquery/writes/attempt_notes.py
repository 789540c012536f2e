"""The record of attempts: a stream notes what it is about to commit, through a fence that its successor closes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from connectors.bigquery.client import Clients
from connectors.bigquery.queries.job import QueryJob, typed
from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables.specs import ATTEMPT_ROWS
from connectors.bigquery.writes.appender import StreamAppender
from connectors.bigquery.writes.batches import encode_rows
from connectors.bigquery.writes.write_streams import create_fence_stream, finalize_stream
from connectors.columns import arrow_schema
from model.archive import Attempt
from model.format import Format

# Of the table of attempts, and of the document in a note: of the archive (document_of in stream_commit.py) and of
# tables of rows (_entry in stream_tables.py).
ATTEMPT_NOTES_FORMAT: Final = Format(1)
# Of each table in a note's document.
COMMIT_ID: Final = "commit_id"
# Ids of a batch are cut into rows of this size, far below an append request's.
_IDS_BYTES: Final = 4_000_000

_SCHEMA: Final = arrow_schema(ATTEMPT_ROWS)
NOTED_IDS_SCHEMA: Final = pa.schema(
    [("topic", pa.string()), ("message_id", pa.string()), ("publish_time", pa.timestamp("us", tz="UTC"))]
)

# Of a note: its stream, its number, and its epoch, which two owners of one stream never share.
NoteKey = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class AttemptNote:
    """One attempt as it was noted; ``document`` says what has to be committed."""

    lease: str
    epoch: int
    stream: str
    attempt: int
    document: str

    @property
    def commit_id(self) -> int | None:
        """What tells its commit from another owner's of this number, None where an earlier Refeed noted it."""
        entries = json.loads(self.document or "{}").values()
        return next((entry.get(COMMIT_ID) for entry in entries), None)


class AttemptNotes:
    """The table of attempts; an epoch's notes go through one COMMITTED stream, the fence.

    A stream that takes the lease over finalizes the fence of the epoch before: from then on nothing can be
    noted under that epoch, and what was not noted is never committed. So the newest note is the only attempt
    whose outcome can be open, and rows of a COMMITTED stream can be queried as soon as they are appended.
    """

    def __init__(self, clients: Clients, table: TableId, ids_schema: pa.Schema = NOTED_IDS_SCHEMA) -> None:
        self._clients = clients
        self._table = table
        self.ids_schema = ids_schema
        self._noted_at = datetime.fromtimestamp(0, UTC)

    def open_fence(self) -> str:
        """Return a new fence's name."""
        return create_fence_stream(self._clients, self._table)

    def close_fence(self, fence: str) -> None:
        """Let no note through ``fence`` any more; one that BigQuery has forgotten lets none through either."""
        finalize_stream(self._clients, fence)

    def add(self, appender: StreamAppender, note: AttemptNote, ids: pa.Table | None) -> None:
        """Note ``note`` durably, its ids first; a note that is there is whole."""
        rows: list[dict[str, Any]] = []
        common = self._row(note)
        if ids is not None and ids.num_rows:
            kept = ids.select(self.ids_schema.names).cast(self.ids_schema).combine_chunks()
            step = kept.num_rows * _IDS_BYTES // kept.nbytes
            rows += [
                {**common, "kind": "ids", "ids": encode_rows(kept.slice(start, step), compression="zstd")}
                for start in range(0, kept.num_rows, step)
            ]
        rows.append({**common, "kind": "attempt", "document": note.document})
        # A request each, so that none is too large; they are in order, so that the note itself comes last.
        appender.append([pa.RecordBatch.from_pylist([row], schema=_SCHEMA) for row in rows])

    def abandon(self, appender: StreamAppender, note: AttemptNote) -> None:
        """Note that the attempt's rows are gone and will never be committed."""
        row = {**self._row(note), "kind": "abandoned"}
        appender.append([pa.RecordBatch.from_pylist([row], schema=_SCHEMA)])

    def newest(self, lease: str) -> AttemptNote | None:
        """Return the newest attempt that was noted under ``lease`` and not abandoned, in whichever epoch."""
        return self._find("lease = @lease", {"lease": lease})

    def find(self, attempt: Attempt) -> AttemptNote | None:
        """Return this attempt's note, None when it was never noted or is abandoned."""
        numbers = {"stream": attempt.stream, "attempt": attempt.number}
        return self._find("stream = @stream AND attempt = @attempt", numbers, commit_id=attempt.commit_id)

    def last_attempt(self, stream: str) -> int:
        """Return the highest number that was noted for ``stream``, 0 when there is none."""
        rows = self._query(
            "SELECT MAX(attempt) AS attempt FROM {table} WHERE stream = @stream", {"stream": stream}
        )
        return int(rows[0]["attempt"] or 0)

    def _find(
        self, condition: str, parameters: dict[str, Any], *, commit_id: int | None = None
    ) -> AttemptNote | None:
        rows = self._query(
            "SELECT lease, epoch, stream, attempt, kind, document FROM {table} "  # noqa: S608  our own conditions
            f"WHERE {condition} AND kind IN ('attempt', 'abandoned') "
            "ORDER BY epoch DESC, noted_at DESC LIMIT 20",
            parameters,
        )
        gone = {note_key(row) for row in rows if row["kind"] == "abandoned"}
        for row in rows:
            found = AttemptNote(row["lease"], row["epoch"], row["stream"], row["attempt"], row["document"])
            if row["kind"] == "attempt" and note_key(row) not in gone and commit_id in (None, found.commit_id):
                return found
        return None

    def _query(self, sql: str, parameters: dict[str, Any]) -> list[Any]:
        query = QueryJob(self._clients, sql.format(table=f"`{self._table}`"), "attempts", typed(parameters))
        return query.rows(f"reading {self._table}")

    def _row(self, note: AttemptNote) -> dict[str, Any]:
        # The notes of an epoch are in the order of their times, also where the clock is put back.
        self._noted_at = max(datetime.now(UTC), self._noted_at + timedelta(microseconds=1))
        return {
            "lease": note.lease,
            "epoch": note.epoch,
            "stream": note.stream,
            "attempt": note.attempt,
            "noted_at": self._noted_at,
        }


def note_key(row: Mapping[str, Any]) -> NoteKey:
    """Return which note a row belongs to."""
    return row["stream"], row["attempt"], row["epoch"]
