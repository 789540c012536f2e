"""A sign-in with an identity provider in the browser: a cookie for each attempt, and the way back."""

import base64
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from client.api import RefeedApi
from console.guard import is_secure, own_path
from model.errors import RequestRefusedError

_PREFIX: Final = "refeed_sign_in_"
# Sent to the sign-in alone, and no other page.
_PATH: Final = "/console/sign-in"
_STATE: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LIFE_SECONDS: Final = 600
# A browser sends all of them with each request, whose headers have 16 KiB at most.
_MOST_ATTEMPTS: Final = 4
_MOST_PATH_CHARS: Final = 1500
# RFC 6749, 4.1.2, and RFC 9207.
_ANSWER: Final = ("state", "code", "iss", "error", "error_description")
_MOST_ANSWER_CHARS: Final = 8192
NOT_STARTED: Final = (
    "This sign-in was not started in this browser, has expired, or was already used. Start it again."
)


def find_provider(api: RefeedApi) -> str | None:
    """Return the name of the identity provider that people sign in with, None where there is none.

    Raises:
        ApiUnavailableError: the API does not answer.
    """
    try:
        issuer = api.read_sign_in_methods()["issuer"]
    except RequestRefusedError:
        # An older API does not know the question.
        return None
    return None if issuer is None else urlsplit(issuer).netloc


def answer_of(request: Request) -> dict[str, str]:
    """Return what the provider sent back with the browser; a parameter that came twice counts as none."""
    given = request.query_params
    found = {name: given.getlist(name) for name in _ANSWER}
    return {name: values[0][:_MOST_ANSWER_CHARS] for name, values in found.items() if len(values) == 1}


def keep_attempt(request: Request, response: Response, started: Mapping[str, Any], back: str) -> None:
    """Give the browser the cookie of an attempt: only this browser completes it, and comes back to ``back``."""
    known = [name for name in request.cookies if name.startswith(_PREFIX)]
    for name in known[: max(0, len(known) - _MOST_ATTEMPTS + 1)]:
        _forget(response, name)
    path = back if len(back) <= _MOST_PATH_CHARS else "/console"
    response.set_cookie(
        f"{_PREFIX}{started['state']}",
        f"{started['attempt']}.{base64.urlsafe_b64encode(path.encode()).decode().rstrip('=')}",
        max_age=_LIFE_SECONDS,
        path=_PATH,
        secure=is_secure(request),
        httponly=True,
        # The provider's page leads back here, and that is another site.
        samesite="lax",
    )


def find_attempt(request: Request, state: str | None) -> tuple[str, str] | None:
    """Return the attempt that this browser started with a state, and where it goes on afterwards, or None."""
    if state is None or not _STATE.fullmatch(state):
        return None
    attempt, dot, path = request.cookies.get(f"{_PREFIX}{state}", "").rpartition(".")
    if not dot:
        return None
    try:
        back = base64.urlsafe_b64decode(path + "=" * (-len(path) % 4)).decode()
    except ValueError:
        back = ""
    return attempt, own_path(back)


def forget_attempt(response: Response, state: str | None) -> None:
    """Take the cookie of an attempt back, whatever came of it."""
    if state is not None and _STATE.fullmatch(state):
        _forget(response, f"{_PREFIX}{state}")


def _forget(response: Response, name: str) -> None:
    response.delete_cookie(name, path=_PATH)
