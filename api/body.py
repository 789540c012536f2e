"""Refuses a request whose headers or body are too large, or whose body is too slow, before it is read whole."""

from asyncio import timeout
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import problem_response
from model.errors import BodyTooLargeError, RequestTimeoutError

_TOO_LARGE: Final = 413
_TOO_SLOW: Final = 408
_HEAD_TOO_LARGE: Final = 431
_MAX_HEADERS: Final = 100
# A length with more digits is over every limit, and Python refuses to read one of thousands.
_LENGTH_DIGITS: Final = 30


class HeadLimit:
    """ASGI middleware: answers 431 to headers of more than ``max_bytes`` together, or of more than 100 lines.

    The server stops reading a head that grows without an end; one that came in a single piece gets to here.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "http":
            sizes = [len(name) + len(value) for name, value in scope["headers"]]
            if sum(sizes) > self._max_bytes or len(sizes) > _MAX_HEADERS:
                detail = (
                    f"A request can have at most {_MAX_HEADERS} headers, with at most {self._max_bytes} bytes."
                )
                response = problem_response(Request(scope), _HEAD_TOO_LARGE, "http_error", detail)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


class BodyLimit:
    """ASGI middleware: answers 413 as soon as a body is declared or turns out to be over ``max_bytes``.

    A body that is not there within ``seconds`` is answered 408, so that nobody holds a connection with one byte
    now and then. A request whose client went away before its body was read is dropped. Responses pass as they
    come, streams too.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, seconds: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with its body counted."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        try:
            body = await self._read(request, receive)
        except (BodyTooLargeError, RequestTimeoutError) as error:
            status = _TOO_LARGE if isinstance(error, BodyTooLargeError) else _TOO_SLOW
            # What is still to come of the body is not read, so nothing can follow it.
            headers = {"Connection": "close"}
            response = problem_response(request, status, error.code, error.message, headers=headers)
            await response(scope, receive, send)
        else:
            # Half a request is none: its beginning may be valid and ask for something else, and no body for all.
            if body is not None:
                await self._app(scope, _replay(body, receive), send)

    async def _read(self, request: Request, receive: Receive) -> bytes | None:
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length[:_LENGTH_DIGITS]) > self._max_bytes:
            raise _too_large(self._max_bytes)
        try:
            async with timeout(self._seconds):
                body = await _read_body(receive, self._max_bytes)
        except TimeoutError as exc:
            raise RequestTimeoutError(f"The body did not arrive within {self._seconds:g} s.") from exc
        has_none = length in {"", "0"} and "transfer-encoding" not in request.headers
        return b"" if body is None and has_none else body


async def _read_body(receive: Receive, max_bytes: int) -> bytes | None:
    """Return the body, None when the client went away before all of it was read.

    Raises:
        BodyTooLargeError: it has more than ``max_bytes``.
    """
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
        if not message.get("more_body", False):
            return bytes(body)


def _too_large(max_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"A request's body can have at most {max_bytes} bytes.")


def _replay(body: bytes, receive: Receive) -> Callable[[], Awaitable[Message]]:
    """Return a ``receive`` that gives the body once, then what comes after it."""
    pending: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay
