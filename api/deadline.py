"""Answers in time, also when what a request needs does not."""

import asyncio
from typing import Any, Final

import structlog
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import problem_response
from model.errors import AnswerTimeoutError

_LOG: Final = structlog.get_logger()
_STATUS: Final = 504


class AnswerLimit:
    """ASGI middleware: answers 504 when an answer has not begun after ``seconds``.

    What was begun goes on to its end, so a change may still happen: the caller has to look. An answer that has
    begun, such as a stream, may take as long as it likes.
    """

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app = app
        self._seconds = seconds
        # The event loop keeps no tasks alive by itself.
        self._late: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and answer for it when it takes too long."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = asyncio.Event()
        is_late = False

        async def send_in_time(message: Message) -> None:
            if not is_late:
                begun.set()
                await send(message)

        async def receive_in_time() -> Message:
            return {"type": "http.disconnect"} if is_late else await receive()

        work = asyncio.create_task(_run(self._app, scope, receive_in_time, send_in_time))
        waiting = asyncio.create_task(begun.wait())
        try:
            await asyncio.wait({work, waiting}, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
            if work.done() or begun.is_set():
                await work
                return
        except asyncio.CancelledError:
            work.cancel()
            raise
        finally:
            waiting.cancel()
        is_late = True
        self._late.add(work)
        work.add_done_callback(self._end)
        error = AnswerTimeoutError(f"There is no answer after {self._seconds:g} s.")
        response = problem_response(Request(scope), _STATUS, error.code, error.message)
        await response(scope, receive, send)

    def _end(self, work: asyncio.Task[None]) -> None:
        self._late.discard(work)
        if not work.cancelled() and work.exception() is not None:
            _LOG.error("a request failed after it was answered", exc_info=work.exception())


async def _run(app: Any, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)
