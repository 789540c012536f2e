"""A web server on loopback whose answers a test gives."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Call(NamedTuple):
    """A request; the names of ``headers`` are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Answer(NamedTuple):
    """What is answered."""

    status: int
    content: bytes = b""
    headers: Mapping[str, str] = {}


@contextmanager
def answering(answer: Callable[[Call], Answer | None]) -> Iterator[str]:
    """Answer every call with what the function returns until the block ends, and give the server's address.

    None ends the connection without an answer. Calls come from several threads.
    """

    class Handler(BaseHTTPRequestHandler):
        def serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            found = answer(Call(self.command, self.path, headers, body))
            if found is None:
                self.close_connection = True
                return
            self.send_response(found.status)
            for name, value in {"Content-Length": str(len(found.content)), **found.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(found.content)

        do_GET = do_POST = do_PUT = do_PATCH = serve  # noqa: N815 - the names that http.server calls

    with serving(Handler) as address:
        yield address


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A connection for which there is no room waits for a second before it tries again.
    request_queue_size = 128


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve by a handler until the block ends, and give the server's address."""
    quiet = type("Quiet", (handler,), {"log_message": lambda *_: None})
    server = _Server(("127.0.0.1", 0), quiet)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
