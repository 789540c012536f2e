"""The console beside the API in one process, and alone over the API of another one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Final

from starlette.applications import Starlette
from starlette.responses import RedirectResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from console.app import Console
from model.origin import find_foreign, find_proxy

_PATH: Final = "/console"


class BesideConsole:
    """ASGI middleware: the console answers below ``/console``, and the app everything else.

    The API's own middleware is for callers with bearer tokens; the console calls the API as one of them.
    """

    def __init__(self, app: ASGIApp, console: Console) -> None:
        self._app = app
        self._console = console

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the console or to the app."""
        is_console = scope["type"] == "http" and f"{scope['path']}/".startswith(f"{_PATH}/")
        await (self._console if is_console else self._app)(scope, receive, send)


class LoneConsole:
    """The app of a process that serves the console alone; ``is_stopping`` ends live pages."""

    def __init__(self, api_url: str) -> None:
        self.is_stopping = False
        console = Console(lambda _: api_url, find_stranger=find_stranger, is_stopping=lambda: self.is_stopping)

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            with closing(console):
                yield

        async def go_home(_: object) -> RedirectResponse:
            return RedirectResponse(_PATH)

        routes = [Route("/", go_home), Mount("/", console)]
        self.app = Starlette(routes=routes, lifespan=lifespan)


def find_own_api(scope: Scope) -> str:
    """Return the address of the API in the same process: the one that the request came to.

    It is the socket's, which no header changes.
    """
    host, port = scope["server"]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def find_stranger(scope: Scope) -> str | None:
    """Return why a console over an API without keys does not answer a request; None when it does."""
    if (sign := find_proxy(scope)) is not None:
        return f"This call came through a proxy ({sign}). Without keys, the service can't tell callers apart."
    return find_foreign(scope)
