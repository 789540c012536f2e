"""Refuses a request body that is larger than it may be, before it is read whole."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import problem_response
from model.errors import BodyTooLargeError

_STATUS: Final = 413


class BodyLimit:
    """ASGI middleware: answers 413 as soon as a body says or turns out to be over ``max_bytes``."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with its body counted."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._max_bytes:
            await self._refuse(request, scope, receive, send)
            return
        body = await _read_body(receive, self._max_bytes)
        if body is None:
            await self._refuse(request, scope, receive, send)
            return
        await self._app(scope, _replay(body, receive), send)

    async def _refuse(self, request: Request, scope: Scope, receive: Receive, send: Send) -> None:
        detail = f"A request body has {self._max_bytes} bytes at most."
        response = problem_response(
            request, _STATUS, BodyTooLargeError.code, detail, headers={"Connection": "close"}
        )
        await response(scope, receive, send)


async def _read_body(receive: Receive, max_bytes: int) -> bytes | None:
    """Return the body, or None when it is over the limit or the client went away."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return bytes(body)
        body += message.get("body", b"")
        if len(body) > max_bytes:
            return None
        if not message.get("more_body", False):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Callable[[], Awaitable[Message]]:
    """Return a ``receive`` that gives the body once, then what comes after it."""
    pending: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay
