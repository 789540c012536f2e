"""A collector's refusals as RFC 9457 problems, in the shape of the API's."""

import json
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from collector.request import MAX_HEAD_BYTES, MAX_HEADERS
from model.errors import (
    BodyTooLargeError,
    ForbiddenError,
    MessageRefusedError,
    PubSubError,
    QueueFullError,
    RateLimitedError,
    RefeedError,
    RequestInvalidError,
    RequestTimeoutError,
    SnsUncheckedError,
    TopicUnknownError,
    UnauthenticatedError,
)

PROBLEM_TYPE: Final = b"application/problem+json"
RETRY_AFTER_SECONDS: Final = 5

# The nearest class in an error's ancestry decides. What is Pub/Sub's fault or ours is 503: the sender has to keep
# the event and come again, and some, such as SNS, do so after 429 and 5xx only.
STATUSES: Final[Mapping[type[RefeedError], HTTPStatus]] = {
    RequestInvalidError: HTTPStatus.UNPROCESSABLE_ENTITY,
    MessageRefusedError: HTTPStatus.UNPROCESSABLE_ENTITY,
    BodyTooLargeError: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    RequestTimeoutError: HTTPStatus.REQUEST_TIMEOUT,
    TopicUnknownError: HTTPStatus.NOT_FOUND,
    UnauthenticatedError: HTTPStatus.UNAUTHORIZED,
    ForbiddenError: HTTPStatus.FORBIDDEN,
    RateLimitedError: HTTPStatus.TOO_MANY_REQUESTS,
    QueueFullError: HTTPStatus.SERVICE_UNAVAILABLE,
    SnsUncheckedError: HTTPStatus.SERVICE_UNAVAILABLE,
    PubSubError: HTTPStatus.SERVICE_UNAVAILABLE,
    RefeedError: HTTPStatus.INTERNAL_SERVER_ERROR,
}


class Answer(NamedTuple):
    """A whole answer: status, body, and headers besides Content-Length."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]


def status_of(error: RefeedError) -> int:
    """Return the status that an error is answered with."""
    named = error.details.get("status")
    if isinstance(error, RequestInvalidError) and isinstance(named, int):
        return named
    return next(int(STATUSES[kind]) for kind in type(error).__mro__ if kind in STATUSES)


def render_fault(error: RefeedError) -> dict[str, Any]:
    """Return an error as an item of a batch's answer has it."""
    status = status_of(error)
    return {
        "status": status,
        "code": error.code,
        "detail": error.message,
        "errors": error.details.get("errors", []),
    }


def problem(status: int, code: str, detail: str, path: str, errors: list[dict[str, Any]] | None = None) -> Answer:
    """Return a problem; ``code`` is stable and names a page of docs/problems."""
    body = {
        "type": f"/problems/{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "instance": path,
        "code": code,
        "errors": errors or [],
    }
    # In ASCII: a message may quote what UTF-8 can't hold.
    return Answer(status, json.dumps(body, separators=(",", ":")).encode(), ((b"content-type", PROBLEM_TYPE),))


def head_too_large() -> Answer:
    """Return the answer to a request whose line and headers are too many or too large."""
    text = f"A request can have at most {MAX_HEADERS} headers, with at most {MAX_HEAD_BYTES} bytes."
    return problem(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "http_error", text, "")


def retry_after(seconds: float = RETRY_AFTER_SECONDS) -> tuple[tuple[bytes, bytes], ...]:
    """Return the header Retry-After."""
    return ((b"retry-after", b"%d" % max(1, math.ceil(seconds))),)


def answer_error(error: RefeedError, path: str) -> Answer:
    """Return the problem that an error is answered with, and when to come again."""
    status = status_of(error)
    found = problem(status, error.code, error.message, path, error.details.get("errors"))
    match status:
        case HTTPStatus.SERVICE_UNAVAILABLE:
            more = retry_after()
        case HTTPStatus.TOO_MANY_REQUESTS:
            seconds = error.details.get("retry_after_seconds", RETRY_AFTER_SECONDS)
            more = retry_after(seconds)
        case HTTPStatus.UNAUTHORIZED:
            scheme = str(error.details.get("scheme", "Bearer"))
            more = ((b"www-authenticate", f'{scheme} realm="refeed-collector"'.encode()),)
        case HTTPStatus.REQUEST_ENTITY_TOO_LARGE | HTTPStatus.REQUEST_TIMEOUT:
            # What is still to come of the body is not read, so nothing can follow it.
            more = ((b"connection", b"close"),)
        case _:
            more = ()
    return found._replace(headers=found.headers + more)
