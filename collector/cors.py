"""Answers browsers that ask whether a web page of another origin may send events."""

from typing import Final

from collector.door import allows
from collector.problems import Answer
from collector.request import CollectorRequest
from collector.settings import TopicSection
from model.errors import ForbiddenError

METHODS: Final = b"GET, POST"
# What a page may send beside what every page may, and for how long a browser may remember that.
_CORS_HEADERS: Final = b"authorization, content-encoding, content-type, x-api-key"
_CORS_SECONDS: Final = 600


def answer_preflight(request: CollectorRequest, section: TopicSection) -> Answer | None:
    """Return the answer to a browser that asks what a page of another origin may send, None to others."""
    if request.method != "OPTIONS" or not section.cors:
        return None
    if not allows(section, request.header(b"origin")):
        raise ForbiddenError("Web pages of this origin may not send events to this topic.")
    asked = (
        (b"access-control-allow-methods", METHODS),
        (b"access-control-allow-headers", _CORS_HEADERS),
        (b"access-control-max-age", b"%d" % _CORS_SECONDS),
    )
    return Answer(204, b"", asked)


def cors_headers(request: CollectorRequest, section: TopicSection) -> tuple[tuple[bytes, bytes], ...]:
    """Return what lets a page of a listed origin read the answer, also one that refuses."""
    vary = ((b"vary", b"Origin"),)
    origin = request.header(b"origin")
    return (
        ((b"access-control-allow-origin", origin.encode()), *vary) if origin and allows(section, origin) else vary
    )
