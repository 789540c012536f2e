"""Health checks for probes that speak no gRPC: ``GET /`` answers ``Ok`` on a port of its own."""

import errno
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from model.errors import PortTakenError

_POLL_SECONDS: Final = 0.1


class HealthServer:
    """Answers from ``start`` to ``close``; port 0 takes a free one, and ``port`` is the one taken.

    Raises:
        PortTakenError: the port is taken.
    """

    def __init__(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        server_class = type("_Server", (ThreadingHTTPServer,), {"address_family": family})
        try:
            self._server: ThreadingHTTPServer = server_class((host, port), _Handler)
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE:
                raise
            raise PortTakenError(
                f"Port {port} on {host} is in use. Choose another port with --health-port.", port=port
            ) from exc
        self.port: int = self._server.server_address[1]
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to answer."""
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), name="pubsub-health", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop answering and free the port."""
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._thread = None
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    # Seconds for one that connects and sends nothing.
    timeout = 5

    def do_GET(self) -> None:
        if self.path != "/":
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        # As Google's emulator answers.
        body = b"Ok"
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Probes come every few seconds: no line for each."""
