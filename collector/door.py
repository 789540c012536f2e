"""Decides who may send an event: keys, public topics, or programs of this machine."""

import hashlib
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from collector.request import CollectorRequest
from collector.settings import CollectorSettings, KeySection, TopicSection, matches
from model.errors import ForbiddenError, ProxyWithoutKeyError, UnauthenticatedError
from model.settings import is_loopback_name

_PROXY_HEADERS: Final = (b"forwarded", b"via", b"x-real-ip", b"x-forwarded-for")
# What a browser says of a request that no page of another origin made.
_OWN_SITES: Final = ("", "same-origin", "none")


class Door:
    """Admits requests; ``is_open`` is for a collector on loopback, which without keys answers this machine."""

    def __init__(self, settings: CollectorSettings, *, is_open: bool) -> None:
        self._is_open = is_open and not settings.keys
        # By digest: how long a look-up takes says nothing about a secret.
        self._keys = {_digest(key.secret): key for key in settings.keys}

    def admit(self, request: CollectorRequest, topic: str, section: TopicSection) -> KeySection | None:
        """Return the caller's key, None when it needs none.

        Raises:
            UnauthenticatedError: the topic wants a key, and there is none or an unknown one.
            ForbiddenError: the key is for other topics, or without keys a web page or a proxy calls.
        """
        if section.public:
            return None
        if self._is_open:
            _refuse_stranger(request)
            return None
        key = self._find(request)
        if key.topics is not None and not matches(key.topics, topic):
            raise ForbiddenError(f"The key {key.name} is not for the topic {topic}.")
        return key

    def admit_operator(self, request: CollectorRequest) -> bool:
        """Whether a request may see figures and faults: with any key, or without keys from this machine."""
        if not self._keys:
            return _is_loopback(request.peer) and _find_proxy(request) is None
        try:
            self._find(request)
        except UnauthenticatedError:
            return False
        return True

    def _find(self, request: CollectorRequest) -> KeySection:
        secret = request.header(b"x-api-key")
        if authorization := request.header(b"authorization"):
            scheme, _, token = authorization.partition(" ")
            secret = token.strip() if scheme.lower() == "bearer" else ""
        key = self._keys.get(_digest(secret)) if secret else None
        if key is None:
            raise UnauthenticatedError(
                "The topic takes events with a key: send it as 'Authorization: Bearer KEY'."
            )
        return key


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _refuse_stranger(request: CollectorRequest) -> None:
    """Raise when a web page or a proxy calls, whose sender is unknown.

    A page in a browser of this machine reaches loopback too: across origins, which the browser says, or by a name
    that its owner points there (DNS rebinding), which the Host header shows.

    Raises:
        ForbiddenError: one of them does.
    """
    if (sign := _find_proxy(request)) is not None:
        raise ProxyWithoutKeyError(f"A proxy passed this call on ({sign}), and the collector has no keys.")
    if not _is_loopback(request.peer):
        raise ForbiddenError("The collector has no keys, so it answers to its own machine alone.")
    host = request.header(b"host")
    if not is_loopback_name(_name_of(host)):
        raise ForbiddenError("The collector has no keys, so it answers to localhost and 127.0.0.1 alone.")
    origin = request.header(b"origin")
    if (origin and origin != f"http://{host}") or request.header(b"sec-fetch-site") not in _OWN_SITES:
        raise ForbiddenError("The collector has no keys, so a web page of another site may not call it.")


def _find_proxy(request: CollectorRequest) -> str | None:
    return next((name.decode() for name in _PROXY_HEADERS if request.count(name)), None)


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def _name_of(host: str) -> str:
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return ""
    return (parts.hostname or "") if parts.netloc == host and "@" not in host else ""
