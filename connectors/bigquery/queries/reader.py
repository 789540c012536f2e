"""A table read in parallel by the Storage Read API: Arrow batches straight through, resumed where they broke."""

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from google.api_core import exceptions as api
from google.cloud.bigquery_storage_v1 import types

from connectors.bigquery.client import ONCE, Clients
from connectors.bigquery.errors import PATIENCE_SECONDS, SDK_ERRORS, call_bigquery, error_from
from connectors.bigquery.table_id import TableId
from connectors.patience import Patience
from model.errors import WarehouseUnavailableError

READ_ROLE: Final = "roles/bigquery.readSessionUser"
_OPEN_SECONDS: Final = 60.0
# Batches of a stream that wait to be taken; the Read API sends about a megabyte in each.
_AHEAD: Final = 4
_LOOK_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class ReadSession:
    """One moment of a table, dealt out to streams.

    The same stream gives the same rows in the same order, so that (stream, offset) names a row for as long as
    the session lives, which is six hours at least.
    """

    name: str
    streams: tuple[str, ...]
    schema: bytes
    estimated_rows: int

    def arrow_schema(self) -> pa.Schema:
        """Return the schema of the batches."""
        return pa.ipc.read_schema(pa.py_buffer(self.schema))


def open_session(
    clients: Clients, table: TableId, *, max_streams: int, columns: Sequence[str] = (), condition: str = ""
) -> ReadSession:
    """Open a session over ``table`` as it is now, in up to ``max_streams`` streams; fewer when it is small.

    ``columns`` and ``condition`` (SQL) are applied by BigQuery before anything is sent.

    Raises:
        TableNotFoundError, WarehousePermissionError, QuotaExceededError, WarehouseUnavailableError: as they say.
        WarehouseError: BigQuery refuses the columns or the condition.
    """
    wanted = types.ReadSession(
        table=table.path,
        data_format=types.DataFormat.ARROW,
        read_options=types.ReadSession.TableReadOptions(selected_fields=columns, row_restriction=condition),
    )
    session = call_bigquery(
        lambda: clients.read().create_read_session(
            parent=f"projects/{clients.connection.project}",
            read_session=wanted,
            max_stream_count=max_streams,
            **ONCE,
        ),
        f"opening a read session of {table}",
        seconds=_OPEN_SECONDS,
        role=READ_ROLE,
    )
    return ReadSession(
        session.name,
        tuple(stream.name for stream in session.streams),
        bytes(session.arrow_schema.serialized_schema),
        int(session.estimated_row_count),
    )


def read_stream(
    clients: Clients, session: ReadSession, stream: str, *, offset: int = 0
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (offset of its first row, batch) of one stream from ``offset`` on, every row once.

    A connection that breaks is opened again after the last row that came.

    Raises:
        WarehouseUnavailableError: it did not come back within two minutes without a row.
        WarehouseError: the session has expired, or BigQuery refuses.
    """
    schema = session.arrow_schema()
    patience = Patience(PATIENCE_SECONDS)
    while True:
        try:
            for batch in _read_once(clients, stream, offset, schema):
                yield offset, batch
                offset += batch.num_rows
                patience.renew()
        except WarehouseUnavailableError as exc:
            patience.wait_after(exc)
        else:
            return


def read_session(clients: Clients, session: ReadSession) -> Iterator[pa.RecordBatch]:
    """Yield the rows of every stream, all of them read at once, in the order in which their batches come.

    Each stream is read by a thread of its own, a few batches ahead of the consumer.

    Raises:
        WarehouseUnavailableError, WarehouseError: what :func:`read_stream` says, of any stream.
    """
    clients.read()  # made here, before several threads would
    arrivals = _Arrivals(_AHEAD * max(1, len(session.streams)))
    for stream in session.streams:
        batches = (batch for _, batch in read_stream(clients, session, stream))
        # Not waited for at the end: one that waits for BigQuery ends with the clients' connection.
        threading.Thread(target=arrivals.bring, args=(batches,), name="read-stream", daemon=True).start()
    unfinished = len(session.streams)
    try:
        while unfinished:
            item = arrivals.take()
            if item is None:
                unfinished -= 1
            else:
                yield item
    finally:
        arrivals.end()


class _Arrivals:
    """Batches of several threads on their way to one; None stands for the end of a thread's."""

    def __init__(self, most: int) -> None:
        self._queue: queue.Queue[pa.RecordBatch | Exception | None] = queue.Queue(most)
        self._is_over = threading.Event()

    def bring(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Put all ``batches``, and the error that ends them, until the consumer has ended."""
        try:
            for batch in batches:
                if not self._put(batch):
                    return
        except Exception as exc:  # noqa: BLE001 it is raised where the batches are taken
            self._put(exc)
        else:
            self._put(None)

    def _put(self, item: pa.RecordBatch | Exception | None) -> bool:
        while not self._is_over.is_set():
            with suppress(queue.Full):
                self._queue.put(item, timeout=_LOOK_SECONDS)
                return True
        return False

    def take(self) -> pa.RecordBatch | None:
        item = self._queue.get()
        if isinstance(item, Exception):
            raise item
        return item

    def end(self) -> None:
        self._is_over.set()


def _read_once(clients: Clients, stream: str, offset: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    responses = None
    try:
        responses = clients.read().read_rows(
            read_stream=stream,
            offset=offset,
            retry=None,
            # A stream may be read for hours; a peer that is gone is found by the channel's keep-alives.
            timeout=None,
            metadata=(("x-goog-request-params", f"read_stream={stream}"),),
        )
        for response in responses:
            message = pa.py_buffer(response.arrow_record_batch.serialized_record_batch)
            yield pa.ipc.read_record_batch(message, schema)
    except api.OutOfRange:
        return  # the offset is the stream's end
    except SDK_ERRORS as exc:
        raise error_from(exc, f"reading {stream}", READ_ROLE) from exc
    finally:
        if responses is not None and hasattr(responses, "cancel"):
            responses.cancel()
