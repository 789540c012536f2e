"""Buckets of Amazon S3 and Cloud Storage behind a proxy that counts requests, and loses, cuts or refuses some."""

import os
import re
import select
import socket
import sys
import threading
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any, ClassVar
from urllib.parse import unquote

import httpx
import pytest

from cli.processes import free_port, is_listening
from rollout.child import Child, Children
from tests.standin.gcs_server import settings_at_gcs
from tests.worlds.pypi import install

# The schemes of buckets, for fixtures with a parameter.
SCHEMES = ["gs", pytest.param("s3", marks=pytest.mark.cloud)]

_MOTO = "moto==5.2.5"
_QUIET_SECONDS = 0.2
_MISHAPS = 0.05
_LATE_SECONDS = 0.3


@contextmanager
def moto_server(folder: Path) -> Iterator[str]:
    """Run moto's server, installed from PyPI once an environment, and yield its URL; its log is in ``folder``."""
    packages = install(_MOTO, "flask", "flask-cors")
    with serving("moto.server", folder, PYTHONPATH=str(packages)) as url:
        yield url


@contextmanager
def serving(module: str, folder: Path, *arguments: str, **environment: str) -> Iterator[str]:
    """Run a server in a process of its own: delta-rs may wait for an answer and let no thread of Python run."""
    port = free_port()
    command = [sys.executable, "-m", module, "--host", "127.0.0.1", "--port", str(port), *arguments]
    child = Child(module, command, environment={**os.environ, **environment}, log=folder / f"{module}.log")
    with Children() as children:
        children.start(child)
        child.wait_until(lambda: is_listening(f"127.0.0.1:{port}"), seconds=60, what="begun to listen")
        yield f"http://127.0.0.1:{port}"


def make_lake(server: str, scheme: str = "s3") -> str:
    """Make a bucket and return the URI of a lake in it."""
    name = f"lake-{time.time_ns()}"
    httpx.put(f"{server}/{name}", timeout=60).raise_for_status()
    return f"{scheme}://{name}/lake"


def settings_at(url: str) -> dict[str, str]:
    """Return the environment that leads all clients to ``url``, be it a server of S3 or of Cloud Storage."""
    return {
        **settings_at_gcs(url),
        "AWS_ENDPOINT_URL": url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_S3": url,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@dataclass
class Fault:
    """What becomes of the next ``count`` requests with ``method`` whose path contains ``part``.

    ``kind`` is ``lost`` (done, and answered with 500), ``cut`` (done, and the connection closed), ``partial`` (as
    ``cut``, but after half of the answer), ``late`` (done after 0.3 s), ``slow`` (done when the client has given
    up), or the status with which they are refused, perhaps followed by the text of the answer.
    """

    method: str
    part: str
    kind: str
    count: int = 1


@dataclass
class Proxy:
    """Counts what passes, in the order of its beginning, as ``METHOD path``, with nothing quoted.

    With ``mishaps``, one request of 20 meets a fault by chance. The bucket ignores the conditions of requests that
    ``ignored`` names, as Amazon's headers. Its clock is ahead of this machine's by ``clock_ahead_seconds``. Each
    request waits for ``delay_seconds``.
    """

    upstream: str
    requests: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    ignored: tuple[str, ...] = ()
    clock_ahead_seconds: float = 0
    mishaps: Random | None = None
    last_at: float = 0
    delay_seconds: float = 0

    def forget(self) -> None:
        """Empty the list of requests, after a short time without any.

        delta-rs reads ahead, and returns before those requests have arrived here.
        """
        give_up_at = time.monotonic() + 10
        while (now := time.monotonic()) - self.last_at < _QUIET_SECONDS and now < give_up_at:
            time.sleep(_QUIET_SECONDS / 5)
        self.requests.clear()

    def fault_of(self, method: str, path: str) -> str | None:
        """Note a request, and return what becomes of it."""
        with self.lock:
            self.last_at = time.monotonic()
            path = unquote(path)
            self.requests.append(f"{method} {path}")
            for fault in self.faults:
                if fault.count and fault.method == method and fault.part in path:
                    fault.count -= 1
                    return fault.kind
            is_mishap = self.mishaps is not None and self.mishaps.random() < _MISHAPS
            return self.mishaps.choice(["lost", "cut", "late", "503", "429"]) if is_mishap else None

    @contextmanager
    def storm(self, kind: str) -> Iterator[None]:
        """Have every request of the block meet the same fault."""
        faults = [
            Fault(method, "", kind, count=sys.maxsize) for method in ("GET", "PUT", "POST", "DELETE", "HEAD")
        ]
        self.faults += faults
        try:
            yield
        finally:
            self.faults.clear()

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serve for the length of the block and yield the URL."""
        handler = type("Handler", (_Handler,), {"proxy": self})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, name="bucket")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # An answer is written in two pieces, and the second one would wait 40 ms for the client to confirm the first.
    disable_nagle_algorithm = True
    proxy: ClassVar[Proxy]

    def setup(self) -> None:
        """Keep one connection to the server for each of a client's."""
        super().setup()
        self.upstream = HTTPConnection(self.proxy.upstream, timeout=60)

    def finish(self) -> None:
        self.upstream.close()
        super().finish()

    def log_message(self, *_: object) -> None:
        """Keep standard error for what matters."""

    def do_GET(self) -> None:
        kind = self.proxy.fault_of(self.command, self.path)
        body = self._body()
        threading.Event().wait(self.proxy.delay_seconds + (_LATE_SECONDS if kind == "late" else 0))
        if kind is not None and kind[:1].isdigit():
            status, _, answer_text = kind.partition(" ")
            self._answer(int(status), {}, answer_text.encode())
            return
        if kind == "slow":
            # A client that gives up closes its connection.
            select.select([self.connection], [], [], 60)
        self.upstream.request(self.command, self.path, body, self._headers())
        answer = self.upstream.getresponse()
        content, headers = answer.read(), dict(answer.getheaders())
        if kind == "cut":
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        elif kind == "lost":
            self._answer(500, {}, b"")
        elif kind == "partial":
            self._answer(answer.status, headers, content, sent=len(content) // 2)
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        else:
            self._answer(answer.status, *self._at_its_clock(headers, content))

    def _at_its_clock(self, headers: dict[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
        """Return an answer of a store whose clock is apart: its moments of objects, in a header or a list."""
        ahead = timedelta(seconds=self.proxy.clock_ahead_seconds)
        if not ahead:
            return headers, content
        headers = {
            name: format_datetime(parsedate_to_datetime(value) + ahead, usegmt=True)
            if name.lower() == "last-modified"
            else value
            for name, value in headers.items()
        }

        def moved(found: re.Match[bytes]) -> bytes:
            at = datetime.fromisoformat(found[1].decode()) + ahead
            return b"<LastModified>%b</LastModified>" % at.strftime("%Y-%m-%dT%H:%M:%S.%fZ").encode()

        return headers, re.sub(rb"<LastModified>([^<]+)</LastModified>", moved, content)

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        chunks = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            """A trailer."""
        return b"".join(chunks)

    def _headers(self) -> dict[str, str]:
        hop = ["content-length", "transfer-encoding", "expect", "connection"]
        return {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in hop and _condition(name, value) not in self.proxy.ignored
        }

    def _answer(self, status: int, headers: dict[str, Any], content: bytes, sent: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "server", "date"):
                self.send_header(name, value)
        length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            # A client may have given up.
            with suppress(BrokenPipeError):
                self.wfile.write(content[:sent])


def _condition(name: str, value: str) -> str:
    """Return a header's name, of a condition of Cloud Storage that of Amazon S3."""
    if name.lower() != "x-goog-if-generation-match":
        return name.title()
    return "If-None-Match" if value == "0" else "If-Match"


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of moto's server, one for all tests of the session."""
    with moto_server(tmp_path_factory.mktemp("moto")) as url:
        yield url


@pytest.fixture(scope="session")
def gs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the stand-in for Cloud Storage in a process of its own, one for all tests of the session."""
    with serving("tests.standin.gcs_server", tmp_path_factory.mktemp("gcs")) as url:
        yield url


@contextmanager
def at_bucket(url: str) -> Iterator[None]:
    """Lead all clients of this process to ``url`` for the length of the block."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings_at(url).items():
            patch.setenv(name, value)
        yield


@contextmanager
def bucket_lake_of(scheme: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """Give the URI of a lake in a new bucket of the server for ``scheme``, where all clients are led to.

    To a scheme such as ``unkind s3`` they go by a proxy.
    """
    kind = scheme.split(" ")
    with at_bucket(request.getfixturevalue(f"{'_'.join(kind)}_server")):
        yield make_lake(request.getfixturevalue(f"{kind[-1]}_server"), kind[-1])


@pytest.fixture(scope="session")
def unkind_s3_server(s3_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a proxy before ``s3_server`` that loses, cuts, delays or refuses one request of 20."""
    with serving("tests.worlds.bucket", tmp_path_factory.mktemp("unkind"), "--upstream", s3_server) as url:
        yield url


@pytest.fixture(scope="session")
def unkind_gs_server(gs_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a proxy before ``gs_server`` that loses, cuts, delays or refuses one request of 20."""
    with serving("tests.worlds.bucket", tmp_path_factory.mktemp("unkind"), "--upstream", gs_server) as url:
        yield url


@contextmanager
def unkind_lake(scheme: str, folder: Path, *, delay_seconds: float) -> Iterator[str]:
    """Give the URI of a lake in a bucket that processes of this one's environment reach by an unkind proxy.

    Each request waits for ``delay_seconds``, and one of 20 is lost, cut, late or refused.
    """
    with ExitStack() as stack:
        if scheme == "s3":
            server = stack.enter_context(moto_server(folder))
        else:
            server = stack.enter_context(serving("tests.standin.gcs_server", folder))
        arguments = ("--upstream", server, "--delay-seconds", str(delay_seconds))
        url = stack.enter_context(serving("tests.worlds.bucket", folder, *arguments))
        stack.enter_context(at_bucket(url))
        yield make_lake(server, scheme)


@pytest.fixture(params=SCHEMES)
def bucket_lake(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URI of a lake in a bucket of the test's own."""
    with bucket_lake_of(request.param, request) as uri:
        yield uri


@pytest.fixture
def bucket_proxy(request: pytest.FixtureRequest, bucket_lake: str) -> Iterator[Proxy]:
    """A proxy before the server, by which all clients of the test go.

    It runs in the test's process. So a test with it may not change a table's columns: delta-rs waits for the
    answer without letting other threads of Python run.
    """
    server = request.getfixturevalue(f"{bucket_lake.partition('://')[0]}_server")
    found = Proxy(server.removeprefix("http://"))
    with found.serving() as url, at_bucket(url):
        yield found


if __name__ == "__main__":
    given = ArgumentParser()
    for name in ("host", "port", "upstream"):
        given.add_argument(f"--{name}", required=True)
    given.add_argument("--delay-seconds", type=float, default=0.0)
    given.add_argument("--without-mishaps", action="store_true")
    where = given.parse_args()
    mishaps = None if where.without_mishaps else Random(13)
    served = Proxy(where.upstream.removeprefix("http://"), mishaps=mishaps, delay_seconds=where.delay_seconds)
    handler = type("Handler", (_Handler,), {"proxy": served})
    ThreadingHTTPServer((where.host, int(where.port)), handler).serve_forever()
