"""Rows on their way into one write stream: in order, and kept until BigQuery has answered for them."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from model.errors import WarehouseError

# How often a connection on which no answer is due is checked for life.
_ALIVE_SECONDS: Final = 1.0


@dataclass(slots=True)
class Request:
    """Rows of one append request, and where in the stream they belong.

    ``is_sent_before``: these very rows went to this very offset over a connection that broke.
    """

    rows: pa.RecordBatch
    offset: int = -1
    is_sent: bool = False
    is_sent_before: bool = False


class AppendQueue:
    """A queue between the threads that have rows and the one thread that sends them.

    ``max_bytes`` of rows may wait for their answers; :meth:`put` blocks until more fit.
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        self.changed = threading.Condition()
        self._max_bytes = max_bytes
        self.requests: deque[Request] = deque()
        self.waiting_bytes = 0
        self.is_closed = False
        self._failure: BaseException | None = None
        self._turn: ConnectionTurn | None = None

    def put(self, rows: pa.RecordBatch) -> None:
        """Add rows, as one request.

        Raises:
            Exception: what :meth:`fail` was given; nothing is sent any more.
        """
        with self.changed:
            while self._failure is None and self.requests and self._is_too_much(rows.nbytes):
                self.changed.wait()
            if self._failure is not None:
                raise self._failure
            self.requests.append(Request(rows))
            self.waiting_bytes += rows.nbytes
            self.changed.notify_all()

    def close(self) -> None:
        """Close the queue: nothing more will be put."""
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()

    def fail(self, failure: BaseException) -> None:
        """Make every ``put`` raise: nothing is sent any more."""
        with self.changed:
            self._failure = failure
            self.changed.notify_all()

    def wait(self) -> bool:
        """Wait for rows to send; False when all were answered and no more will come."""
        with self.changed:
            while not self.requests and not self.is_closed:
                self.changed.wait()
            return bool(self.requests)

    def begin_turn(self, offset: int, *, seconds: float) -> "ConnectionTurn":
        """Begin a connection's turn, ``offset`` being where the oldest rows belong; the one before it is over."""
        with self.changed:
            if self._turn is not None:
                self._turn.is_stopped = True
            self._turn = ConnectionTurn(self, offset, time.monotonic() + seconds)
            self.changed.notify_all()
            return self._turn

    def _is_too_much(self, more_bytes: int) -> bool:
        return self._max_bytes is not None and self.waiting_bytes + more_bytes > self._max_bytes


class ConnectionTurn:
    """What one connection sends of an outbox, and what of it was answered; iterated by gRPC's own thread.

    Answers come in the order of the requests. Once a request's rows are refused nothing after it fits its
    offset: the turn sends no more, and what it has sent since stays in the outbox, whatever the answer.
    """

    def __init__(self, outbox: AppendQueue, offset: int, ends_at: float) -> None:
        self.is_stopped = False
        # The two are one thing with two lifetimes: everything here happens under the outbox's condition.
        self._outbox = outbox
        self._changed = outbox.changed
        self._requests = outbox.requests
        self._offset = offset
        self._ends_at = ends_at
        # Of the outbox's oldest requests: how many were sent, and how many of those were answered and stay.
        self._sent = 0
        self._kept = 0

    def __iter__(self) -> Iterator[Request]:
        """Yield requests, placed one after the other, until the turn is stopped, has lasted, or all are sent."""
        while (request := self._next()) is not None:
            yield request

    def _next(self) -> Request | None:
        with self._changed:
            while not self.is_stopped:
                if self._sent < len(self._requests):
                    request = self._place(self._requests[self._sent])
                    self._changed.notify_all()
                    return request
                left_seconds = self._ends_at - time.monotonic()
                if self._outbox.is_closed or left_seconds <= 0:
                    self.is_stopped = True
                    self._changed.notify_all()
                else:
                    self._changed.wait(left_seconds)
            return None

    def _place(self, request: Request) -> Request:
        request.is_sent_before = request.is_sent and request.offset == self._offset
        request.offset = self._offset
        request.is_sent = True
        self._offset += request.rows.num_rows
        self._sent += 1
        self.is_stopped = time.monotonic() > self._ends_at
        return request

    def wait(self, is_alive: Callable[[], bool]) -> bool:
        """Wait until an answer is due, or the connection is dead; False when the turn is over."""
        with self._changed:
            while self._kept == self._sent:
                if self.is_over():
                    return False
                if not is_alive():
                    return True
                self._changed.wait(_ALIVE_SECONDS)
            return True

    def answered(self) -> Request:
        """Return the request that the next answer is for.

        Raises:
            WarehouseError: there is none.
        """
        with self._changed:
            if self._kept >= self._sent:
                raise WarehouseError("BigQuery answered a request that was never sent.")
            return self._requests[self._kept]

    def confirm(self) -> None:
        """Take the answered request out of the outbox: its rows are durable."""
        with self._changed:
            self._outbox.waiting_bytes -= self._requests.popleft().rows.nbytes
            self._sent -= 1
            self._changed.notify_all()

    def keep(self, fitting: pa.RecordBatch | None = None) -> None:
        """Keep the answered request for the next turn, with the ``fitting`` of its rows where some are refused."""
        with self._changed:
            request = self._requests[self._kept]
            if fitting is not None:
                self._outbox.waiting_bytes -= request.rows.nbytes - fitting.nbytes
                request.rows, request.is_sent = fitting, False
            self._kept += 1
            self.is_stopped = True
            self._changed.notify_all()

    def is_over(self) -> bool:
        """Whether nothing more will be sent and everything that was is answered."""
        with self._changed:
            is_all = self._outbox.is_closed and self._sent == len(self._requests)
            return (self.is_stopped or is_all) and self._kept == self._sent

    def stop(self) -> None:
        """End the turn; requests of which no row is left are forgotten."""
        with self._changed:
            self.is_stopped = True
            left = [request for request in self._requests if request.rows.num_rows]
            self._requests.clear()
            self._requests.extend(left)
            self._changed.notify_all()
