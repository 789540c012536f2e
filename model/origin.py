"""Distinguishes web pages' requests from those of this machine's own programs, for a service without keys."""

from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Final

from model.variables import is_loopback_host

# Sec-Fetch-Site of a request that no page of another origin made.
_OWN_SITES: Final = ("same-origin", "none")
# RFC 7239, RFC 9110 section 7.6.3, and the X-Forwarded-* family (by prefix) that proxies sent before them.
_PROXY_HEADERS: Final = (b"forwarded", b"via", b"x-real-ip")
_PROXY_PREFIX: Final = b"x-forwarded-"


def find_proxy(scope: Mapping[str, Any]) -> str | None:
    """Return the sign that a proxy passed the request of an ASGI scope on; None when there is none.

    A proxy on this machine calls from loopback and may name loopback as the Host, so a remote caller looks local.
    nginx's bare ``proxy_pass`` adds no header at all, but speaks HTTP/1.0 unless ``proxy_http_version`` is set
    (https://nginx.org/en/docs/http/ngx_http_proxy_module.html). A proxy that speaks HTTP/1.1 and adds nothing
    can't be told from a local program: that is why ``refeed api`` without keys starts with ``--open`` only.
    """
    if scope.get("http_version") == "1.0":
        return "HTTP/1.0"
    names = (name.lower() for name, _ in scope["headers"])
    found = next((name for name in names if name in _PROXY_HEADERS or name.startswith(_PROXY_PREFIX)), None)
    return None if found is None else found.decode("latin-1")


def find_foreign(
    scope: Mapping[str, Any], *, is_known_origin: bool = False, changes_by_get: bool = False
) -> str | None:
    """Return what shows that a request is not from this machine's own program; None when nothing does.

    A page in the operator's browser reaches 127.0.0.1 too: with a name that its owner points there after it was
    loaded (DNS rebinding), which the Host header shows, or plainly across origins, which another header shows.
    Pages of an origin that the operator listed (``is_known_origin``) may call. A link on another page may lead
    here, since that page can't read what it shows, unless a GET changes something (``changes_by_get``).
    """
    client = scope.get("client")
    if client is not None and not _is_loopback_address(client[0]):
        return "This service has no keys, so it answers only calls from its own machine."
    hosts = header_lines(scope, b"host")
    if len(hosts) != 1 or not _is_own_host(hosts[0]):
        return (
            "This service has no keys, so it answers only requests to localhost or 127.0.0.1. "
            "This request has another Host."
        )
    if is_known_origin:
        return None
    origins = header_lines(scope, b"origin")
    if origins and origins != [f"{scope['scheme']}://{hosts[0]}"]:
        return "This service has no keys, so a web page of another origin may not call it."
    sites = header_lines(scope, b"sec-fetch-site")
    is_link = (
        not changes_by_get and scope["method"] == "GET" and header_lines(scope, b"sec-fetch-mode") == ["navigate"]
    )
    if any(site and site not in _OWN_SITES for site in sites) and not is_link:
        return "This service has no keys, so a web page of another site may not call it."
    return None


def header_lines(scope: Mapping[str, Any], name: bytes) -> list[str]:
    """Return the value of each line of a header; ``name`` is in lower case, as ASGI has them."""
    return [value.decode("latin-1") for each, value in scope["headers"] if each == name]


def has_valid_hosts(scope: Mapping[str, Any]) -> bool:
    """Whether a request has the one Host header that RFC 9112, section 3.2, demands; HTTP/1.0 may have none.

    Two readers of a request with two may each take another one; such a request is answered with 400.
    """
    hosts = len(header_lines(scope, b"host"))
    return hosts == 1 or (hosts == 0 and scope.get("http_version") == "1.0")


@lru_cache(maxsize=256)
def _is_loopback_address(text: str) -> bool:
    try:
        return ip_address(text).is_loopback
    except ValueError:
        return False


_is_own_host: Final = lru_cache(maxsize=256)(is_loopback_host)
