"""Appends to one write stream: every row once, at its own offset, whatever breaks on the way."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from google.api_core import exceptions as api
from google.cloud.bigquery_storage_v1 import types
from google.rpc import code_pb2

from connectors.bigquery.client import CALL_SECONDS, Clients
from connectors.bigquery.errors import SDK_ERRORS, error_from, our_errors, retry_passing
from connectors.bigquery.rows import Refusal
from connectors.bigquery.tables import TableId
from model.errors import WarehouseError, WarehouseUnavailableError

PENDING: Final = types.WriteStream.Type.PENDING
COMMITTED: Final = types.WriteStream.Type.COMMITTED
# How long a task tries before its batch is given up; its messages come again then.
APPEND_SECONDS: Final = 30.0


@dataclass(slots=True)
class _Request:
    """Rows of one append request, and where in the stream they belong."""

    rows: pa.RecordBatch
    offset: int = -1
    is_sent: bool = False
    is_sent_before: bool = False


def create_stream(clients: Clients, table: TableId, kind: Any, *, seconds: float = APPEND_SECONDS) -> str:
    """Create a write stream of ``kind`` and return its name.

    Raises:
        QuotaExceededError: too many were created within the hour.
        TableNotFoundError, WarehousePermissionError, WarehouseUnavailableError, WarehouseError: as they say.
    """

    def call() -> str:
        with our_errors(f"creating a write stream of {table}"):
            stream = clients.write().create_write_stream(
                parent=table.path, write_stream=types.WriteStream(type_=kind), retry=None, timeout=CALL_SECONDS
            )
            return str(stream.name)

    return retry_passing(call, seconds=seconds)


def finalize_stream(clients: Clients, stream: str, *, seconds: float = APPEND_SECONDS) -> int | None:
    """Let nothing more into ``stream`` and return how many rows it holds; None when there is no such stream.

    Doing it twice is doing it once.
    """

    def call() -> int | None:
        with our_errors(f"finalizing {stream}"):
            try:
                answer = clients.write().finalize_write_stream(name=stream, retry=None, timeout=CALL_SECONDS)
            except api.NotFound:
                return None
            return int(answer.row_count)

    return retry_passing(call, seconds=seconds)


class StreamAppender:
    """Appends batches to one stream that nobody else appends to.

    Requests carry their offsets, so that one sent again because its answer was lost is told apart from one that
    never came: ALREADY_EXISTS means the very rows that this object sent before. Rows that BigQuery refuses are
    left out, the others go on without them.
    """

    def __init__(self, clients: Clients, stream: str, *, offset: int = 0, seconds: float = APPEND_SECONDS) -> None:
        self.stream = stream
        self.offset = offset
        self.refusals: list[Refusal] = []
        self._clients = clients
        self._seconds = seconds

    def append(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Append ``batches``, each in one request; returns when all of them are durable or in ``refusals``.

        Raises:
            WarehouseUnavailableError: it did not work within the time; some rows may be in the stream.
            WarehouseError: BigQuery refuses the stream or the request as a whole.
        """
        waiting = [_Request(rows) for rows in batches]
        ends_at = time.monotonic() + self._seconds
        pause = 0.1
        while waiting:
            self._place(waiting)
            before = len(waiting)
            try:
                self._send(waiting)
            except WarehouseUnavailableError as exc:
                if time.monotonic() + pause > ends_at or exc.details.get("is_given_up"):
                    raise
                time.sleep(pause)
                # What got through counts as progress: a connection that breaks now and then is no outage.
                pause = 0.1 if len(waiting) < before else min(pause * 2, 5.0)

    def _place(self, waiting: list[_Request]) -> None:
        offset = self.offset
        for request in waiting:
            # Sent before means: these very rows, to this very offset.
            request.is_sent = request.is_sent_before = request.is_sent and request.offset == offset
            request.offset = offset
            offset += request.rows.num_rows

    def _send(self, waiting: list[_Request]) -> None:
        """Send ``waiting`` over one connection and leave in it what has to be sent again."""
        what = f"appending to {self.stream}"
        sent, is_refused = list(waiting), False
        responses = None
        try:
            responses = self._clients.write().append_rows(
                self._requests(sent),
                retry=None,
                timeout=max(CALL_SECONDS, self._seconds),
                # Google's own writer sends it: the routing header that the client can't make of a stream.
                metadata=(("x-goog-request-params", f"write_stream={self.stream}"),),
            )
            for request, response in zip(sent, responses, strict=False):
                if response.row_errors:
                    is_refused = True
                    self._leave_out(request, {int(e.index): str(e.message) for e in response.row_errors})
                elif not is_refused:
                    self._take(request, response, what)
                    waiting.remove(request)
                # Behind refused rows nothing fits its offset: such requests are sent again with new ones, but
                # only once the connection has answered them all, so that no old one can slip in between.
                if request is sent[-1]:
                    waiting[:] = [r for r in waiting if r.rows.num_rows]
                    return
        except SDK_ERRORS as exc:
            raise self._broken(error_from(exc, what), is_refused=is_refused) from exc
        finally:
            if responses is not None and waiting:
                responses.cancel()
        raise self._broken(
            WarehouseUnavailableError(f"{what}: the connection ended without an answer."), is_refused=is_refused
        )

    def _broken(self, error: WarehouseError, *, is_refused: bool) -> WarehouseError:
        if is_refused and isinstance(error, WarehouseUnavailableError):
            # Old requests may still be under way to offsets that mean other rows now: this stream is given up.
            return WarehouseUnavailableError(
                f"{error.message} It broke behind refused rows, the batch is given up.", is_given_up=True
            )
        return error

    def _requests(self, waiting: Sequence[_Request]) -> Iterator[Any]:
        for request in waiting:
            rows = request.rows
            data = types.AppendRowsRequest.ArrowData(
                # With every request, though the first alone needs it: no request depends on another then.
                writer_schema=types.ArrowSchema(serialized_schema=rows.schema.serialize().to_pybytes()),
                rows=types.ArrowRecordBatch(serialized_record_batch=rows.serialize().to_pybytes()),
            )
            request.is_sent = True
            yield types.AppendRowsRequest(
                write_stream=self.stream, offset=request.offset, arrow_rows=data, trace_id="refeed"
            )

    def _take(self, request: _Request, response: Any, what: str) -> None:
        code = response.error.code
        if not code:
            found = response.append_result.offset
            if found is not None and int(found) != request.offset:
                raise WarehouseError(f"{what}: rows for offset {request.offset} were put at {found}.")
        elif code != code_pb2.ALREADY_EXISTS or not request.is_sent_before:
            raise self._error(response.error, what)
        self.offset = request.offset + request.rows.num_rows

    def _leave_out(self, request: _Request, reasons: dict[int, str]) -> None:
        rows = request.rows
        self.refusals += [Refusal(rows.slice(index, 1), reason) for index, reason in sorted(reasons.items())]
        request.rows = rows.filter(pa.array([index not in reasons for index in range(rows.num_rows)]))

    def _error(self, status: Any, what: str) -> WarehouseError:
        if status.code == code_pb2.OUT_OF_RANGE:
            # Rows before it are missing; a new stream will hold all of them.
            return WarehouseUnavailableError(f"{what}: {status.message}")
        fault = api.from_grpc_status(_grpc_code(status.code), status.message)  # type: ignore[no-untyped-call]
        return error_from(fault, what)


def _grpc_code(number: int) -> Any:
    import grpc

    return next((code for code in grpc.StatusCode if code.value[0] == number), grpc.StatusCode.UNKNOWN)
