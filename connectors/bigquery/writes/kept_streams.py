"""BUFFERED streams that a process keeps over batches, with their connections."""

import threading
import time
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from connectors.bigquery.client import Clients
from connectors.bigquery.table_id import TableId
from connectors.bigquery.writes.appender import StreamAppender
from connectors.bigquery.writes.write_streams import BUFFERED, create_stream

# Connections that a process keeps between batches: a project has a quota of those that are open ("Storage Write
# API best practices"), and each has a thread here.
_CONNECTIONS: Final = 64
_IDLE_CONNECTION_SECONDS: Final = 60.0
# BigQuery forgets streams without traffic after days.
_IDLE_STREAM_SECONDS: Final = 3600.0


@dataclass(slots=True)
class _Kept:
    appender: StreamAppender
    used_at: float = field(default_factory=time.monotonic)


class KeptStreams:
    """The streams that wait for their next rows, by run, table and columns; used by many threads.

    A stream that was taken belongs to one part until it is given back. One that is not given back is never used
    again: its last rows will not be committed, and rows after them can't be flushed without them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[tuple[str, str, str], list[_Kept]] = {}

    def take(self, clients: Clients, table: TableId, run: str, schema: pa.Schema) -> StreamAppender:
        """Return a stream for rows of ``schema``, a new one when none is free.

        ``run`` keeps the streams apart that different drivers commit.

        Raises:
            QuotaExceededError, TableNotFoundError, WarehousePermissionError, WarehouseUnavailableError,
            WarehouseError: it can't be created.
        """
        with self._lock:
            self._sweep()
            free = self._free.get((run, str(table), str(schema)), [])
            if free:
                return free.pop().appender
        return self.create(clients, table)

    @staticmethod
    def create(clients: Clients, table: TableId) -> StreamAppender:
        """Return a new stream."""
        return StreamAppender(clients, create_stream(clients, table, BUFFERED), is_kept=True)

    def give_back(self, appender: StreamAppender, table: TableId, run: str, schema: pa.Schema) -> None:
        """Keep a stream all of whose rows were handed on, for the next ones."""
        appender.refusals = []
        with self._lock:
            others = (kept for free in self._free.values() for kept in free)
            if sum(kept.appender.is_connected for kept in others) >= _CONNECTIONS:
                appender.disconnect()
            self._free.setdefault((run, str(table), str(schema)), []).append(_Kept(appender))

    def _sweep(self) -> None:
        now = time.monotonic()
        for key, free in list(self._free.items()):
            for kept in free:
                if now - kept.used_at > _IDLE_CONNECTION_SECONDS:
                    kept.appender.disconnect()
            free[:] = [kept for kept in free if now - kept.used_at <= _IDLE_STREAM_SECONDS]
            if not free:
                del self._free[key]


# Spark uses a worker for one task after the other.
KEPT: Final = KeptStreams()
