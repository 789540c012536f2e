"""The connection to Refeed's HTTP API: JSON in and out, its problems as errors."""

import json
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final, NoReturn, Self
from urllib.parse import quote

import httpx

from model.errors import ApiUnavailableError, ApiUnknownError, RequestRefusedError

# A plan runs its query for a minute at most; every other answer comes before that.
_TIMEOUT_SECONDS: Final = 75.0
# A watch sends a comment every 15 seconds.
_SILENCE_SECONDS: Final = 45.0
# The API closes a connection that was idle for five seconds; one that is older must not be tried.
_LIMITS: Final = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=3.0)
# The members of a problem of the API. What a proxy answers may be JSON too, with any others.
_PROBLEM: Final = ("type", "title", "status", "detail", "instance", "code", "errors")
# A proxy's words for an API that does not answer, such as one that is restarted.
_GATEWAY_STATUSES: Final = (502, 503, 504)


class ApiAnswer(dict[str, Any]):
    """A JSON object from ``source``; a member that it must have and has not shows that no Refeed API sent it.

    Raises:
        ApiUnknownError: a subscript finds no such member.
    """

    def __init__(self, members: Mapping[str, Any], source: httpx.Response) -> None:
        super().__init__(members)
        self._source = source

    def __missing__(self, name: str) -> NoReturn:
        raise _unknown(self._source, f"no {name!r} in the answer")


class ApiConnection:
    """The API at ``url``; ``key`` is sent as a bearer token.

    Raises:
        ApiUnavailableError: any call, when nobody answers, or a proxy that reaches nobody.
        ApiUnknownError: any call, when something else than Refeed's API answers.
        RequestRefusedError: any call that the API answers with a problem; ``details`` is that problem.
    """

    def __init__(self, url: str, key: str | None = None, *, client: httpx.Client | None = None) -> None:
        self.url = url.rstrip("/")
        self._client = client or httpx.Client(base_url=self.url, timeout=_TIMEOUT_SECONDS, limits=_LIMITS)
        # As bytes: a key with letters beyond ASCII is refused by the API, and not by httpx.
        self._headers = {} if key is None else {b"Authorization": f"Bearer {key}".encode(errors="surrogateescape")}

    def as_caller(self, key: str | None) -> Self:
        """Return the API for another caller over the same connections; closing one closes both."""
        return type(self)(self.url, key, client=self._client)

    def close(self) -> None:
        """Close every connection."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def is_ready(self) -> bool:
        """Whether it takes requests."""
        try:
            response = self._client.get("/readyz", timeout=2)
        except httpx.TransportError:
            return False
        body = _json_of(response)
        return response.is_success and isinstance(body, dict) and body.get("status") == "ok"

    def call(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        """Return the JSON object that the API answers; arguments as of :meth:`request`."""
        return self._body_of(self.request(method, path, **arguments))

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        etag: str | None = None,
        idempotency_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        **content: Any,
    ) -> httpx.Response:
        """Return the API's answer; a parameter or header of None is not sent. ``content`` is httpx's."""
        given = _without_none({"If-Match": etag, "Idempotency-Key": idempotency_key, **(headers or {})})
        sent = self._headers | {name.encode(): value.encode() for name, value in given.items()}
        try:
            response = self._client.request(
                method, path, params=_without_none(params or {}) or None, headers=sent, **content
            )
        except (httpx.TransportError, httpx.InvalidURL) as exc:
            raise self._unavailable(exc) from exc
        except ValueError as exc:
            # JSON has neither NaN nor infinity: the request can't be written.
            said = f"The request can't be written as JSON: {exc}."
            raise _invalid(said) from exc
        if not response.is_success:
            raise self._failure(response)
        return response

    async def call_alone(self, path: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a GET answers over a connection of its own, whose end the API notices."""
        # Reading the system's certificates takes 20 ms of the event loop; without TLS there are none to verify.
        verify = self.url.startswith("https:")
        try:
            async with httpx.AsyncClient(
                base_url=self.url, timeout=_TIMEOUT_SECONDS, headers=self._headers, verify=verify
            ) as client:
                response = await client.get(path, params=_without_none(params))
        except (httpx.TransportError, httpx.InvalidURL) as exc:
            raise self._unavailable(exc) from exc
        return self._body_of(response)

    def stream_events(self, path: str, after: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield a job whenever the API sends it, with the number of its latest line of history.

        It ends without an error where server-sent events are not to be had.
        """
        timeout = httpx.Timeout(_TIMEOUT_SECONDS, read=_SILENCE_SECONDS)
        headers = self._headers | {b"Last-Event-ID": str(after).encode(), b"Accept": b"text/event-stream"}
        try:
            with self._client.stream("GET", f"{path}:watch", headers=headers, timeout=timeout) as response:
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    return
                yield from _read_events(response.iter_lines())
        except httpx.ReadTimeout:
            # Silent for long: something in between holds events back.
            return
        except (httpx.TransportError, httpx.InvalidURL) as exc:
            raise self._unavailable(exc) from exc

    def stream_log(self, path: str, *, tail_lines: int, follow: bool) -> Iterator[str]:
        """Yield the end of a log and, to follow it, what is written from now on until it ends."""
        params = {"tail": str(tail_lines)} | ({"follow": "true"} if follow else {})
        timeout = httpx.Timeout(_TIMEOUT_SECONDS, read=None if follow else _TIMEOUT_SECONDS)
        try:
            log = self._client.stream("GET", path, params=params, timeout=timeout, headers=self._headers)
            with log as response:
                if not response.is_success:
                    response.read()
                    raise self._failure(response)
                if not response.headers.get("content-type", "").startswith("text/plain"):
                    raise _unknown(response, "no text")
                yield from response.iter_text()
        except (httpx.TransportError, httpx.InvalidURL) as exc:
            raise self._unavailable(exc) from exc

    def _body_of(self, response: httpx.Response) -> dict[str, Any]:
        body = _json_of(response)
        if not response.is_success:
            raise self._failure(response)
        # No answer of the API is empty.
        if not isinstance(body, dict) or not body:
            raise _unknown(response, f"the answer is {response.text[:100]!r}")
        return ApiAnswer(body, response)

    def _failure(self, response: httpx.Response) -> ApiUnavailableError | RequestRefusedError:
        """Return the error of an answer that is a problem, or not the API's at all."""
        body = _json_of(response)
        found = body if isinstance(body, dict) else {} if body is not None else {"detail": response.text[:500]}
        status = f"HTTP {response.status_code}"
        said = f"{found.get('detail') or found.get('title') or status} ({status})"
        if isinstance(found.get("code"), str):
            return RequestRefusedError(said, **{name: found[name] for name in _PROBLEM if name in found})
        if response.status_code in _GATEWAY_STATUSES:
            return self._unavailable(said)
        # What the API does not find it answers with a code.
        if response.status_code == HTTPStatus.NOT_FOUND:
            return _unknown(response, f"the answer is {response.text[:100]!r}")
        return RequestRefusedError(said)

    def _unavailable(self, why: Exception | str) -> ApiUnavailableError | RequestRefusedError:
        if isinstance(why, httpx.LocalProtocolError):
            # Its words quote the header, which may be the key.
            return _invalid(
                "The request can't be sent, because the key or another header contains a character "
                "that is not allowed in headers."
            )
        return ApiUnavailableError(
            f"Refeed's API at {self.url} does not answer ({why}). Start it with 'refeed up' or "
            "'refeed api', or set REFEED_API_URL.",
            url=self.url,
        )


def _unknown(response: httpx.Response, why: str) -> ApiUnknownError:
    request, url = response.request, str(response.request.url.copy_with(query=None))
    return ApiUnknownError(
        f"The answer to {request.method} {url} does not come from Refeed's API (HTTP "
        f"{response.status_code}, {why}). Set REFEED_API_URL to the API's address.",
        url=url,
    )


def path_of(collection: str, name: str, rest: str = "") -> str:
    """Return the path of one resource, whose name may have any character, and of a part or a verb of it.

    Example:
        >>> path_of("streams", "a/b", ":drain")
        '/streams/a%2Fb:drain'
        >>> path_of("streams", "..", "/events")
        '/streams/%2E%2E/events'

    Raises:
        RequestRefusedError: the name is empty, which would be the path of the collection itself.
    """
    if not name:
        message = f"The name or id is empty. All {collection} of the API have a name or an id."
        raise _invalid(message)
    # A part of dots alone would be another place.
    part = name.replace(".", "%2E") if name in {".", ".."} else quote(name, safe="")
    return f"/{collection}/{part}{rest}"


def _without_none(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _read_events(lines: Iterator[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the jobs among server-sent events, with the id of each."""
    fields: dict[str, str] = {}
    for line in lines:
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        if fields.get("event") in {"progress", "end"}:
            yield int(fields["id"]), json.loads(fields["data"])
        fields = {}


def _json_of(response: httpx.Response) -> Any:
    """Return what the answer's body is, None when it is no JSON."""
    try:
        return response.json()
    except ValueError:
        return None


def _invalid(said: str) -> RequestRefusedError:
    return RequestRefusedError(said, code="request_invalid", status=422, detail=said)
