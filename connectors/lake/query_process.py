"""Queries over the lake in a process of their own: what one of them does wrong ends with it."""

import atexit
import os
import resource
import select
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import pyarrow as pa

from connectors.lake import query_wire as wire
from connectors.lake.object_reads import PIECE_BYTES, BucketReads, Tail, open_reads
from connectors.lake.objects import is_bucket
from connectors.lake.query import ArchiveSnapshot, QueryLimits, open_connection, warm_up
from model.disk import check_room
from model.errors import QueryError, QueryStoppedError, QueryTooLargeError
from model.process import signal_name

_STOP_CHECK_SECONDS: Final = 0.1
_START_SECONDS: Final = 60.0
# The process ends its own query at the deadline and says so; it is killed when it does not.
_GRACE_SECONDS: Final = 2.0
_QUERIES_AT_ONCE: Final = 2
# Reads of one process that may be under way or wait for their turn.
_READS_AT_ONCE: Final = 64
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
                with open_reads(snapshot.paths) as reads:
                    document = wire.render_request(snapshot, statements, own)
                    answers = Answers(snapshot.paths, reads)
                    yield process.ask(document, own, answers, should_stop, max_bytes)
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
        self,
        document: bytes,
        limits: QueryLimits,
        answers: "Answers",
        should_stop: Callable[[], bool],
        max_bytes: int,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the frames of the answer, none of which may have more than ``max_bytes``.

        What the process asks for meanwhile is among ``answers``.

        Raises:
            QueryError: the answer is one, or there will be none.
            WarehouseError: a file in a bucket can't be read.
        """
        reader = _FrameReader(self._out.fileno(), answers, should_stop, max_bytes)
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
                if kind in {wire.TAIL, wire.RANGE}:
                    reader.wait_until(answers.has_room, deadline)
                    answers.begin(kind, body, self._in)
                    continue
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


class Answers:
    """Reads what a process asks for of the files in a bucket: those of its request, and so much at a time.

    It is a stranger's query that asks, so that each request is checked.
    """

    def __init__(self, paths: Sequence[str], reads: BucketReads | None) -> None:
        self._paths = paths
        self._reads = reads
        self._room = threading.BoundedSemaphore(_READS_AT_ONCE)
        self._lock = threading.Lock()
        self._failure: BaseException | None = None

    def has_room(self) -> bool:
        """Take a place for one more, where there is one within a moment."""
        return self._room.acquire(timeout=_STOP_CHECK_SECONDS)

    def begin(self, kind: bytes, body: bytes, pipe: IO[bytes]) -> None:
        """Begin to read, after :meth:`has_room`; what is read goes to ``pipe``."""
        try:
            number, place, start, end = wire.ASKED.unpack(body)
            path = self._paths[place]
        except (struct.error, IndexError) as exc:
            raise QueryError("The query's process asked for a file that is not its own.") from exc
        if self._reads is None or not 0 <= end - start <= PIECE_BYTES:
            raise QueryError("The query's process asked for bytes that it may not have.")
        found: Future[Any]
        found = self._reads.tail(path) if kind == wire.TAIL else self._reads.range(path, start, end)
        found.add_done_callback(partial(self._answer, number, pipe))

    def check(self) -> None:
        """Raise what a read failed by."""
        if self._failure is not None:
            raise self._failure

    def _answer(self, number: int, pipe: IO[bytes], found: "Future[Any]") -> None:
        try:
            if found.cancelled():
                return
            if (failure := found.exception()) is not None:
                self._failure = failure
                return
            size, content = found.result() if isinstance(found.result(), Tail) else (0, found.result())
            # A process that has ended reads nothing more.
            with self._lock, suppress(OSError, ValueError):
                pipe.write(wire.FOUND.pack(number, size, len(content)))
                pipe.write(content)
                pipe.flush()
        finally:
            self._room.release()


class _FrameReader:
    """Reads frames from a pipe, looking up several times a second."""

    def __init__(self, descriptor: int, answers: Answers, should_stop: Callable[[], bool], max_bytes: int) -> None:
        self._descriptor = descriptor
        self._answers = answers
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

    def wait_until(self, is_ready: Callable[[], Any], deadline: float) -> None:
        """Ask ``is_ready``, which takes a moment, until it is so, or there is a reason to wait no longer."""
        while not is_ready():
            self._answers.check()
            if self._should_stop():
                raise QueryStoppedError
            if time.monotonic() > deadline:
                raise TimeoutError

    def _exactly(self, size: int, deadline: float) -> bytes:
        parts: list[bytes] = []
        while size:
            self.wait_until(lambda: self._poll.poll(_STOP_CHECK_SECONDS * 1000), deadline)
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
    pipe_in, pipe_out = sys.stdin.buffer, _FrameWriter(os.fdopen(os.dup(1), "wb"))
    # DuckDB writes to standard output when memory runs out; that must not end up inside the answer.
    os.dup2(2, 1)
    warm_up()
    pipe_out.write(wire.READY)
    head = pipe_in.read(wire.LENGTH.size)
    if len(head) < wire.LENGTH.size:
        return
    snapshot, statements, limits = wire.read_request(pipe_in.read(wire.LENGTH.unpack(head)[0]))
    reads = _PipeReads(snapshot.paths, pipe_out)
    threading.Thread(target=reads.receive, args=(pipe_in,), daemon=True).start()
    _limit_process(limits)
    try:
        with open_connection(snapshot, limits, reads=reads if reads.scheme else None) as run:
            for sql, parameters in statements:
                reader = run(sql, parameters)
                # The first one is empty: a result without rows has columns too.
                for batch in chain([_empty(reader.schema)], reader):
                    pipe_out.write(wire.BATCH, wire.render_batch(batch))
                pipe_out.write(wire.END)
        answer = wire.DONE, b""
    except QueryError as exc:
        answer = wire.ERROR, wire.render_error(exc)
    except MemoryError:
        error = QueryTooLargeError(f"The query needs more than {limits.memory} of memory (REFEED_QUERY_MEMORY).")
        answer = wire.ERROR, wire.render_error(error)
    pipe_out.write(*answer)
    # Whatever threads the query left must not keep the process.
    os._exit(0)


class _FrameWriter:
    """Writes frames, whole, from several threads."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def write(self, kind: bytes, body: bytes = b"") -> None:
        with self._lock:
            self._pipe.write(wire.render_frame(kind, body))
            self._pipe.flush()


class _PipeReads:
    """Reads files in a bucket by asking the process that has the right to: this one has none, and no network."""

    def __init__(self, paths: Sequence[str], pipe: _FrameWriter) -> None:
        bucket = next(filter(is_bucket, paths), "")
        self.scheme = bucket.partition("://")[0]
        self._places = {path: place for place, path in enumerate(paths)}
        self._pipe = pipe
        self._numbers = count()
        self._waiting: dict[int, Future[Any]] = {}

    def tail(self, path: str) -> "Future[Tail]":
        return self._ask(wire.TAIL, path)

    def range(self, path: str, start: int, end: int) -> "Future[bytes]":
        return self._ask(wire.RANGE, path, start, end)

    def _ask(self, kind: bytes, path: str, start: int = 0, end: int = 0) -> "Future[Any]":
        if path not in self._places:
            raise PermissionError(f"{path} is no file that is to be read.")
        number, found = next(self._numbers), Future[Any]()
        self._waiting[number] = found
        self._pipe.write(kind, wire.ASKED.pack(number, self._places[path], start, end))
        return found

    def receive(self, pipe: IO[bytes]) -> None:
        """Take answers as they come, and end this process when there is nobody left to give any."""
        while len(head := pipe.read(wire.FOUND.size)) == wire.FOUND.size:
            number, size, length = wire.FOUND.unpack(head)
            content = pipe.read(length)
            self._waiting.pop(number).set_result(Tail(size, content) if size else content)
        os._exit(1)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


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
