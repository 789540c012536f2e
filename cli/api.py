"""Which API a command calls, and with which key: from the environment, or from the ``refeed up`` of this home."""

import os
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from cli.processes import is_listening
from cli.running import RunningUp, record_of
from cli.terminal import Found, print_found
from connectors.gcp_kms.decrypt import decrypt
from model.errors import SettingsError
from model.home import find_home
from model.secret import is_reference, read_secret

if TYPE_CHECKING:
    from client.api import RefeedApi

DEFAULT_API_URL: Final = "http://127.0.0.1:8080"
POLL_SECONDS: Final = 0.5


def open_api() -> "RefeedApi":
    """Return the API at REFEED_API_URL, called with REFEED_API_KEY if there is one.

    Without REFEED_API_URL it is that of the ``refeed up`` that runs on this home, else the usual one. Where nobody
    listens there, it is that of the last ``refeed up``: an error then names the address that people know.

    Raises:
        SettingsError: REFEED_API_URL is not an address, or REFEED_API_KEY a reference that leads to no key.
    """
    # An HTTP client takes a third of a command's start, and help needs none.
    from client.api import RefeedApi

    key = (os.environ.get("REFEED_API_KEY") or "").strip()
    if is_reference(key):
        try:
            key = read_secret(key, os.environ, decrypt)
        except ValueError as exc:
            raise SettingsError(f"REFEED_API_KEY: {exc}") from exc
    return RefeedApi(find_api_url(), key or None)


def print_answer(
    call: "Callable[[RefeedApi], Found]", lines: Callable[[Found], Iterable[str]], *, as_json: bool
) -> None:
    """Print what ``call`` gets from the API, as one JSON value or as the lines that a person reads."""
    with open_api() as api:
        found = call(api)
    print_found(found, lines, as_json=as_json)


def poll(
    found: dict[str, Any], look: Callable[[], dict[str, Any]], is_done: Callable[[Any], bool], *, seconds: float
) -> dict[str, Any]:
    """Return what ``look`` returns once it is done, looking twice a second for ``seconds`` at most."""
    deadline = time.monotonic() + seconds
    while not is_done(found) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        found = look()
    return found


def find_api_url() -> str:
    """Return where the API is, as :func:`open_api` does.

    Raises:
        SettingsError: REFEED_API_URL is not an address.
    """
    url = (os.environ.get("REFEED_API_URL") or "").strip()
    if not url:
        last = RunningUp.read(record_of(find_home(os.environ)))
        is_usual = last is None or (not last.up.is_alive and is_listening(urlsplit(DEFAULT_API_URL).netloc))
        return DEFAULT_API_URL if last is None or is_usual else last.api_url
    return check_api_url(url, "REFEED_API_URL")


def check_api_url(url: str, name: str) -> str:
    """Return ``url`` if it is an address; ``name`` is the variable or option that holds it.

    Raises:
        SettingsError: it is none.
    """
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        # A bracket that is not closed, or a port that is no number or too large.
        is_address = False
    if not is_address:
        fault = f"{name}={url} is not an address"
        # Without a scheme a port may look like one: localhost:8080.
        wanted = f"; write {name}=http://{url}" if "://" not in url else ", such as http://127.0.0.1:8080"
        raise SettingsError(f"{fault}{wanted}", faults=[f"{fault}{wanted}"])
    return url
