"""One request of a caller: its headers, parameters and body, each read within a bound."""

import asyncio
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from itertools import chain
from typing import Any, Final
from urllib.parse import parse_qsl

from collector.held import Hold
from model.errors import BodyTooLargeError, RequestInvalidError, RequestTimeoutError
from model.message import MAX_ATTRIBUTES

# The extension of an ASGI scope whose whole body has arrived: it is read without a timeout, which
# would cost a tenth of a request.
BODY_IS_HERE: Final = "refeed.body_is_here"
# A request's line and headers.
MAX_HEAD_BYTES: Final = 16 * 1024
MAX_HEADERS: Final = 100
_LENGTH_DIGITS: Final = 15
_MAX_ADDRESS_CHARS: Final = 64


class CallerGoneError(Exception):
    """The caller went away before its request was whole."""


class CollectorRequest:
    """An ASGI request; a header that comes more than once has the value of its first line."""

    def __init__(self, scope: Mapping[str, Any], receive: Any) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.raw_query: bytes = scope.get("query_string", b"")
        self._peer = scope.get("client")
        self._receive = receive
        self._is_body_here = BODY_IS_HERE in scope.get("extensions", ())
        self._lines: Sequence[tuple[bytes, bytes]] = scope["headers"]
        self._headers: dict[bytes, bytes] = dict(reversed(self._lines))

    @property
    def is_head_too_large(self) -> bool:
        """Whether path, query and headers together are more than a request may have."""
        size = len(b"".join(chain.from_iterable(self._lines)))
        return size + len(self.path) + len(self.raw_query) > MAX_HEAD_BYTES or len(self._lines) > MAX_HEADERS

    def header(self, name: bytes) -> str:
        """Return a header's text, empty when there is none; ``name`` is in lower case."""
        return self._headers.get(name, b"").decode(errors="replace")

    def count(self, name: bytes) -> int:
        """Return how many lines a header has."""
        if name not in self._headers:
            return 0
        # Mostly every header has one line.
        if len(self._headers) == len(self._lines):
            return 1
        return sum(1 for each, _ in self._lines if each == name)

    def raw_headers(self, names: Sequence[bytes]) -> tuple[bytes | None, ...]:
        """Return these headers as they came, None for one that is not there."""
        return tuple(map(self._headers.get, names))

    def media_type(self) -> str:
        """Return the type of the body without its parameters, in lower case; empty when there is none.

        Example:
            >>> headers = [(b"content-type", b"Application/JSON; charset=utf-8")]
            >>> CollectorRequest({"method": "POST", "path": "/a", "headers": headers}, None).media_type()
            'application/json'
        """
        return self.header(b"content-type").partition(";")[0].strip().lower()

    @property
    def query(self) -> str:
        """The query as it came, undecoded."""
        return self.raw_query.decode(errors="replace")

    def parameters(self, most: int = MAX_ATTRIBUTES) -> list[tuple[str, str]]:
        """Return the query's parameters, decoded, in their order.

        Raises:
            RequestInvalidError: they are no UTF-8, or more than ``most``.
        """
        if not self.raw_query:
            return []
        try:
            return parse_qsl(self.raw_query.decode(), keep_blank_values=True, errors="strict", max_num_fields=most)
        except UnicodeDecodeError as exc:
            message = "The parameters are not UTF-8."
            raise RequestInvalidError.of("parameters_not_utf8", message, "query:") from exc
        except ValueError as exc:
            message = f"A request can have at most {most} parameters."
            raise RequestInvalidError.of("too_many_parameters", message, "query:") from exc

    @property
    def peer(self) -> str:
        """The address that the connection came from."""
        return self._peer[0] if self._peer else ""

    def client_address(self, proxies: int) -> str:
        """Return the caller's address, ``proxies`` proxies before this one.

        Each proxy appends the address that it was called from to X-Forwarded-For, so the last ``proxies`` entries
        are what proxies of ours wrote, and everything before them is the caller's own invention.

        Example:
            >>> scope = {"method": "POST", "path": "/a", "client": ("10.0.0.1", 1)}
            >>> scope["headers"] = [(b"x-forwarded-for", b"6.6.6.6, 192.0.2.7")]
            >>> CollectorRequest(scope, None).client_address(1)
            '192.0.2.7'
        """
        if not proxies:
            return self.peer
        forwarded = [value.decode("latin-1") for name, value in self._lines if name == b"x-forwarded-for"]
        entries = [each.strip() for line in forwarded for each in line.split(",") if each.strip()]
        found = entries[-proxies] if len(entries) >= proxies else ""
        return found[:_MAX_ADDRESS_CHARS] if _is_address(found) else self.peer

    async def body(self, max_bytes: int, seconds: float, held: Hold) -> bytes:
        """Return the whole body; its bytes count as ``held`` as they come, also those of a body that ends nowhere.

        Raises:
            QueueFullError: all requests together hold too much.
            BodyTooLargeError: its declared or real length is over ``max_bytes``.
            RequestTimeoutError: it was not there within ``seconds``.
            CallerGoneError: the caller went away; half a body must not become an event.
        """
        length = self.header(b"content-length")
        if length.isdecimal() and int(length[:_LENGTH_DIGITS]) > max_bytes:
            raise _too_large(max_bytes)
        if self._is_body_here:
            return await self._read(max_bytes, held)
        try:
            async with asyncio.timeout(seconds):
                return await self._read(max_bytes, held)
        except TimeoutError as exc:
            raise RequestTimeoutError(f"The body did not arrive within {seconds:g} s.") from exc

    async def _read(self, max_bytes: int, held: Hold) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                raise CallerGoneError
            piece: bytes = message.get("body", b"")
            size += len(piece)
            if size > max_bytes:
                raise _too_large(max_bytes)
            held.add(len(piece))
            pieces.append(piece)
            if not message.get("more_body", False):
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _too_large(max_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"A request's body can have at most {max_bytes} bytes.")


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
