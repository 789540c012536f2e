"""The HTTP collector: ``POST /{topic}``, answered once the event is durable."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import structlog

from collector.delivery import Delivery, TopicDirectory
from collector.door import Door
from collector.event import caller_attributes, check_room, fact_attributes, new_identity
from collector.figures import Figures
from collector.payload import check_json
from collector.problems import Answer, answer_error, head_too_large, problem, status_of
from collector.request import CallerGoneError, CollectorRequest
from collector.settings import ROUTES, CollectorSettings, TopicSection
from connectors.pubsub.encoding import encode_attributes
from connectors.pubsub.sending import encode_message
from model.errors import BodyTooLargeError, QueueFullError, RefeedError, RequestInvalidError, TopicUnknownError
from model.message import MAX_ATTRIBUTE_VALUE_BYTES, MAX_MESSAGE_BYTES

_LOG: Final = structlog.get_logger()
_JSON: Final = (b"content-type", b"application/json")
_TEXT: Final = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
# Answers are one caller's own, and show nothing that a browser should guess at.
_SAFE: Final = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
_METHODS: Final = b"POST"
# The topic's name in the request stands before the message and takes of its room.
_REQUEST_HEAD_BYTES: Final = 1_000


class Event(NamedTuple):
    """An event that may go out: its encoded message and what its sender is told."""

    uuid: str
    timestamp: str
    message: bytes


class Collector:
    """The ASGI application of one collector; ``start`` and ``stop`` of its delivery follow the server's life."""

    def __init__(
        self, settings: CollectorSettings, *, delivery: Delivery, directory: TopicDirectory, door: Door
    ) -> None:
        self._settings = settings
        self._delivery = delivery
        self._directory = directory
        self._door = door
        self._figures = Figures()
        self._held_bytes = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request, or follow the server's life."""
        if scope["type"] == "http":
            request = CollectorRequest(scope, receive)
            if request.is_head_too_large:
                await _send(send, head_too_large())
            else:
                await self._serve(request, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)

    async def _live(self, receive: Any, send: Any) -> None:
        await receive()
        try:
            await self._delivery.start()
        except RefeedError as error:
            await send({"type": "lifespan.startup.failed", "message": error.message})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._delivery.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _serve(self, request: CollectorRequest, send: Any) -> None:
        topic = request.path[1:]
        known = "none"
        try:
            if topic in ROUTES:
                answer = await self._show(request, topic)
            else:
                section = self._section(topic)
                known = topic
                answer = await self._collect(request, topic, section)
        except CallerGoneError:
            return
        except RefeedError as error:
            if status_of(error) >= 500:  # noqa: PLR2004  every fault of ours
                _LOG.warning("events refused", topic=known, code=error.code, reason=error.message)
            answer = answer_error(error, request.path)
        except Exception:  # noqa: BLE001  a caller gets an answer whatever happens
            # The log has it: it may hold somebody's event or secret.
            _LOG.exception("unexpected error", topic=known)
            answer = problem(500, "internal", "Something unexpected happened; the log has it.", request.path)
        self._figures.count_answer(known, answer.status)
        await _send(send, answer)

    def _section(self, topic: str) -> TopicSection:
        section = self._settings.section(topic)
        if section is None:
            raise _unknown(topic)
        return section

    async def _show(self, request: CollectorRequest, route: str) -> Answer:
        """Answer one of the collector's own paths."""
        if request.method not in ("GET", "HEAD"):
            return _not_allowed(request, b"GET")
        if route == "healthz":
            return Answer(200, b'{"status":"ok"}', (_JSON,))
        is_operator = self._door.admit_operator(request)
        if route == "readyz":
            found = await self._problems()
            shown = {"status": "not_ready" if found else "ok"} | ({"problems": found} if is_operator else {})
            return Answer(503 if found else 200, json.dumps(shown).encode(), (_JSON,))
        if route == "metrics" and is_operator:
            return Answer(200, self._figures.render(), (_TEXT,))
        return problem(404, "not_found", "There is nothing here.", request.path)

    async def _problems(self) -> dict[str, str]:
        found = dict(self._delivery.problems())
        for topic in self._settings.exact_topics:
            try:
                if not await self._directory.has(topic):
                    found[topic] = "The topic does not exist."
            except RefeedError as error:
                found[topic] = error.message
        return found

    async def _collect(self, request: CollectorRequest, topic: str, section: TopicSection) -> Answer:
        """Take what a request holds for ``topic``."""
        if request.method != "POST":
            return _not_allowed(request, _METHODS)
        self._door.admit(request, topic, section)
        shared = self._shared_attributes(request, topic, section)
        await self._check_topic(topic)
        body = await self._read(request)
        try:
            self._check_body(request, section, body)
            return await self._take_one(topic, body, shared)
        finally:
            self._held_bytes -= len(body)

    async def _check_topic(self, topic: str) -> None:
        """Raise unless a topic that a pattern lets in is there; one that is listed by name is the operator's word.

        Raises:
            TopicUnknownError: Pub/Sub has no such topic.
            PubSubError: Pub/Sub can't be asked.
        """
        if topic not in self._settings.topics and not await self._directory.has(topic):
            raise _unknown(topic)

    async def _read(self, request: CollectorRequest) -> bytes:
        """Return the body; whoever gets it gives its bytes back.

        Raises:
            QueueFullError: all requests together hold too much.
        """
        settings = self._settings
        body = await request.body(settings.max_body_bytes, settings.body_timeout_seconds)
        if self._held_bytes + len(body) > settings.held_bytes:
            raise QueueFullError("Too many events wait for Pub/Sub; nothing of this request was taken.")
        self._held_bytes += len(body)
        return body

    def _check_body(self, request: CollectorRequest, section: TopicSection, body: bytes) -> None:
        if encoding := request.header(b"content-encoding"):
            raise _unsupported("content-encoding", f"The content encoding {encoding[:40]!r} is not supported.")
        if section.format == "json":
            _check_type(request)
            check_json(body)

    def _shared_attributes(self, request: CollectorRequest, topic: str, section: TopicSection) -> bytes:
        """Return what every event of a request has, encoded."""
        facts = {
            "path": request.path,
            "query": request.query,
            "user_agent": request.header(b"user-agent"),
            "referer": request.header(b"referer"),
            "client_address": request.client_address(self._settings.proxies),
        }
        kind = request.header(b"content-type")
        if len(kind.encode()) > MAX_ATTRIBUTE_VALUE_BYTES:
            raise _unsupported("content-type", "The content type is too long.")
        attributes = {"topic": topic, "source": section.source, "content_type": kind}
        if not kind:
            del attributes["content_type"]
        attributes |= fact_attributes(facts, self._settings.facts)
        attributes |= caller_attributes(request.parameters())
        check_room(attributes)
        return _encode(tuple(attributes.items()))

    async def _take_one(self, topic: str, data: bytes, shared: bytes) -> Answer:
        event = make_event(data, shared)
        outcomes = await self._deliver(topic, [event])
        if (error := outcomes[0]) is not None:
            raise error
        body = f'{{"uuid":"{event.uuid}","timestamp":"{event.timestamp}"}}'
        return Answer(self._delivery.status, body.encode(), (_JSON,))

    async def _deliver(self, topic: str, events: Sequence[Event]) -> list[RefeedError | None]:
        outcomes = await self._delivery.deliver(topic, [event.message for event in events])
        taken = [event for event, error in zip(events, outcomes, strict=True) if error is None]
        self._figures.count_events(topic, len(taken), sum(len(event.message) for event in taken))
        return outcomes


def make_event(data: bytes, shared: bytes) -> Event:
    """Return an event of its own id and time.

    Raises:
        BodyTooLargeError: Pub/Sub takes no message of this size.
    """
    identity = new_identity()
    message = encode_message(data, shared + encode_attributes(identity._asdict().items()))
    if len(message) > MAX_MESSAGE_BYTES - _REQUEST_HEAD_BYTES:
        raise BodyTooLargeError(f"With its attributes the event has {len(message)} bytes; Pub/Sub takes 10 MB.")
    return Event(identity.uuid, identity.timestamp, message)


@lru_cache(maxsize=256)
def _encode(attributes: tuple[tuple[str, str], ...]) -> bytes:
    # Callers mostly repeat themselves: same program, same address, same type.
    return encode_attributes(attributes)


def _unknown(topic: str) -> TopicUnknownError:
    return TopicUnknownError(f"The collector takes no events for {topic[:80]!r}.")


def _check_type(request: CollectorRequest) -> None:
    kind = request.media_type()
    if request.count(b"content-type") > 1:
        raise _unsupported("content-type", "The content type comes more than once.")
    if kind and kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise _unsupported("content-type", f"The topic takes application/json, not {kind[:80]!r}.")


def _unsupported(header: str, message: str) -> RequestInvalidError:
    fault = {"code": f"{header.replace('-', '_')}_unsupported", "message": message, "pointer": f"header:{header}"}
    return RequestInvalidError(message, status=415, errors=[fault])


def _not_allowed(request: CollectorRequest, methods: bytes) -> Answer:
    found = problem(405, "method_not_allowed", f"{request.method[:20]} is not for this path.", request.path)
    return found._replace(headers=(*found.headers, (b"allow", methods)))


async def _send(send: Any, answer: Answer) -> None:
    length = (b"content-length", b"%d" % len(answer.body))
    headers = [*answer.headers, length, *_SAFE]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
