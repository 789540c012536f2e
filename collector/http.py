"""The HTTP collector: ``POST /{topic}`` and ``GET /{topic}?...``, answered once the events are durable."""

import asyncio
import json
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final

import structlog

from collector.batch import Event, make_event, sort_events, split_payload
from collector.cors import METHODS, answer_preflight, cors_headers
from collector.delivery import Delivery, TopicDirectory, TopicState
from collector.door import Door, check_signature
from collector.event import (
    caller_attributes,
    check_room,
    fact_attributes,
    own_attributes,
    parameter_payload,
)
from collector.figures import Figures
from collector.held import HeldBytes
from collector.openapi import render_document
from collector.payload import BatchItem, check_json, gunzip, is_array, split_array, split_lines
from collector.problems import Answer, answer_error, head_too_large, problem, render_fault, retry_after, status_of
from collector.request import CallerGoneError, CollectorRequest
from collector.settings import ROUTES, CollectorSettings, TopicSection
from collector.sns import MAX_SNS_BODY_BYTES, SnsRoute
from connectors.pubsub.encoding import encode_attributes
from model.errors import (
    PubSubError,
    RefeedError,
    RequestInvalidError,
    RequestTimeoutError,
    SnsUncheckedError,
    TopicUnknownError,
    TopicUnreadError,
    UnauthenticatedError,
)
from model.message import MAX_ATTRIBUTE_VALUE_BYTES
from model.origin import has_valid_hosts

_LOG: Final = structlog.get_logger()
_JSON: Final = (b"content-type", b"application/json")
_TEXT: Final = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
# Answers are one caller's own, and show nothing that a browser should guess at.
_SAFE: Final = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
# A transparent GIF of one pixel.
_PIXEL: Final = b64decode("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7")
_LINES: Final = frozenset(
    {"application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines"}
)
# What of a request becomes attributes, beside its path, its query and where it comes from.
_SHARED_HEADERS: Final = (b"content-type", b"user-agent", b"referer")
_MAX_SHARED: Final = 256
_MAX_QUERY_PARAMETERS: Final = 1_000


class Collector:
    """The ASGI application of one collector; ``start`` and ``stop`` of its delivery follow the server's life."""

    def __init__(
        self,
        settings: CollectorSettings,
        *,
        delivery: Delivery,
        directory: TopicDirectory,
        door: Door,
        sns: SnsRoute | None = None,
    ) -> None:
        self._settings = settings
        self._delivery = delivery
        self._directory = directory
        self._door = door
        self._sns = sns
        self._figures = Figures()
        # What every request would look for again.
        self._listed = {topic: self._find_section(topic) for topic in settings.exact_topics}
        self._held = HeldBytes(settings.held_bytes)
        self._shared: dict[tuple[Any, ...], bytes] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request, or follow the server's life."""
        if scope["type"] == "http":
            request = CollectorRequest(scope, receive)
            if request.is_head_too_large:
                await _send(send, head_too_large())
            elif not has_valid_hosts(scope):
                await _send(
                    send, problem(400, "http_error", "A request must have exactly one Host header.", request.path)
                )
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
        await self._warn()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._delivery.stop()
        if self._sns is not None:
            await self._sns.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _warn(self) -> None:
        """Log which of the listed topics nothing subscribes to, as far as Pub/Sub answers now."""
        found = await asyncio.gather(*map(self._directory.find, self._listed), return_exceptions=True)
        unread = [topic for topic, state in zip(self._listed, found, strict=True) if state is TopicState.UNREAD]
        if unread:
            what = "taken, and gone" if self._settings.allow_unread else "refused"
            _LOG.warning(f"these topics have no subscription: their events are {what}", topics=unread)

    async def _serve(self, request: CollectorRequest, send: Any) -> None:
        topic = request.path[1:]
        known, section = "none", None
        try:
            if topic == "sns" and self._sns is not None:
                known = topic
                answer, known = await self._collect_sns(request, self._sns)
            elif topic in ROUTES:
                answer = await self._show(request, topic)
            else:
                section = self._listed.get(topic) or self._find_section(topic)
                known = topic
                answer = answer_preflight(request, section) or await self._collect(request, topic, section)
        except CallerGoneError:
            return
        except RefeedError as error:
            if status_of(error) >= 500:  # noqa: PLR2004  every fault of ours
                _LOG.warning("events refused", topic=known, code=error.code, reason=error.message)
            answer = answer_error(error, request.path)
        except Exception:  # noqa: BLE001  a caller gets an answer whatever happens
            # The log has it: it may hold somebody's event or secret.
            _LOG.exception("unexpected error", topic=known)
            answer = problem(
                500, "internal", "An unexpected error happened. The collector's log has the details.", request.path
            )
        if section is not None and topic not in self._listed and not self._directory.knows(topic):
            # Callers make names up for a pattern, without end.
            known = "none"
        self._figures.count_answer(known, answer.status)
        if section is not None and section.cors:
            answer = answer._replace(headers=answer.headers + cors_headers(request, section))
        await _send(send, answer)

    def _find_section(self, topic: str) -> TopicSection:
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
        if route == "openapi.json":
            return Answer(200, render_document(has_sns=self._sns is not None), (_JSON,))
        is_operator = self._door.admit_operator(request)
        if route == "readyz":
            found, unread = await self._problems()
            shown: dict[str, Any] = {"status": "not_ready" if found else "ok"}
            if is_operator:
                shown["problems"] = found
                if unread:
                    shown["unread"] = unread
                if self._sns is not None:
                    shown["unsubscribed"] = dict(self._sns.unsubscribed.by_arn)
            return Answer(503 if found else 200, json.dumps(shown).encode(), (_JSON,))
        if route == "metrics" and is_operator:
            return Answer(200, self._figures.render(self._delivery.waiting_events()), (_TEXT,))
        return problem(404, "not_found", "No route has this path.", request.path)

    async def _problems(self) -> tuple[dict[str, str], list[str]]:
        """Return why listed topics take no events, and which of them nothing subscribes to.

        These are refused one by one: without its readiness the collector would take nothing for the others.
        """
        found, unread = dict(self._delivery.problems()), []
        for topic in self._settings.exact_topics:
            try:
                state = await self._directory.find(topic)
                if state is TopicState.MISSING:
                    found[topic] = "The topic does not exist."
                elif state is TopicState.UNREAD:
                    unread.append(topic)
            except RefeedError as error:
                found[topic] = error.message
        return found, unread

    async def _collect(self, request: CollectorRequest, topic: str, section: TopicSection) -> Answer:
        """Take what a request holds for ``topic``."""
        if request.method not in ("GET", "POST"):
            return _not_allowed(request, METHODS)
        self._door.admit(request, topic, section)
        await self._check_topic(topic)
        if request.method == "GET":
            return await self._take_query(request, topic, section)
        shared = self._shared_attributes(request, topic, section)
        with self._held.hold(0) as held:
            body = await request.body(self._settings.max_body_bytes, self._settings.body_timeout_seconds, held)
            if section.signature is not None:
                check_signature(request, body, section.signature)
            data = self._unpack(request, body)
            held.add(len(data) - len(body))
            if section.format == "raw":
                return await self._take_one(topic, data, shared)
            if _is_lines(request):
                return await self._take_many(topic, split_lines(data, check_json), shared)
            if section.arrays == "batch" and is_array(data):
                return await self._take_many(topic, split_array(data), shared)
            check_json(data)
            return await self._take_one(topic, data, shared)

    async def _check_topic(self, topic: str) -> None:
        """Return when events of the topic may be taken.

        Raises:
            TopicUnknownError: the topic is allowed by a pattern alone, and it does not exist.
            TopicUnreadError: nothing subscribes to it, so what is published is gone.
            PubSubError: the topic is allowed by a pattern alone, and Pub/Sub can't be asked whether it exists.
        """
        try:
            state = await self._directory.find(topic)
        except PubSubError:
            if topic in self._listed:
                return
            raise
        if state is TopicState.MISSING and topic not in self._listed:
            raise _unknown(topic)
        if state is TopicState.UNREAD:
            self._figures.count_unread(topic)
            if not self._settings.allow_unread:
                raise _unread(topic)

    async def _collect_sns(self, request: CollectorRequest, sns: SnsRoute) -> tuple[Answer, str]:
        """Take what SNS sends, and return the answer and the topic that it counts for.

        SNS sends a message again after 429 and 5xx alone, and has one answer for all events of a notification. So
        what may be a fault of ours is 503, also when other events were taken: they have the same ids next time.
        """
        if request.method != "POST":
            return _not_allowed(request, b"POST"), "none"
        self._door.admit_address(request)
        topic = sns.find_topic(request)
        section = self._find_section(topic)
        with self._held.hold(0) as held:
            most = min(self._settings.max_body_bytes, MAX_SNS_BODY_BYTES)
            try:
                body = await request.body(most, self._settings.body_timeout_seconds, held)
            except RequestTimeoutError as error:
                raise SnsUncheckedError(error.message) from error
            # Its message stands beside it.
            held.add(len(body))
            notice = await sns.read(request, body, topic)
            if notice is None:
                return Answer(200, b'{"status":"ok"}', (_JSON,)), topic
            await self._check_topic(topic)
            attributes = own_attributes(
                topic, sns.source(notice), "application/json" if section.format == "json" else ""
            )
            attributes |= notice.attributes
            check_room(attributes)
            shared = _encode(tuple(attributes.items()))
            events, faults = sort_events(split_payload(notice.data, section), shared, notice.event_uuid)
            outcomes = await self._deliver(topic, list(events.values()))
        errors = [*faults.values(), *(error for error in outcomes if error is not None)]
        if errors:
            raise max(errors, key=status_of)
        body = b'{"taken":%d}' % len(events)
        return Answer(self._delivery.status, body, (_JSON,)), topic

    def _unpack(self, request: CollectorRequest, body: bytes) -> bytes:
        encoding = request.header(b"content-encoding").strip().lower()
        if encoding in ("", "identity"):
            return body
        if encoding != "gzip":
            raise _unsupported("content-encoding", f"The collector accepts only gzip, not {encoding[:40]!r}.")
        return gunzip(body, self._settings.max_body_bytes)

    async def _take_query(self, request: CollectorRequest, topic: str, section: TopicSection) -> Answer:
        """Take the query itself as an event: for pages and mails that can show an image and nothing else."""
        if section.signature is not None:
            raise UnauthenticatedError("The topic accepts only signed bodies, and a GET has no body.")
        is_raw = section.format == "raw"
        payload = (
            request.query.encode() if is_raw else parameter_payload(request.parameters(_MAX_QUERY_PARAMETERS))
        )
        kind = "application/x-www-form-urlencoded" if is_raw else "application/json"
        await self._take_one(topic, payload, self._encode_facts(request, topic, section, kind, {}))
        if "image/" in request.header(b"accept"):
            return Answer(200, _PIXEL, ((b"content-type", b"image/gif"),))
        return Answer(204, b"", ())

    def _shared_attributes(self, request: CollectorRequest, topic: str, section: TopicSection) -> bytes:
        """Return what every event of a request has, encoded.

        Callers mostly repeat themselves, and to make it costs a fifth of what a request costs here.
        """
        address = request.client_address(self._settings.proxies)
        key = (
            topic,
            address,
            request.raw_query,
            request.count(b"content-type"),
            request.raw_headers(_SHARED_HEADERS),
        )
        found = self._shared.get(key)
        if found is None:
            found = self._make_shared(request, topic, section)
            if len(self._shared) >= _MAX_SHARED:
                self._shared.clear()
            self._shared[key] = found
        return found

    def _make_shared(self, request: CollectorRequest, topic: str, section: TopicSection) -> bytes:
        if section.format == "json":
            _check_type(request)
        kind = request.header(b"content-type")
        if len(kind.encode()) > MAX_ATTRIBUTE_VALUE_BYTES:
            raise _unsupported("content-type", "The content type is too long.")
        if section.format == "json" and _is_lines(request):
            # What is published is a line.
            kind = "application/json"
        return self._encode_facts(request, topic, section, kind, caller_attributes(request.parameters()))

    def _encode_facts(
        self, request: CollectorRequest, topic: str, section: TopicSection, kind: str, own: Mapping[str, str]
    ) -> bytes:
        facts = {
            "path": request.path,
            "query": request.query,
            "user_agent": request.header(b"user-agent"),
            "referer": request.header(b"referer"),
            "client_address": request.client_address(self._settings.proxies),
        }
        attributes = own_attributes(topic, section.source, kind)
        attributes |= fact_attributes(facts, self._settings.facts)
        attributes |= own
        check_room(attributes)
        return _encode(tuple(attributes.items()))

    async def _take_one(self, topic: str, data: bytes, shared: bytes) -> Answer:
        event = make_event(data, shared)
        [error] = await self._delivery.deliver(topic, (event.message,))
        if error is not None:
            raise error
        self._figures.count_events(topic, 1, len(event.message))
        body = f'{{"uuid":"{event.uuid}","timestamp":"{event.timestamp}"}}'
        return Answer(self._delivery.status, body.encode(), (_JSON,))

    async def _take_many(self, topic: str, items: Iterator[BatchItem], shared: bytes) -> Answer:
        """Take the events of a batch and answer for each; one that is refused keeps back no other."""
        events, faults = sort_events(items, shared)
        outcomes = await self._deliver(topic, list(events.values()))
        faults |= {at: error for at, error in zip(events, outcomes, strict=True) if error is not None}
        taken = self._delivery.status
        answers: list[dict[str, Any]] = [
            render_fault(faults[at])
            if at in faults
            else {"status": taken, "uuid": events[at].uuid, "timestamp": events[at].timestamp}
            for at in sorted(events.keys() | faults.keys())
        ]
        statuses: set[int] = {answer["status"] for answer in answers}
        body = {"taken": len(answers) - len(faults), "refused": len(faults), "items": answers}
        status = statuses.pop() if len(statuses) == 1 else HTTPStatus.MULTI_STATUS
        more = retry_after() if HTTPStatus.SERVICE_UNAVAILABLE in (status, *statuses) else ()
        return Answer(status, json.dumps(body, separators=(",", ":")).encode(), (_JSON, *more))

    async def _deliver(self, topic: str, events: Sequence[Event]) -> list[RefeedError | None]:
        outcomes = await self._delivery.deliver(topic, [event.message for event in events])
        taken = [event for event, error in zip(events, outcomes, strict=True) if error is None]
        self._figures.count_events(topic, len(taken), sum(len(event.message) for event in taken))
        return outcomes


@lru_cache(maxsize=256)
def _encode(attributes: tuple[tuple[str, str], ...]) -> bytes:
    # Callers mostly repeat themselves: same program, same address, same type.
    return encode_attributes(attributes)


def _unknown(topic: str) -> TopicUnknownError:
    return TopicUnknownError(f"The collector does not accept events for {topic[:80]!r}.")


def _unread(topic: str) -> TopicUnreadError:
    return TopicUnreadError(f"The topic {topic} has no subscription, so Pub/Sub would not keep its events.")


def _check_type(request: CollectorRequest) -> None:
    kind = request.media_type()
    if request.count(b"content-type") > 1:
        raise _unsupported("content-type", "The request has more than one content type.")
    is_json = kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
    if kind and not is_json and kind not in _LINES:
        raise _unsupported("content-type", f"The topic accepts application/json or ndjson, not {kind[:80]!r}.")


def _is_lines(request: CollectorRequest) -> bool:
    return request.media_type() in _LINES


def _unsupported(header: str, message: str) -> RequestInvalidError:
    code = f"{header.replace('-', '_')}_unsupported"
    return RequestInvalidError.of(code, message, f"header:{header}", status=415)


def _not_allowed(request: CollectorRequest, methods: bytes) -> Answer:
    found = problem(
        405, "method_not_allowed", f"{request.method[:20]} is not allowed for this path.", request.path
    )
    return found._replace(headers=(*found.headers, (b"allow", methods)))


async def _send(send: Any, answer: Answer) -> None:
    # RFC 9110, section 8.6: an answer without content by its status has no length either.
    length = () if answer.status == HTTPStatus.NO_CONTENT else ((b"content-length", b"%d" % len(answer.body)),)
    headers = [*answer.headers, *length, *_SAFE]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
