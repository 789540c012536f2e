"""Decides who may send an event, and how often: keys, signatures, public topics, programs of this machine."""

import base64
import hashlib
import hmac
from ipaddress import IPv6Address, ip_address
from typing import Final

from collector.request import CollectorRequest
from collector.settings import CollectorSettings, KeySection, SignatureSection, TopicSection
from model.errors import ForbiddenError, ProxyWithoutKeyError, RateLimitedError, UnauthenticatedError
from model.limits import TokenBuckets
from model.message import matches
from model.origin import find_foreign, find_proxy

_GITHUB_HEADER: Final = b"x-hub-signature-256"
_GITHUB_PREFIX: Final = "sha256="
_NETWORK_BITS: Final = 64


class Door:
    """Admits requests; ``is_open`` is for a collector on loopback, which without keys answers this machine."""

    def __init__(self, settings: CollectorSettings, *, is_open: bool) -> None:
        self._is_open = is_open and not settings.keys
        # By digest: how long a look-up takes says nothing about a secret.
        self._keys = {_digest(key.secret): key for key in settings.keys}
        self._proxies = settings.proxies
        self._has_address_limit = settings.rate_limits.address_per_minute > 0
        self._by_key = TokenBuckets(settings.rate_limits.key_per_minute)
        self._by_address = TokenBuckets(settings.rate_limits.address_per_minute)

    def admit(self, request: CollectorRequest, topic: str, section: TopicSection) -> None:
        """Return when the request may be read; a topic with a signature wants :func:`check_signature` then.

        Raises:
            UnauthenticatedError: the topic wants a key, and there is none or an unknown one.
            ForbiddenError: the key is for other topics, a web page of another origin calls, or without keys a web
                page or a proxy.
            RateLimitedError: the key or the address calls too often.
        """
        self.admit_address(request)
        origin = request.header(b"origin")
        if section.cors and origin and not allows(section, origin):
            raise ForbiddenError("Web pages of this origin may not send events to this topic.")
        if section.public or section.signature is not None:
            return
        if self._is_open:
            _refuse_stranger(request, is_known=bool(origin) and allows(section, origin))
            return
        key = self._find(request)
        if key.topics is not None and not matches(key.topics, topic):
            raise ForbiddenError(f"The key {key.name} is not for the topic {topic}.")
        _take(self._by_key, key.name)

    def admit_address(self, request: CollectorRequest) -> None:
        """Return when the request's address may call now.

        Raises:
            RateLimitedError: it calls too often.
        """
        if self._has_address_limit:
            _take(self._by_address, _network(request.client_address(self._proxies)))

    def admit_operator(self, request: CollectorRequest) -> bool:
        """Whether a request may see figures and faults: with any key, or without keys from this machine."""
        if not self._keys:
            return find_proxy(request.scope) is None and find_foreign(request.scope) is None
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
                "The topic accepts only events with a key. Send the key as 'Authorization: Bearer KEY'."
            )
        return key


def allows(section: TopicSection, origin: str) -> bool:
    """Whether web pages of ``origin`` may send events to the section's topics and read the answers."""
    return "*" in section.cors or origin.lower() in section.cors


def check_signature(request: CollectorRequest, body: bytes, signature: SignatureSection) -> None:
    """Raise unless the request's signature is that of ``body``, the bytes as they came.

    Raises:
        UnauthenticatedError: it is another one, or none, or there are several.
    """
    is_github = signature.kind == "github"
    header = _GITHUB_HEADER if is_github else signature.header.lower().encode()
    prefix = _GITHUB_PREFIX if is_github else signature.prefix
    digest = hmac.digest(signature.secret.encode(), body, signature.algorithm)
    wanted = digest.hex() if signature.encoding == "hex" else base64.b64encode(digest).decode()
    found = request.header(header)
    # Some senders write hex in capitals; base64 knows two.
    is_same = hmac.compare_digest(
        (found.lower() if signature.encoding == "hex" else found).encode(),
        (prefix.lower() + wanted if signature.encoding == "hex" else prefix + wanted).encode(),
    )
    if request.count(header) != 1 or not is_same:
        raise UnauthenticatedError(f"The body has no valid signature in {header.decode()}.")


def check_basic(request: CollectorRequest, username: str, password: str) -> None:
    """Raise unless the request has these Basic credentials.

    Raises:
        UnauthenticatedError: it has others, or none.
    """
    scheme, _, found = request.header(b"authorization").partition(" ")
    wanted = base64.b64encode(f"{username}:{password}".encode()).decode()
    if scheme.lower() != "basic" or not hmac.compare_digest(_digest(found.strip()), _digest(wanted)):
        # A sender with credentials in its URL, such as SNS, sends them after this answer.
        raise UnauthenticatedError("Send the credentials of the SNS topic as Basic credentials.", scheme="Basic")


def _take(buckets: TokenBuckets, caller: str) -> None:
    wait = buckets.take(caller)
    if wait > 0:
        raise RateLimitedError(f"Too many requests. Try again in {wait:.0f} s.", retry_after_seconds=wait)


def _network(address: str) -> str:
    """Return what counts as one caller: an address, or the network of an IPv6 one."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        return str(found.ipv4_mapped or IPv6Address(int(found) >> _NETWORK_BITS << _NETWORK_BITS))
    return address


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _refuse_stranger(request: CollectorRequest, *, is_known: bool) -> None:
    """Raise when a proxy calls, whose sender is unknown, or a web page, unless its origin ``is_known``.

    Raises:
        ForbiddenError: one of them does.
    """
    if (sign := find_proxy(request.scope)) is not None:
        raise ProxyWithoutKeyError(f"This call came through a proxy ({sign}), and the collector has no keys.")
    # A GET of a topic sends an event.
    if (found := find_foreign(request.scope, is_known_origin=is_known, changes_by_get=True)) is not None:
        raise ForbiddenError(found)
