"""Appends to one write stream: every row once, at its own offset, whatever breaks on the way."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from google.api_core import exceptions as api
from google.cloud.bigquery_storage_v1 import types
from google.rpc import code_pb2

from connectors.bigquery.client import CALL_SECONDS, Clients
from connectors.bigquery.errors import SDK_ERRORS, error_from
from connectors.bigquery.writes.append_queue import AppendQueue, ConnectionTurn, Request
from connectors.bigquery.writes.batches import RefusedRow
from connectors.bigquery.writes.write_streams import APPEND_SECONDS
from connectors.patience import Patience
from connectors.wire import field_head
from model.errors import WarehouseError, WarehouseUnavailableError

# A turn takes new requests for this long; they are answered well within a call's time then.
_TURN_SECONDS: Final = 20.0
# A connection that is kept is replaced before this is over.
_CONNECTION_SECONDS: Final = 600.0
_AppendRowsRequest: Final = types.AppendRowsRequest.pb()
_ArrowData: Final = types.AppendRowsRequest.ArrowData.pb()


class StreamConnection:
    """One AppendRows call, over which the requests of one turn go after those of another."""

    def __init__(self, clients: Clients, stream: str, frame: Callable[[Request], bytes]) -> None:
        self._frame = frame
        self._turns: queue.SimpleQueue[ConnectionTurn | None] = queue.SimpleQueue()
        self._ends_at = time.monotonic() + _CONNECTION_SECONDS
        self._answers = clients.append_rows(self._requests(), stream=stream, seconds=_CONNECTION_SECONDS)

    def _requests(self) -> Iterator[bytes]:
        while (turn := self._turns.get()) is not None:
            for request in turn:
                yield self._frame(request)

    def send(self, turn: ConnectionTurn) -> None:
        """Send what comes in ``turn``; the one before it is over."""
        self._turns.put(turn)

    def receive(self) -> Any | None:
        """Return the next answer, None when the connection ended in order."""
        return next(self._answers, None)

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return bool(self._answers.is_active())

    def has_time(self) -> bool:
        """Whether it lives on and is good for another turn."""
        return self.is_alive() and self._ends_at - time.monotonic() > _TURN_SECONDS + CALL_SECONDS

    def close(self) -> None:
        """End it in order, everything being answered."""
        self._turns.put(None)

    def cancel(self) -> None:
        """End it as it is."""
        self._answers.cancel()
        self._turns.put(None)


class StreamAppender:
    """Appends batches to one stream that nobody else appends to.

    Requests carry their offsets, so that one sent again because its answer was lost is told apart from one that
    never came: ALREADY_EXISTS means the very rows that this object sent before. Rows that BigQuery refuses are
    left out, the others go on without them. With ``is_kept`` its connection is kept from one call of
    :meth:`drain` to the next; :meth:`disconnect` ends it.
    """

    def __init__(
        self,
        clients: Clients,
        stream: str,
        *,
        seconds: float = APPEND_SECONDS,
        is_kept: bool = False,
    ) -> None:
        self.stream = stream
        self.offset = 0
        self.refusals: list[RefusedRow] = []
        self._clients = clients
        self._seconds = seconds
        self._is_kept = is_kept
        self._connection: StreamConnection | None = None

    def append(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Append ``batches``, each in one request; returns when all of them are durable or in ``refusals``.

        Raises:
            WarehouseUnavailableError: it did not work within the time; some rows may be in the stream.
            WarehouseError: BigQuery refuses the stream or the request as a whole.
        """
        outbox = AppendQueue()
        for rows in batches:
            outbox.put(rows)
        outbox.close()
        self.drain(outbox)

    def drain(self, outbox: AppendQueue) -> None:
        """Append what comes through ``outbox`` until it is closed, and everything durable or in ``refusals``.

        Raises:
            WarehouseUnavailableError: nothing got through for its time; some rows may be in the stream.
            WarehouseError: BigQuery refuses the stream or a request as a whole.
        """
        patience, done = Patience(self._seconds), self._done()
        try:
            while outbox.wait():
                try:
                    self._send(outbox)
                    patience.renew()
                except WarehouseUnavailableError as exc:
                    if exc.details.get("is_given_up"):
                        raise
                    if self._done() != done:
                        # A connection that breaks now and then is no outage.
                        done = self._done()
                        patience.renew()
                    patience.wait_after(exc)
        finally:
            if not self._is_kept:
                self.disconnect()

    @property
    def is_connected(self) -> bool:
        """Whether it keeps a connection."""
        return self._connection is not None

    def disconnect(self) -> None:
        """End the connection that is kept; the next rows go over a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _done(self) -> int:
        return self.offset + len(self.refusals)

    def _send(self, outbox: AppendQueue) -> None:
        """Send what comes over one connection, for as long as a turn may last."""
        what = f"appending to {self.stream}"
        turn = outbox.begin_turn(self.offset, seconds=_TURN_SECONDS)
        connection = self._connect()
        # A call has one deadline for its whole life, which is longer than a turn.
        watch = threading.Timer(CALL_SECONDS, connection.cancel)
        watch.daemon = True
        watch.start()
        is_refused = False
        try:
            connection.send(turn)
            while turn.wait(connection.is_alive):
                response = connection.receive()
                if response is None:
                    raise self._broken(
                        WarehouseUnavailableError(f"{what}: the connection ended without an answer."),
                        is_refused=is_refused,
                    )
                request = turn.answered()
                if response.row_errors:
                    is_refused = True
                    turn.keep(self._leave_out(request.rows, {e.index: e.message for e in response.row_errors}))
                elif is_refused:
                    turn.keep()
                else:
                    self._take(request, response, what)
                    turn.confirm()
        except SDK_ERRORS as exc:
            raise self._broken(error_from(exc, what), is_refused=is_refused) from exc
        finally:
            watch.cancel()
            if not turn.is_over():
                self._connection = None
                connection.cancel()
            turn.stop()

    def _connect(self) -> StreamConnection:
        if self._connection is not None and not self._connection.has_time():
            self.disconnect()
        if self._connection is None:
            self._connection = StreamConnection(self._clients, self.stream, self._frame)
        return self._connection

    def _broken(self, error: WarehouseError, *, is_refused: bool) -> WarehouseError:
        if is_refused and isinstance(error, WarehouseUnavailableError):
            # Old requests may still be under way to offsets that mean other rows now: this stream is given up.
            return WarehouseUnavailableError(
                f"{error.message} The connection broke after refused rows, so the batch is dropped.",
                is_given_up=True,
            )
        return error

    def _frame(self, request: Request) -> bytes:
        """Return an AppendRowsRequest as it goes over the wire.

        Protobuf would copy the rows three times on the way, which cost more time than all else that is done
        with them; so it makes the envelope, and the two heads around the rows are written by hand.
        """
        rows = request.rows.serialize()
        batch = field_head(1, rows.size)  # ArrowRecordBatch.serialized_record_batch
        # With every request, though the first alone needs it: no request depends on another then.
        schema = _ArrowData(writer_schema={"serialized_schema": request.rows.schema.serialize().to_pybytes()})
        data = schema.SerializeToString() + field_head(2, len(batch) + rows.size)  # ArrowData.rows
        envelope = _AppendRowsRequest(write_stream=self.stream, trace_id="refeed")
        envelope.offset.value = request.offset
        arrow_rows = field_head(5, len(data) + len(batch) + rows.size)  # AppendRowsRequest.arrow_rows
        return b"".join((envelope.SerializeToString(), arrow_rows, data, batch, rows))

    def _take(self, request: Request, response: Any, what: str) -> None:
        code = response.error.code
        if not code:
            found = response.append_result.offset
            if found is not None and int(found) != request.offset:
                raise WarehouseError(f"{what}: rows for offset {request.offset} were written at {found}.")
        elif code != code_pb2.ALREADY_EXISTS or not request.is_sent_before:
            raise self._error(response.error, what)
        self.offset = request.offset + request.rows.num_rows

    def _leave_out(self, rows: pa.RecordBatch, reasons: dict[int, str]) -> pa.RecordBatch:
        self.refusals += [RefusedRow(rows.slice(index, 1), reason) for index, reason in sorted(reasons.items())]
        return rows.filter(pa.array([index not in reasons for index in range(rows.num_rows)]))

    def _error(self, status: Any, what: str) -> WarehouseError:
        if status.code == code_pb2.OUT_OF_RANGE:
            # Rows before it are missing; a new stream will hold all of them.
            return WarehouseUnavailableError(f"{what}: {status.message}")
        fault = api.from_grpc_status(  # type: ignore[no-untyped-call]
            _grpc_code(status.code), status.message, details=list(status.details)
        )
        return error_from(fault, what)


def _grpc_code(number: int) -> Any:
    import grpc

    return next((code for code in grpc.StatusCode if code.value[0] == number), grpc.StatusCode.UNKNOWN)
