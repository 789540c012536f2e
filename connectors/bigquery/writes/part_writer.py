"""One part for one table: appended over several streams at once, large rows loaded beside them."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, Final, Self, cast

import pyarrow as pa

from connectors.bigquery.client import Clients
from connectors.bigquery.table_id import TableId
from connectors.bigquery.writes.append_queue import AppendQueue
from connectors.bigquery.writes.appender import StreamAppender
from connectors.bigquery.writes.batches import RefusedRow, cut
from connectors.bigquery.writes.kept_streams import KEPT
from connectors.bigquery.writes.large_rows import LargeRows, load_large_rows
from connectors.bigquery.writes.write_streams import (
    PENDING,
    create_stream,
    finalize_stream,
    may_be_gone,
    not_ready,
)
from model import failpoint
from model.errors import WarehouseError, WarehouseUnavailableError
from model.format import Format

# Of a part that waits for its commit, as a task describes it to the driver.
BIGQUERY_PART_FORMAT: Final = Format(1)
# Small batches wait for each other until a request is worth its round trip.
_GROUP_BYTES: Final = 2 * 1024 * 1024
# Rows that are kept until BigQuery has answered for them: some requests are on their way while others are made.
_UNANSWERED_BYTES: Final = 32 * 1024 * 1024


@cache
def _adapter(kind: type) -> Any:
    # Tasks only describe parts: the driver alone pays for the import.
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


class JsonPart:
    """A dataclass that a task describes in JSON to the driver."""

    __slots__ = ()

    def as_json(self) -> dict[str, Any]:
        """Return what :meth:`from_json` takes."""
        return asdict(cast("Any", self))

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Return the part that :meth:`as_json` described."""
        return cast("Self", _adapter(cast("Any", cls)).validate_python(fields))


@dataclass(frozen=True, slots=True)
class PendingRows:
    """Rows for one table that wait for their commit: in a stream, staged, or both.

    A PENDING stream is finalized and committed whole. Of a BUFFERED one, which is kept over batches, the rows from
    ``first`` to ``end`` are the part's.
    """

    table: str
    stream: str | None
    staged: LargeRows | None
    first: int | None = None
    end: int | None = None


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
        # Where the part's rows begin in each stream, and the kept streams that take no more rows.
        self._firsts: dict[str, int] = {}
        self._spent: set[str] = set()
        self._large: list[pa.RecordBatch] = []
        self._schema: pa.Schema | None = None

    def write(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Append ``batches`` from a thread a stream while this one waits for more of them."""
        outboxes = [AppendQueue(_UNANSWERED_BYTES // self._streams) for _ in range(self._streams)]
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

    def _send(self, outbox: AppendQueue) -> None:
        """Append what comes through ``outbox`` to a stream, taken when there is something for it."""
        try:
            if outbox.wait():
                if self._run is None:
                    stream = create_stream(self._clients, self._table, PENDING)
                    self._drain(StreamAppender(self._clients, stream), outbox)
                else:
                    self._append_kept(self._run, outbox)
        except WarehouseError as exc:
            failure = not_ready(self._clients, self._table, self._schema, exc) or exc
            outbox.fail(failure)
            raise failure from exc
        except BaseException as exc:
            outbox.fail(exc)
            raise

    def _append_kept(self, run: str, outbox: AppendQueue) -> None:
        """Append to a kept stream; the driver may have given it up meanwhile, BigQuery may have forgotten it."""
        assert self._schema is not None
        appender = KEPT.take(self._clients, self._table, run, self._schema)
        first = appender.offset
        try:
            self._drain(appender, outbox)
        except WarehouseError as exc:
            if not first or not may_be_gone(exc):
                raise
            self._spent.add(appender.stream)
            another = KEPT.create(self._clients, self._table)
            if appender.offset > first:
                # The driver will give up the whole part because of these rows, and the other stream with it.
                self._spent.add(another.stream)
            self._drain(another, outbox)

    def _drain(self, appender: StreamAppender, outbox: AppendQueue) -> None:
        self._firsts[appender.stream] = appender.offset
        self._appenders.append(appender)
        try:
            appender.drain(outbox)
        except BaseException:
            appender.disconnect()
            raise

    def finish(self) -> tuple[list[PendingRows], list[RefusedRow]]:
        """Let nothing more in; return what there is to commit, and the rows that BigQuery refused."""
        if self._appenders:
            failpoint.hit("bigquery.appended")
        found: list[PendingRows] = []
        refusals: list[RefusedRow] = []
        for appender in self._appenders:
            part = self._part_of(appender)
            found += [part] if part is not None else []
            refusals += appender.refusals
        if self._large:
            staged, refused = load_large_rows(self._clients, self._table, self._large)
            refusals = [*refusals, *refused]
            failpoint.hit("bigquery.staged")
            if staged is not None:
                first = found[0] if found else PendingRows(str(self._table), None, None)
                found[:1] = [replace(first, staged=staged)]
        self._give_back()
        return found, refusals

    def _part_of(self, appender: StreamAppender) -> PendingRows | None:
        table, stream = str(self._table), appender.stream
        if self._run is not None:
            first = self._firsts[stream]
            return PendingRows(table, stream, None, first, appender.offset) if appender.offset > first else None
        found = finalize_stream(self._clients, stream)
        if found != appender.offset:
            raise WarehouseUnavailableError(
                f"{stream} has {found} rows, but {appender.offset} rows were appended."
            )
        return PendingRows(table, stream, None) if found else None

    def _give_back(self) -> None:
        """Keep the streams for the next part: all that this one has in them is handed on."""
        if self._run is None or self._schema is None:
            return
        for appender in self._appenders:
            if appender.stream in self._spent:
                appender.disconnect()
            else:
                KEPT.give_back(appender, self._table, self._run, self._schema)
