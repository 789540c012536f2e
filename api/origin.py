"""Distinguishes web pages' requests from those of this machine's own programs, for a service without keys."""

from ipaddress import ip_address
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

from model.variables import is_loopback_host

# Sec-Fetch-Site of a request that no page of another origin made.
_OWN_SITES: Final = ("", "same-origin", "none")
# RFC 7239, RFC 9110 section 7.6.3, and the X-Forwarded-* family (by prefix) that proxies sent before them.
_PROXY_HEADERS: Final = ("forwarded", "via", "x-real-ip")
_PROXY_PREFIX: Final = "x-forwarded-"


def find_proxy(scope: Scope) -> str | None:
    """Return the sign that a proxy passed the request on; None when there is none.

    A proxy on this machine calls from loopback and may name loopback as the Host, so a remote caller looks local.
    nginx's bare ``proxy_pass`` adds no header at all, but speaks HTTP/1.0 unless ``proxy_http_version`` is set
    (https://nginx.org/en/docs/http/ngx_http_proxy_module.html). A proxy that speaks HTTP/1.1 and adds nothing
    can't be told from a local program: that is why ``refeed api`` without keys starts with ``--open`` only.
    """
    if scope.get("http_version") == "1.0":
        return "HTTP/1.0"
    names = (name.decode("latin-1").lower() for name, _ in scope["headers"])
    return next((name for name in names if name in _PROXY_HEADERS or name.startswith(_PROXY_PREFIX)), None)


def find_foreign(scope: Scope) -> str | None:
    """Return what shows that a request is not from this machine's own program; None when nothing does.

    A page in the operator's browser reaches 127.0.0.1 too: with a name that its owner points there after it was
    loaded (DNS rebinding), which the Host header shows, or plainly across origins, which another header shows.
    """
    client = scope.get("client")
    try:
        is_near = client is None or ip_address(client[0]).is_loopback
    except ValueError:
        is_near = False
    if not is_near:
        return "This service has no keys, so it answers to its own machine alone; make one: refeed keys create."
    headers = Headers(scope=scope)
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not is_loopback_host(hosts[0]):
        return "This service has no keys, so it answers to localhost and 127.0.0.1 alone; the Host is another one."
    origins = headers.getlist("origin")
    if origins and origins != [f"{scope['scheme']}://{hosts[0]}"]:
        return "This service has no keys, so a web page of another origin may not call it."
    site = headers.get("sec-fetch-site", "")
    # A link on another page may lead here: what it shows can't be read from there.
    is_link = scope["method"] == "GET" and headers.get("sec-fetch-mode") == "navigate"
    if site not in _OWN_SITES and not is_link:
        return "This service has no keys, so a web page of another site may not call it."
    return None
