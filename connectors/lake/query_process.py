"""Queries over the lake in a process of their own: what one of them does wrong ends with it."""

import atexit
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import pyarrow as pa

from connectors.lake import query_wire as wire
from connectors.lake.query import ArchiveSnapshot, QueryLimits, open_connection, warm_up
from model.disk import check_room
from model.errors import QueryError, QueryStoppedError, QueryTooLargeError
from model.process import signal_name

_STOP_CHECK_SECONDS: Final = 0.1
_START_SECONDS: Final = 60.0
# The process ends its own query at the deadline and says so; it is killed when it does not.
_GRACE_SECONDS: Final = 2.0
_QUERIES_AT_ONCE: Final = 2
MAX_RESULT_BYTES: Final = 128 * 1024 * 1024
# What the process may know of its surroundings: nothing that is a secret.
_ENVIRONMENT: Final = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "SSL_CERT_FILE")


class Statement(NamedTuple):
    """One SELECT over a snapshot, with the values of its parameters."""

    sql: str
    parameters: Mapping[str, Any]


class QueryProcesses:
    """Runs queries, each call in a process of its own that ends with it; two calls at once, others wait.

    With ``keep_spare`` the next process is started ahead, so that a query does not wait for it.
    """

    def __init__(self, *, keep_spare: bool = False) -> None:
        self._keep_spare = keep_spare
        self._spare: _Process | None = None
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(_QUERIES_AT_ONCE)
        self._is_closed = False
        atexit.register(self.close)

    def warm(self) -> None:
        """Start the spare process now."""
        with self._lock:
            if self._keep_spare and not self._is_closed and self._spare is None:
                self._spare = _Process()

    def close(self) -> None:
        """End the spare process; queries that run go on to their end."""
        atexit.unregister(self.close)
        with self._lock:
            self._is_closed = True
            spare, self._spare = self._spare, None
        if spare is not None:
            spare.end()

    def run(
        self,
        snapshot: ArchiveSnapshot,
        statements: Sequence[Statement],
        limits: QueryLimits,
        *,
        max_bytes: int = MAX_RESULT_BYTES,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> list[pa.Table]:
        """Return the whole results of ``statements``, which run one after the other within one set of limits.

        Raises:
            QueryTooLargeError: they need more memory, disk or time than they may use, or give too much back.
            QueryError: one fails for a reason of its own, or the process dies of it.
            QueryStoppedError: ``should_stop`` said so; it is asked ten times a second.
        """
        results: list[list[pa.RecordBatch]] = [[]]
        size = 0
        with self._results(snapshot, statements, limits, should_stop, max_bytes) as frames:
            for kind, body in frames:
                if kind == wire.BATCH:
                    size += len(body)
                    if size > max_bytes:
                        raise QueryTooLargeError(
                            f"The query returns more than {max_bytes:,} bytes, the limit for this call."
                        )
                    results[-1] += wire.read_batches(body)
                elif kind == wire.END:
                    results.append([])
        return [pa.Table.from_batches(batches) for batches in results[: len(statements)]]

    @contextmanager
    def open(
        self,
        snapshot: ArchiveSnapshot,
        statement: Statement,
        limits: QueryLimits,
        *,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[Iterator[pa.RecordBatch]]:
        """Run one query and give its rows as they come, in batches; leaving the block ends it.

        Raises:
            QueryTooLargeError, QueryError, QueryStoppedError: as :meth:`run`.
        """
        with self._results(snapshot, [statement], limits, should_stop) as frames:
            yield (
                batch for kind, body in frames if kind == wire.BATCH
                for batch in wire.read_batches(body) if batch.num_rows
            )  # fmt: skip

    @contextmanager
    def _results(
        self,
        snapshot: ArchiveSnapshot,
        statements: Sequence[Statement],
        limits: QueryLimits,
        should_stop: Callable[[], bool],
        max_bytes: int = wire.MAX_FRAME_BYTES,
    ) -> Iterator[Iterator[tuple[bytes, bytes]]]:
        deadline = time.monotonic() + limits.seconds
        limits.temp_folder.mkdir(parents=True, exist_ok=True)
        check_room(limits.temp_folder, limits.min_free_bytes)
        while not self._slots.acquire(timeout=min(_STOP_CHECK_SECONDS, limits.seconds)):
            if should_stop():
                raise QueryStoppedError
            if time.monotonic() > deadline:
                raise QueryTooLargeError(
                    f"The query could not run within {limits.seconds:.0f} s, because other queries ran. "
                    "Try again later."
                )
        # A process that is killed leaves what it spilled.
        spill = limits.temp_folder / f"query-{uuid.uuid4().hex}"
        own = replace(limits, temp_folder=spill, seconds=max(0.1, deadline - time.monotonic()))
        try:
            process = self._take()
            try:
                yield process.ask(wire.render_request(snapshot, statements, own), own, should_stop, max_bytes)
            finally:
                process.end()
        finally:
            shutil.rmtree(spill, ignore_errors=True)
            self._slots.release()
            self.warm()

    def _take(self) -> "_Process":
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None and spare.is_alive():
            return spare
        if spare is not None:
            spare.end()
        return _Process()


class _Process:
    """One process, for one call."""

    def __init__(self) -> None:
        known = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        try:
            self._popen = subprocess.Popen(
                [sys.executable, "-c", "from connectors.lake.query_process import serve; serve()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**known, "PYTHONPATH": paths},
                start_new_session=True,  # Ctrl-C is for the owner, which drains first
            )
        except OSError as exc:
            raise QueryError(f"The process that runs queries does not start: {exc}") from exc
        self._in, self._out = _pipe(self._popen.stdin), _pipe(self._popen.stdout)

    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def ask(
        self, document: bytes, limits: QueryLimits, should_stop: Callable[[], bool], max_bytes: int
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the frames of the answer, none of which may have more than ``max_bytes``.

        Raises:
            QueryError: the answer is one, or there will be none.
        """
        reader = _FrameReader(self._out.fileno(), should_stop, max_bytes)
        try:
            reader.expect(wire.READY, time.monotonic() + _START_SECONDS)
            deadline = time.monotonic() + limits.seconds + _GRACE_SECONDS
            self._in.write(document)
            self._in.flush()
            while True:
                kind, body = reader.read(deadline)
                if kind == wire.ERROR:
                    raise wire.read_error(body)
                if kind == wire.DONE:
                    return
                yield kind, body
        except (EOFError, BrokenPipeError, ConnectionResetError) as exc:
            raise self._death() from exc
        except TimeoutError as exc:
            raise QueryTooLargeError(f"The query took longer than {limits.seconds:.0f} s.") from exc

    def end(self) -> None:
        self._popen.kill()
        self._popen.wait()
        for pipe in (self._in, self._out):
            with suppress(OSError):
                pipe.close()

    def _death(self) -> QueryError:
        """Return what the end of the process means, after waiting for it."""
        try:
            code = self._popen.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            return QueryError("The query's process no longer answers.")
        if code == -signal.SIGKILL:
            return QueryTooLargeError(
                "The operating system ended the query's process, because the machine ran out of memory."
            )
        if code == -signal.SIGXCPU:
            return QueryTooLargeError("The query reached its limit of CPU time.")
        how = f"signal {signal_name(-code)}" if code < 0 else f"exit code {code}"
        return QueryError(
            f"The query's process ended with {how}. No other process is affected. Make the query simpler."
        )


class _FrameReader:
    """Reads frames from a pipe, looking up several times a second."""

    def __init__(self, descriptor: int, should_stop: Callable[[], bool], max_bytes: int) -> None:
        self._descriptor = descriptor
        self._should_stop = should_stop
        self._max_bytes = max_bytes
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN | select.POLLHUP)

    def expect(self, kind: bytes, deadline: float) -> None:
        found, _ = self.read(deadline)
        if found != kind:
            raise EOFError

    def read(self, deadline: float) -> tuple[bytes, bytes]:
        length, kind = wire.HEAD.unpack(self._exactly(wire.HEAD.size, deadline))
        if length > self._max_bytes:
            raise QueryTooLargeError(
                f"One batch of the result has {length:,} bytes, more than {self._max_bytes:,}."
            )
        return kind, self._exactly(length, deadline)

    def _exactly(self, size: int, deadline: float) -> bytes:
        parts: list[bytes] = []
        while size:
            while not self._poll.poll(_STOP_CHECK_SECONDS * 1000):
                if self._should_stop():
                    raise QueryStoppedError
                if time.monotonic() > deadline:
                    raise TimeoutError
            part = os.read(self._descriptor, min(size, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None  # Popen was asked for both
    return pipe


# --- in the process --------------------------------------------------------------------------------------------


def serve() -> None:
    """Answer one request from standard input, then end; also end when the asking process does."""
    pipe_in, pipe_out = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # DuckDB writes to standard output when memory runs out; that must not end up inside the answer.
    os.dup2(2, 1)
    warm_up()
    pipe_out.write(wire.render_frame(wire.READY))
    pipe_out.flush()
    head = pipe_in.read(wire.LENGTH.size)
    if len(head) < wire.LENGTH.size:
        return
    snapshot, statements, limits = wire.read_request(pipe_in.read(wire.LENGTH.unpack(head)[0]))
    threading.Thread(target=_end_with_asker, args=(pipe_in,), daemon=True).start()
    _limit_process(limits)
    try:
        with open_connection(snapshot, limits) as run:
            for sql, parameters in statements:
                reader = run(sql, parameters)
                # The first one is empty: a result without rows has columns too.
                for batch in chain([_empty(reader.schema)], reader):
                    pipe_out.write(wire.render_frame(wire.BATCH, wire.render_batch(batch)))
                    pipe_out.flush()
                pipe_out.write(wire.render_frame(wire.END))
        answer = wire.render_frame(wire.DONE)
    except QueryError as exc:
        answer = wire.render_frame(wire.ERROR, wire.render_error(exc))
    except MemoryError:
        error = QueryTooLargeError(f"The query needs more than {limits.memory} of memory (REFEED_QUERY_MEMORY).")
        answer = wire.render_frame(wire.ERROR, wire.render_error(error))
    pipe_out.write(answer)
    pipe_out.flush()
    # Whatever threads the query left must not keep the process.
    os._exit(0)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def _end_with_asker(pipe: IO[bytes]) -> None:
    pipe.read(1)
    os._exit(1)


def _limit_process(limits: QueryLimits) -> None:
    """Let the system enforce what DuckDB does not count: its own bookkeeping, and what it has wrong."""
    seconds = int(limits.seconds * limits.threads + 30)
    wanted = [
        (resource.RLIMIT_DATA, limits.memory_bytes + limits.overhead_bytes),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, limits.temp_bytes),
    ]
    for kind, value in wanted:
        _, hard = resource.getrlimit(kind)
        top = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (top, top))
    # Where memory runs out all the same, the kernel takes this process first.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    with suppress(OSError):
        os.nice(5)


__all__ = ["MAX_RESULT_BYTES", "QueryProcesses", "Statement", "serve"]
