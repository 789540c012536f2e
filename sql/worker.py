"""The process that reads queries: warm, and killed when one query takes more than its share."""

import atexit
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final

from model.errors import RefeedError
from sql.binder import Policy
from sql.lexer import check_size
from sql.parameters import Parameter
from sql.verdict import ValidatedQuery, judge_query
from sql.violation import QueryRefusedError, Violation

# CPU seconds a query may cost; a normal one costs two thousandths.
CPU_SECONDS: Final = 0.15
# After this long the worker is killed, unless the machine gave it no time to run.
WALL_SECONDS: Final = 0.23
PATIENCE_SECONDS: Final = 5.0
START_SECONDS: Final = 30.0
_LENGTH: Final = struct.Struct(">I")
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class GateUnavailableError(RefeedError):
    """The process that checks queries (the SQL gate) does not start."""

    code = "gate_unavailable"


class Gate:
    """Warm workers; a query has one to itself, for about two milliseconds, and waits while all are busy.

    A worker starts with the first query that finds none, or with ``warm``, and ends with this process. With two,
    the other one answers while one that was killed is started again.
    """

    def __init__(self, workers: int = 2) -> None:
        self._limit = workers
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._waiting: deque[Future[Worker]] = deque()
        self._count = 0
        self._owner = os.getpid()
        self._is_registered = False
        self.kills = 0

    def warm(self, workers: int | None = None) -> None:
        """Start ``workers`` workers now, or all, so that no query waits for one; return when they are ready.

        Raises:
            GateUnavailableError: one does not start.
        """
        taken: list[Worker] = []
        try:
            while len(taken) < (self._limit if workers is None else workers):
                taken.append(self._take())
            for worker in taken:
                worker.await_ready()
        finally:
            for worker in taken:
                self._give_back(worker)

    def close(self) -> None:
        """End the workers that are idle; the next query starts another one."""
        with self._lock:
            ended, self._idle = self._idle, []
            self._count -= len(ended)
        for worker in ended:
            worker.end()

    def validate(self, text: str, parameters: Mapping[str, Parameter], policy: Policy) -> ValidatedQuery:
        """Return the verdict of a worker; see ``sql.validate.validate_query``."""
        fault = check_size(text)
        if fault is not None:
            raise QueryRefusedError([Violation(fault.code, fault.message, 1, 1, fault.rewrite)])
        worker = self._take()
        try:
            answer = worker.ask((text, dict(parameters), policy))
            if answer is None:
                self.kills += 1
        finally:
            self._give_back(worker)
        if isinstance(answer, ValidatedQuery):
            return answer
        if isinstance(answer, QueryRefusedError):
            raise answer
        raise QueryRefusedError([_too_slow()])

    def _take(self) -> "Worker":
        with self._lock:
            if self._owner != os.getpid():
                # A fork has its parent's pipes: they are not ours to talk into.
                self._idle, self._waiting, self._count, self._owner = [], deque(), 0, os.getpid()
            if self._idle:
                # One that is still starting is the last choice.
                return self._idle.pop(max(range(len(self._idle)), key=lambda place: self._idle[place].is_ready))
            if self._count < self._limit:
                self._count += 1
                if not self._is_registered:
                    atexit.register(self.close)
                    self._is_registered = True
                return Worker()
            turn: Future[Worker] = Future()
            self._waiting.append(turn)
        return turn.result()

    def _give_back(self, worker: "Worker") -> None:
        with self._lock:
            if worker.owner != os.getpid():
                return
            if self._waiting:
                # Handed on, not put down: a caller that comes now must not go before those who wait.
                self._waiting.popleft().set_result(worker)
            else:
                self._idle.append(worker)


class Worker:
    """One process that reads queries, started again whenever it ended."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.is_ready = False
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, request: object) -> Any:
        """Return the answer; None when the process used up its time or died, and another one is on its way."""
        process = self.await_ready()
        try:
            write_frame(_pipe(process.stdin), request)
            answer = self._await(process)
        except (OSError, EOFError, pickle.UnpicklingError):
            answer = None
        if answer is None:
            self.end()
            # The next query finds a process that is on its way already.
            self._start()
        return answer

    def await_ready(self) -> "subprocess.Popen[bytes]":
        """Return the process once it reads queries.

        Raises:
            GateUnavailableError: it does not start.
        """
        if self.process is not None and self.process.poll() is not None:
            self.end()
        process = self.process or self._start()
        if not self.is_ready:
            try:
                if _is_readable(process, START_SECONDS):
                    self.is_ready = read_frame(_pipe(process.stdout)) == "ready"
            except (OSError, EOFError) as exc:
                self.end()
                raise GateUnavailableError from exc
            if not self.is_ready:
                self.end()
                raise GateUnavailableError
        return process

    def end(self) -> None:
        """End the process."""
        process, self.process, self.is_ready = self.process, None, False
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _start(self) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from sql.worker import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the owner, which drains first
        )
        return self.process

    def _await(self, process: "subprocess.Popen[bytes]") -> Any:
        """Return the answer, or None when the process used up its time or died."""
        began = time.monotonic()
        used = _cpu_seconds(process.pid)
        wait = WALL_SECONDS
        while not _is_readable(process, wait):
            if time.monotonic() - began > PATIENCE_SECONDS or _cpu_seconds(process.pid) - used >= CPU_SECONDS:
                return None
            wait = 0.02
        return read_frame(_pipe(process.stdout))


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None  # Popen was asked for both
    return pipe


def _is_readable(process: subprocess.Popen[bytes], seconds: float) -> bool:
    poll = select.poll()
    poll.register(_pipe(process.stdout), select.POLLIN | select.POLLHUP)
    return bool(poll.poll(seconds * 1000))


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time a process has used, all of the wall's when the system does not tell."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - a hot path over procfs
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return time.monotonic()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _too_slow() -> Violation:
    return Violation("query_too_slow", "The gate took too long to read this query. Write a simpler query.", 1, 1)


def write_frame(pipe: IO[bytes], value: object) -> None:
    """Write one value with its length before it."""
    body = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.write(_LENGTH.pack(len(body)) + body)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> Any:
    """Read one value.

    Raises:
        EOFError: the other side is gone.
    """
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    body = pipe.read(_LENGTH.unpack(head)[0])
    return pickle.loads(body)  # noqa: S301 - both sides are this program  # nosec B301


class _TimeUpError(BaseException):
    """The CPU time of one query is used up; a BaseException, so that no reader can swallow it."""


def _time_up(_number: int, _frame: FrameType | None) -> None:
    raise _TimeUpError


def answer(text: str, parameters: Mapping[str, Parameter], policy: Policy) -> ValidatedQuery | QueryRefusedError:
    """Return the verdict on one query within its CPU time, whatever happens on the way."""
    try:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        try:
            return judge_query(text, parameters, policy)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except QueryRefusedError as exc:
        return exc
    except (_TimeUpError, RecursionError, MemoryError):
        return QueryRefusedError([_too_slow()])
    except Exception as exc:  # noqa: BLE001 - whatever a hostile text makes the readers do, the answer is no
        message = f"The gate can't read this query ({type(exc).__name__})."
        return QueryRefusedError([Violation("query_unreadable", message, 1, 1)])


def serve() -> None:
    """Answer queries from standard input until it ends."""
    signal.signal(signal.SIGPROF, _time_up)
    pipe_in, pipe_out = sys.stdin.buffer, sys.stdout.buffer
    # What a library prints must not end up between the answers.
    sys.stdout = sys.stderr
    write_frame(pipe_out, "ready")
    while True:
        try:
            request = read_frame(pipe_in)
        except EOFError:
            return
        write_frame(pipe_out, answer(*request))


GATE: Final = Gate()
