"""What an issuer publishes as JSON: its discovery document, and how any such answer is read safely."""

import json
import time
from collections.abc import Mapping
from typing import Any, Final

import httpx

FETCH_SECONDS: Final = 5.0
_MAX_BYTES: Final = 512 * 1024


def read_discovery(client: httpx.Client, issuer: str) -> dict[str, Any]:
    """Return the issuer's discovery document.

    Raises:
        httpx.HTTPError, httpx.InvalidURL: it does not answer, or with an error.
        ValueError: the answer is no document, or another issuer's.
    """
    document = read_json(client, f"{issuer.rstrip('/')}/.well-known/openid-configuration")
    # RFC 8414, 3.3: a document of another issuer must not name the endpoints of this one.
    if document.get("issuer") != issuer:
        raise ValueError("the discovery document is not this issuer's")
    return document


def endpoint_of(document: Mapping[str, Any], issuer: str, name: str) -> str:
    """Return the address that the discovery document has under ``name``.

    Raises:
        ValueError: there is none, or it is one without TLS of an issuer with TLS.
    """
    url = document.get(name)
    if not isinstance(url, str):
        raise ValueError(f"the discovery document has no {name}")  # noqa: TRY004  what came is wrong, not its type
    if issuer.startswith("https://") and not url.startswith("https://"):
        raise ValueError(f"the discovery document names a {name} without TLS")
    return url


def read_json(client: httpx.Client, url: str) -> dict[str, Any]:
    """Return the JSON object at ``url``, of 512 KiB at most.

    Raises:
        httpx.HTTPError, httpx.InvalidURL: there is no answer.
        ValueError: the answer is an error, or no JSON object.
    """
    with client.stream("GET", url) as response:
        if not response.is_success:
            raise ValueError(f"{url} answered {response.status_code}")
        return parse_json(response)


def parse_json(response: httpx.Response) -> dict[str, Any]:
    """Return the JSON object of an answer that is being streamed, of 512 KiB at most.

    Raises:
        httpx.HTTPError: the connection broke.
        ValueError: it is too large, too slow, or no JSON object.
    """
    body = bytearray()
    deadline = time.monotonic() + FETCH_SECONDS
    for chunk in response.iter_bytes():
        body += chunk
        # httpx's timeout is for each read; one byte a second would go on for ever.
        if len(body) > _MAX_BYTES or time.monotonic() > deadline:
            raise ValueError(f"{response.url.copy_with(query=None)} sent an answer that is too large or too slow")
    value = json.loads(body)
    if not isinstance(value, dict):
        raise ValueError(f"{response.url.copy_with(query=None)} is not a JSON object")  # noqa: TRY004  as above
    return value
