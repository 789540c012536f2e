"""What a task does with its messages: append them where nobody sees them, and say what there is to commit."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Self

import pyarrow as pa
import structlog

from connectors.bigquery.append import (
    PENDING,
    StreamAppender,
    create_stream,
    finalize_stream,
    may_be_gone,
)
from connectors.bigquery.client import Clients, Connection, process_clients
from connectors.bigquery.kept import KEPT
from connectors.bigquery.outbox import Outbox
from connectors.bigquery.readiness import not_ready
from connectors.bigquery.rows import RefusedRow, archive_batch, cut, dead_letter_batch
from connectors.bigquery.staged import StagedRows, drop_staged, stage_rows
from connectors.bigquery.tables import DEAD_LETTERS, TableId
from model import failpoint
from model.errors import WarehouseError, WarehouseUnavailableError

_log = structlog.get_logger(__name__)

# Small batches wait for each other until a request is worth its round trip.
_GROUP_BYTES: Final = 2 * 1024 * 1024
# Rows that are kept until BigQuery has answered for them: some requests are on their way while others are made.
_UNANSWERED_BYTES: Final = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TablePart:
    """Rows for one table that wait for their commit: in a stream, staged, or both.

    A PENDING stream is finalized and committed whole. Of a BUFFERED one, which is kept over batches, the rows from
    ``first`` to ``end`` are the part's.
    """

    table: str
    stream: str | None
    staged: StagedRows | None
    first: int | None = None
    end: int | None = None

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Return the part whose fields, JSON-ready, are these."""
        staged = StagedRows(**fields["staged"]) if fields["staged"] else None
        return cls(fields["table"], fields["stream"], staged, fields["first"], fields["end"])


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """What one task wrote; small, and JSON-ready. ``dead_letters`` of its ``rows`` wait for the dead letters.

    ``ingest_time`` is the same in all of them, ``failed_at`` of a dead letter.
    """

    rows: int
    size_bytes: int
    dead_letters: int
    ingest_time: str
    tables: tuple[TablePart, ...]

    def as_json(self) -> dict[str, Any]:
        """Return what :meth:`from_json` takes."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Return the part that :meth:`as_json` described."""
        tables = tuple(map(TablePart.from_json, fields["tables"]))
        return cls(fields["rows"], fields["size_bytes"], fields["dead_letters"], fields["ingest_time"], tables)


@dataclass(frozen=True, slots=True)
class BigQueryWriter:
    """Appends rows to streams that wait for their commit; picklable, so that tasks can carry it."""

    connection: Connection
    table: str
    append_bytes: int
    streams: int = 1

    def as_json(self) -> dict[str, Any]:
        """Return what :meth:`from_json` takes."""
        return {
            "connection": self.connection.as_json(),
            "table": self.table,
            "append_bytes": self.append_bytes,
            "streams": self.streams,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Return the writer that :meth:`as_json` described."""
        connection = Connection.from_json(fields["connection"])
        return cls(connection, fields["table"], fields["append_bytes"], fields["streams"])

    @property
    def is_by_topic(self) -> bool:
        """False: rows are appended as they come, BigQuery clusters them by itself."""
        return False

    def write(self, parts: Iterable[tuple[str, str, pa.RecordBatch]]) -> WrittenPart:
        """Append the rows of ``parts`` durably while they come, and return what a commit needs of them.

        A part is (topic, subscription, rows with the message columns of the archive, other columns are left
        out). ``ingest_time`` is the time of the call, the same for every row. Nobody sees the rows before they
        are committed; BigQuery drops what never is. A row that BigQuery refuses for good waits for the dead
        letters with its reason, and the others go on.

        Raises:
            WarehouseUnavailableError, QuotaExceededError: not now; nothing will be visible.
            WarehouseError: not at all; nothing will be visible.
        """
        now = datetime.now(UTC)
        clients = process_clients(self.connection)
        archive = TableId.parse(self.table, self.connection.project)
        part = PartWriter(clients, archive, self.append_bytes, self.streams)
        part.write(archive_batch(topic, subscription, rows, now) for topic, subscription, rows in parts)
        tables, refusals = part.finish()
        if refusals:
            _log_refusals(refusals)
            dead = dead_letter_batch(refusals, now)
            letters = PartWriter(clients, archive.companion(DEAD_LETTERS), self.append_bytes)
            letters.write(dead.slice(row, 1) for row in range(dead.num_rows))
            dead_tables, still_refused = letters.finish()
            if still_refused:
                # There is no third place for a message: nothing is acknowledged, and a person has to look.
                raise WarehouseError(
                    f"BigQuery refuses rows of {archive} and their dead letters too: {still_refused[0].reason}"
                )
            tables += dead_tables
        return WrittenPart(
            rows=part.rows,
            size_bytes=part.size_bytes,
            dead_letters=len(refusals),
            ingest_time=now.isoformat(),
            tables=tuple(tables),
        )

    def drop(self, part: WrittenPart) -> None:
        """Give up a part that will not be committed: streams vanish by themselves, staged rows now."""
        for table in part.tables:
            if table.staged is not None:
                drop_staged(process_clients(self.connection), table.staged.table)


class PartWriter:
    """One part for one table: streams that take rows while others still come, and a place for large rows.

    A stream has one connection ("only a single active connection on application-created streams",
    https://cloud.google.com/bigquery/docs/write-api-best-practices), so that more than what goes over one takes
    more ``streams``; each is taken when there are rows for it. With a ``run`` they are BUFFERED streams that the
    process keeps over batches, for the driver of that run; without one they are PENDING and this part's alone.
    """

    def __init__(
        self, clients: Clients, table: TableId, append_bytes: int, streams: int = 1, run: str | None = None
    ) -> None:
        self.rows = 0
        self.size_bytes = 0
        self._clients = clients
        self._table = table
        self._append_bytes = append_bytes
        self._streams = streams
        self._run = run
        self._appenders: list[StreamAppender] = []
        # Of kept streams: where the part's rows begin, and those that take no more rows.
        self._firsts: dict[str, int] = {}
        self._spent: set[str] = set()
        self._large: list[pa.RecordBatch] = []
        self._schema: pa.Schema | None = None

    def write(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Append ``batches`` from a thread a stream while this one waits for more of them."""
        outboxes = [Outbox(_UNANSWERED_BYTES // self._streams) for _ in range(self._streams)]
        turns = itertools.cycle(outboxes)
        with ThreadPoolExecutor(self._streams, thread_name_prefix="append") as pool:
            sending = [pool.submit(self._send, outbox) for outbox in outboxes]
            try:
                for group in self._groups(batches):
                    fitting, large = cut(group, self._append_bytes)
                    self._large += large
                    for rows in fitting:
                        next(turns).put(rows)
            finally:
                for outbox in outboxes:
                    outbox.close()
            for one in sending:
                one.result()

    def _groups(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
        waiting: list[pa.RecordBatch] = []
        waiting_bytes = 0
        for batch in batches:
            self._schema = batch.schema
            self.rows += batch.num_rows
            self.size_bytes += batch.nbytes
            waiting.append(batch)
            waiting_bytes += batch.nbytes
            if waiting_bytes >= _GROUP_BYTES:
                yield waiting
                waiting, waiting_bytes = [], 0
        yield waiting

    def _send(self, outbox: Outbox) -> None:
        """Append what comes through ``outbox`` to a stream, taken when there is something for it."""
        try:
            if outbox.wait():
                if self._run is None:
                    self._append(create_stream(self._clients, self._table, PENDING), outbox)
                else:
                    self._append_kept(self._run, outbox)
        except WarehouseError as exc:
            failure = not_ready(self._clients, self._table, self._schema, exc) or exc
            outbox.fail(failure)
            raise failure from exc
        except BaseException as exc:
            outbox.fail(exc)
            raise

    def _append(self, stream: str, outbox: Outbox) -> None:
        appender = StreamAppender(self._clients, stream)
        self._appenders.append(appender)
        appender.drain(outbox)

    def _append_kept(self, run: str, outbox: Outbox) -> None:
        """Append to a kept stream; the driver may have given it up meanwhile, BigQuery may have forgotten it."""
        assert self._schema is not None
        appender = KEPT.take(self._clients, self._table, run, self._schema)
        first = appender.offset
        try:
            self._drain_kept(appender, outbox)
        except WarehouseError as exc:
            if not first or not may_be_gone(exc):
                raise
            self._spent.add(appender.stream)
            another = KEPT.create(self._clients, self._table)
            if appender.offset > first:
                # The driver will give up the whole part because of these rows, and the other stream with it.
                self._spent.add(another.stream)
            self._drain_kept(another, outbox)

    def _drain_kept(self, appender: StreamAppender, outbox: Outbox) -> None:
        self._firsts[appender.stream] = appender.offset
        self._appenders.append(appender)
        is_over = False
        try:
            appender.drain(outbox)
            is_over = True
        finally:
            if not is_over:
                appender.disconnect()

    def finish(self) -> tuple[list[TablePart], list[RefusedRow]]:
        """Let nothing more in; return what there is to commit, and the rows that BigQuery refused."""
        if self._appenders:
            failpoint.hit("bigquery.appended")
        found: list[TablePart] = []
        refusals: list[RefusedRow] = []
        for appender in self._appenders:
            part = self._part_of(appender)
            found += [part] if part is not None else []
            refusals += appender.refusals
        if self._large:
            staged, refused = stage_rows(self._clients, self._table, self._large)
            refusals = [*refusals, *refused]
            failpoint.hit("bigquery.staged")
            if staged is not None:
                first = found[0] if found else TablePart(str(self._table), None, None)
                found[:1] = [replace(first, staged=staged)]
        self._give_back()
        return found, refusals

    def _part_of(self, appender: StreamAppender) -> TablePart | None:
        table, stream = str(self._table), appender.stream
        if stream in self._firsts:
            first = self._firsts[stream]
            return TablePart(table, stream, None, first, appender.offset) if appender.offset > first else None
        found = finalize_stream(self._clients, stream)
        if found != appender.offset:
            raise WarehouseUnavailableError(f"{stream} holds {found} rows, {appender.offset} were appended.")
        return TablePart(table, stream, None) if found else None

    def _give_back(self) -> None:
        """Keep the streams for the next part: all that this one has in them is handed on."""
        if self._run is None or self._schema is None:
            return
        for appender in self._appenders:
            if appender.stream in self._spent:
                appender.disconnect()
            else:
                KEPT.give_back(appender, self._table, self._run, self._schema)


def _log_refusals(refusals: Sequence[RefusedRow]) -> None:
    for refusal in refusals:
        _log.warning(
            "row_refused",
            topic=refusal.row.column("topic")[0].as_py(),
            message_id=refusal.row.column("message_id")[0].as_py(),
            reason=refusal.reason,
        )
