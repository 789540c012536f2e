"""What the console asks of every request, and adds to every answer: origin, size, form token, headers."""

import hashlib
import hmac
from asyncio import timeout
from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qsl, unquote

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from model.errors import ForbiddenError, RequestTimeoutError
from model.variables import is_loopback_name

FORM_COOKIE: Final = "refeed_form"
_TOKEN_FIELD: Final = "form_token"  # noqa: S105  a field's name
_MAX_FORM_BYTES: Final = 1024 * 1024
_FORM_SECONDS: Final = 30.0
_OWN_SITES: Final = ("", "same-origin", "none")
POLICY: Final = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    # A page is one caller's own.
    "Cache-Control": "no-store",
}

# Returns why a console over an open API does not answer a request; None when it does.
StrangerCheck = Callable[[Scope], str | None]


class ConsoleHeaders:
    """ASGI middleware: adds the headers of every answer, unless it has its own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and the answer back with its headers."""

        async def send_safe(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_safe if scope["type"] == "http" else send)


async def read_form(request: Request, session: str | None) -> dict[str, str]:
    """Return the fields of a form that one of our own pages sent.

    Raises:
        ForbiddenError: another page sent it, it has no token of this browser, or it is too large.
        RequestTimeoutError: it was not there in time, or its browser has left.
    """
    check_own_page(request)
    body = b""
    try:
        async with timeout(_FORM_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > _MAX_FORM_BYTES:
                    raise ForbiddenError(f"The form is larger than {_MAX_FORM_BYTES:,} bytes.")
    except (TimeoutError, ClientDisconnect) as exc:
        raise RequestTimeoutError(
            f"The form did not arrive within {_FORM_SECONDS:g} s. Nothing was done."
        ) from exc
    fields = dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True))
    wanted = form_token(request.cookies.get(FORM_COOKIE, ""), session)
    if not request.cookies.get(FORM_COOKIE) or not hmac.compare_digest(
        wanted.encode(), fields.pop(_TOKEN_FIELD, "").encode()
    ):
        raise ForbiddenError(
            "The form belongs to another session or to a session that has ended. Load the page again."
        )
    return fields


def check_own_page(request: Request) -> None:
    """Raise unless the browser says that a page of this console sent the request.

    Raises:
        ForbiddenError: another page did.
    """
    site = request.headers.get("sec-fetch-site", "")
    origin = request.headers.get("origin")
    # A proxy may have ended TLS, so that only the names can be compared.
    is_own = origin is None or origin.partition("://")[2] == request.headers.get("host", "")
    if site not in _OWN_SITES or not is_own:
        raise ForbiddenError("A page of another site sent this request. Nothing was done.")


def form_token(cookie: str, session: str | None) -> str:
    """Return what a form of this browser must hold; it shows neither the cookie nor the session."""
    return hmac.new(cookie.encode(), (session or "").encode(), hashlib.sha256).hexdigest()


def is_secure(request: Request) -> bool:
    """Whether cookies must travel over TLS alone: everywhere but on this machine itself."""
    return request.url.scheme == "https" or not is_loopback_name(request.url.hostname or "")


def own_path(text: str | None) -> str:
    """Return where a sign-in goes back to: ``text`` if it is a path of the console, else its first page.

    Example:
        >>> own_path("/console/streams?zone=UTC"), own_path("//evil.example/console")
        ('/console/streams?zone=UTC', '/console')
    """
    path = text or ""
    is_plain = path.isascii() and path.isprintable() and "\\" not in path
    is_own = path == "/console" or path.startswith(("/console/", "/console?"))
    # A browser goes up at "..", also where it is written as %2e%2e.
    climbs = ".." in unquote(path.partition("?")[0]).split("/")
    return path if is_plain and is_own and not climbs and "/console/sign-" not in path else "/console"
