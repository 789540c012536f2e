"""Serves the API over HTTP/1.1: where it may listen, and how long it waits for a request's head."""

import json
import os
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Final, Protocol

import h11
import structlog
import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from api.errors import PROBLEM_TYPE, render_problem
from api.state import state_of
from connectors.server import HeadTimeout, make_server_config
from model.errors import SettingsError
from model.variables import is_loopback_name

_LOG: Final = structlog.get_logger()
# A request's line and headers. Tokens have 8 KiB at most, and browsers send little else here.
MAX_HEAD_BYTES: Final = 16 * 1024
# From a signal on: the time for requests under way, and then for everything that is closed at the end, in the
# order of app/closing.py. The sum is less than the time after which `refeed up` kills (rollout/child.py).
_SHUTDOWN_SECONDS: Final = 10
_CLOSE_SECONDS: Final = 15.0
_KEEP_ALIVE_SECONDS: Final = 5
_BAD_REQUEST: Final = 400
_HEAD_TOO_LARGE: Final = 431


def check_admission(host: str, *, has_callers: bool, is_open: bool, held: Sequence[str] = ()) -> None:
    """Raise unless somebody decides who may call: keys or an issuer, or a person who said ``--open``.

    With ``has_callers`` there is a key or an issuer. Without either, ``--open`` serves this machine's
    programs, on loopback alone, and no action can be ``held`` for a second person.

    Raises:
        SettingsError: nobody decides; the message names the ways to change that.
    """
    if has_callers:
        return
    if not is_loopback_name(host):
        raise SettingsError(
            f"The service has no key. With --host {host}, everybody who can reach this machine "
            "could replay messages. Create a key with 'refeed key create', or set "
            "REFEED_OIDC_ISSUER. Without a key and an issuer, the service can only listen on "
            "127.0.0.1."
        )
    if not is_open:
        raise SettingsError(
            "The service has no key, so it can't tell callers apart. Create a key with 'refeed "
            "key create', or set REFEED_OIDC_ISSUER. If every program on this machine may "
            "replay messages, and no proxy forwards calls to this service, use 'refeed api "
            "--open'."
        )
    if held:
        raise SettingsError(
            f"REFEED_APPROVE_STREAMS={','.join(held)} needs a second person, but without keys the "
            "service can't tell people apart. Create a key for each person with 'refeed key "
            "create', or set REFEED_OIDC_ISSUER, or leave REFEED_APPROVE_STREAMS empty."
        )


def make_config(app: ASGIApp, *, host: str = "127.0.0.1", port: int = 0, head_seconds: float) -> uvicorn.Config:
    """Return how the app is served; ``head_seconds`` is how long a request's line and headers may take."""
    return make_server_config(
        app,
        _Protocol,
        host=host,
        port=port,
        head_seconds=head_seconds,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )


def serve(app: FastAPI, *, host: str, port: int, head_seconds: float) -> None:
    """Serve the app until SIGINT or SIGTERM; the process ends 25 seconds after that even if a thread hangs."""
    serve_until_told(app, state_of(app), host=host, port=port, head_seconds=head_seconds)


def serve_until_told(app: ASGIApp, state: "Stoppable", *, host: str, port: int, head_seconds: float) -> None:
    """Serve any app as :func:`serve` does; ``state`` learns that it stops."""
    _LOG.info("listening", host=host, port=port)
    Server(state, make_config(app, host=host, port=port, head_seconds=head_seconds)).run()


class Stoppable(Protocol):
    """What answers without an end look at to end in time."""

    is_stopping: bool


class Server(uvicorn.Server):
    """uvicorn's server, which ends the app's endless answers before it waits for them.

    A signal also ends the process: threads that hang, in a query for example, would keep it for ever.
    """

    def __init__(self, state: Stoppable, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._state = state
        self._limit: threading.Timer | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop, and limit how long that takes."""
        super().handle_exit(sig, frame)
        if self._limit is None:
            self._limit = threading.Timer(_SHUTDOWN_SECONDS + _CLOSE_SECONDS, _end_process)
            self._limit.daemon = True
            self._limit.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more requests, and end when those that are under way are answered."""
        self._state.is_stopping = True
        await super().shutdown(sockets)


def _end_process() -> None:
    """End the process at once; jobs go on and are found again by the next one, as after a kill."""
    main = threading.main_thread()
    waits_for = [each.name for each in threading.enumerate() if not each.daemon and each is not main]
    _LOG.error("the service did not end in time and was stopped", waits_for=waits_for)
    os._exit(1)


class _Protocol(HeadTimeout, H11Protocol):
    """uvicorn's HTTP/1.1, which answers in plain text; here what is no HTTP is answered as a problem."""

    def awaits_head(self) -> bool:
        """Whether no whole head has come since the last answer; a request that waits to be read has not begun."""
        return self.conn.their_state is h11.IDLE

    def data_received(self, data: bytes) -> None:
        """Go on with a request, and with waiting for its head."""
        super().data_received(data)
        self.watch_head()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP request, or one whose head is too large, and close."""
        cause = sys.exc_info()[1]
        is_large = isinstance(cause, h11.RemoteProtocolError) and cause.error_status_hint == _HEAD_TOO_LARGE
        status = _HEAD_TOO_LARGE if is_large else _BAD_REQUEST
        detail = f"A request's line and headers can have at most {MAX_HEAD_BYTES} bytes." if is_large else msg
        problem = render_problem(status, "http_error", detail, instance="")
        body = json.dumps(problem).encode()
        headers = [
            (b"content-type", PROBLEM_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        response = h11.Response(status_code=status, headers=headers, reason=problem["title"].encode())
        # An answer may be under way already, when a body turns out to be none; then closing is all that is left.
        with suppress(h11.LocalProtocolError):
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
