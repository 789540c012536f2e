"""What a task does with its messages: append them where nobody sees them, and say what there is to commit."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Self

import pyarrow as pa
import structlog

from connectors.bigquery.append import PENDING, StreamAppender, create_stream, finalize_stream
from connectors.bigquery.client import Connection, process_clients
from connectors.bigquery.rows import Refusal, archive_batch, cut, dead_letter_batch
from connectors.bigquery.staged import StagedRows, drop_staged, stage_rows
from connectors.bigquery.tables import DEAD_LETTERS, TableId
from model import failpoint
from model.errors import WarehouseError, WarehouseUnavailableError

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TablePart:
    """Rows for one table that wait for their commit: a finalized PENDING stream, staged rows, or both."""

    table: str
    stream: str | None
    staged: StagedRows | None


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """What one task wrote; small, and JSON-ready. ``dead_letters`` of its ``rows`` wait for the dead letters."""

    rows: int
    size_bytes: int
    dead_letters: int
    tables: tuple[TablePart, ...]

    def as_json(self) -> dict[str, Any]:
        """Return what :meth:`from_json` takes."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Return the part that :meth:`as_json` described."""
        tables = tuple(
            TablePart(t["table"], t["stream"], StagedRows(**t["staged"]) if t["staged"] else None)
            for t in fields["tables"]
        )
        return cls(fields["rows"], fields["size_bytes"], fields["dead_letters"], tables)


@dataclass(frozen=True, slots=True)
class BigQueryWriter:
    """Appends rows to streams that wait for their commit; picklable, so that tasks can carry it."""

    connection: Connection
    table: str
    append_bytes: int

    def as_json(self) -> dict[str, Any]:
        """Return what :meth:`from_json` takes."""
        return {
            "connection": self.connection.as_json(),
            "table": self.table,
            "append_bytes": self.append_bytes,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Return the writer that :meth:`as_json` described."""
        return cls(Connection.from_json(fields["connection"]), fields["table"], fields["append_bytes"])

    def write(self, parts: Sequence[tuple[str, str, pa.RecordBatch]]) -> WrittenPart:
        """Append the rows of ``parts`` durably and return what a commit needs of them.

        A part is (topic, subscription, rows with the message columns of the archive, other columns are left
        out). ``ingest_time`` is now, the same for every row. Nobody sees the rows before they are committed;
        BigQuery drops what never is. A row that BigQuery refuses for good waits for the dead letters with its
        reason, and the others go on.

        Raises:
            WarehouseUnavailableError, QuotaExceededError: not now; nothing will be visible.
            WarehouseError: not at all; nothing will be visible.
        """
        now = datetime.now(UTC)
        archive = TableId.parse(self.table, self.connection.project)
        batches = [archive_batch(topic, subscription, rows, now) for topic, subscription, rows in parts]
        tables, refusals = self._write(archive, batches)
        if refusals:
            for refusal in refusals:
                _log.warning(
                    "row_refused",
                    topic=refusal.row.column("topic")[0].as_py(),
                    message_id=refusal.row.column("message_id")[0].as_py(),
                    reason=refusal.reason,
                )
            dead = dead_letter_batch(refusals, now)
            one_by_one = [dead.slice(row, 1) for row in range(dead.num_rows)]
            dead_tables, still_refused = self._write(archive.companion(DEAD_LETTERS), one_by_one)
            if still_refused:
                # There is no third place for a message: nothing is acknowledged, and a person has to look.
                raise WarehouseError(
                    f"BigQuery refuses rows of {archive} and their dead letters too: {still_refused[0].reason}"
                )
            tables += dead_tables
        return WrittenPart(
            rows=sum(batch.num_rows for batch in batches),
            size_bytes=sum(batch.nbytes for batch in batches),
            dead_letters=len(refusals),
            tables=tuple(tables),
        )

    def drop(self, part: WrittenPart) -> None:
        """Give up a part that will not be committed: streams vanish by themselves, staged rows now."""
        for table in part.tables:
            if table.staged is not None:
                drop_staged(process_clients(self.connection), table.staged.table)

    def _write(self, table: TableId, batches: Sequence[pa.RecordBatch]) -> tuple[list[TablePart], list[Refusal]]:
        clients = process_clients(self.connection)
        fitting, large = cut(batches, self.append_bytes)
        stream, refusals = None, []
        if fitting:
            stream = create_stream(clients, table, PENDING)
            appender = StreamAppender(clients, stream)
            appender.append(fitting)
            refusals = appender.refusals
            failpoint.hit("bigquery.appended")
            found = finalize_stream(clients, stream)
            if found != appender.offset:
                raise WarehouseUnavailableError(f"{stream} holds {found} rows, {appender.offset} were appended.")
            if not appender.offset:
                stream = None
        staged = None
        if large:
            staged, refused = stage_rows(clients, table, large)
            refusals = [*refusals, *refused]
            failpoint.hit("bigquery.staged")
        is_empty = stream is None and staged is None
        return ([] if is_empty else [TablePart(str(table), stream, staged)]), refusals
