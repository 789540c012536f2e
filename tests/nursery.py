"""Forks query processes for tests from one that has made their imports, half a second of CPU each."""

import os
import select
import signal
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from typing import IO, Any

_NUMBER = struct.Struct("i")
_START_SECONDS = 60.0


class Forked:
    """One forked process, as far as ``subprocess.Popen`` is asked about it."""

    def __init__(self, stdin: IO[bytes], stdout: IO[bytes], minder: IO[bytes]) -> None:
        self.stdin, self.stdout, self._minder = stdin, stdout, minder
        self.returncode: int | None = None
        self.pid = self._read(_START_SECONDS)

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = self._read(timeout)
            self._minder.close()
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _read(self, timeout: float | None) -> int:
        poll = select.poll()  # as select, but for descriptors of any number
        poll.register(self._minder, select.POLLIN)
        if not poll.poll(None if timeout is None else timeout * 1000):
            raise subprocess.TimeoutExpired("fork", timeout or 0.0)
        return _NUMBER.unpack(self._minder.read(_NUMBER.size))[0]


class Nursery:
    """The process that forks; it ends with the one that started it."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-c", f"from tests.nursery import serve; serve({theirs.fileno()})"],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env=environment, pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip

    def fork(self) -> Forked:
        read_in, write_in = os.pipe()
        read_out, write_out = os.pipe()
        read_status, write_status = os.pipe()
        given = [read_in, write_out, write_status]
        try:
            socket.send_fds(self._socket, [b"f"], given)
        finally:
            for descriptor in given:
                os.close(descriptor)
        return Forked(os.fdopen(write_in, "wb"), os.fdopen(read_out, "rb"), os.fdopen(read_status, "rb", 0))

    def end(self) -> None:
        self._socket.close()
        self._popen.wait(_START_SECONDS)


def serve(descriptor: int) -> None:
    """Fork for each message, until the other side is gone."""
    from connectors.lake import query_process

    # Whoever minds a process has nobody who waits for it.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    requests = socket.socket(fileno=descriptor)
    while True:
        message, given, _, _ = socket.recv_fds(requests, 1, 3)
        if not message:
            return
        if os.fork() == 0:
            requests.close()
            _mind(query_process, *given)
        for number in given:
            os.close(number)


def _mind(query_process: Any, stdin: int, stdout: int, status: int) -> None:
    """Be the parent of a query process, and report its number and then how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        for number in (stdin, stdout, status):
            os.close(number)
        query_process.serve()
        os._exit(0)
    os.close(stdin)
    os.close(stdout)
    with suppress(BrokenPipeError):
        os.write(status, _NUMBER.pack(pid))
        os.write(status, _NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
    os._exit(0)
