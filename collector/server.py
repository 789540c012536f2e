"""Serves a collector over HTTP/1.1: what it listens on, and how long it waits for a request's head."""

import asyncio
from http import HTTPStatus
from typing import Any, Final

import structlog
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from collector.delivery import Delivery, DirectDelivery, TopicDirectory
from collector.door import Door
from collector.http import Collector
from collector.problems import Answer, answer_error, head_too_large, problem
from collector.queue import QueueDelivery
from collector.request import BODY_IS_HERE, MAX_HEAD_BYTES
from collector.settings import CollectorSettings
from collector.sns import SnsRoute
from connectors.pubsub.client import PubSub
from connectors.server import HeadTimeout, make_server_config
from model.errors import PubSubUnavailableError, QueueFullError
from model.settings import Settings
from model.variables import is_loopback_name

_LOG: Final = structlog.get_logger()
_SHUTDOWN_SECONDS: Final = 20
_KEEP_ALIVE_SECONDS: Final = 15


def open_collector(settings: Settings, collector: CollectorSettings, pubsub: PubSub, *, host: str) -> Collector:
    """Return the application; topics that are listed by name are created where Pub/Sub is a local server.

    Raises:
        SettingsError: anybody who reaches ``host`` could send events.
        LeaseHeldError: another process has the queue.
        PubSubError: Pub/Sub does not answer, and there is no queue.
    """
    collector.check_host(host)
    delivery: Delivery
    directory = TopicDirectory(pubsub)
    folder = settings.home / "collector"
    if settings.collector_queue_bytes:
        delivery = QueueDelivery(
            pubsub,
            folder,
            max_bytes=settings.collector_queue_bytes,
            directory=None if collector.allow_unread else directory,
            is_shared=len(collector.allowed) > 1 or not collector.exact_topics,
        )
    else:
        delivery = DirectDelivery(pubsub, give_up_seconds=collector.publish_timeout_seconds)
    if settings.is_embedded:
        try:
            for topic in collector.exact_topics:
                pubsub.create_topic(topic)
        except PubSubUnavailableError as error:
            # A queue is there for just that.
            if not settings.collector_queue_bytes:
                raise
            _LOG.warning("Pub/Sub does not answer: events wait in the queue", reason=error.message)
    return Collector(
        collector,
        delivery=delivery,
        directory=directory,
        door=Door(collector, is_open=is_loopback_name(host)),
        sns=SnsRoute(collector.sns, folder=folder) if collector.sns.topics else None,
    )


def serve(settings: Settings, collector: CollectorSettings, *, host: str, port: int) -> None:
    """Collect events until SIGINT or SIGTERM, and answer those under way before the end.

    Raises:
        SettingsError: anybody who reaches ``host`` could send events.
        LeaseHeldError: another process has the queue.
        PubSubError: Pub/Sub does not answer, and there is no queue.
    """
    with PubSub(settings.project, settings.pubsub_address) as pubsub:
        app = open_collector(settings, collector, pubsub, host=host)
        _LOG.info("listening", host=host, port=port, topics=collector.allowed)
        config = make_config(
            app,
            host=host,
            port=port,
            head_seconds=settings.body_timeout_seconds,
            max_connections=collector.max_connections,
        )
        uvicorn.Server(config).run()


def make_config(
    app: Collector,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    head_seconds: float,
    max_connections: int = 1000,
) -> uvicorn.Config:
    """Return how the app is served.

    ``head_seconds`` is how long a request's line and headers may take, and the rest of a body that nobody reads
    any more. A connection beyond ``max_connections`` is answered 503 and closed.
    """
    return make_server_config(
        app,
        type("_BoundedProtocol", (_BoundedProtocol,), {"max_connections": max_connections}),
        host=host,
        port=port,
        head_seconds=head_seconds,
        # Whose address counts is the settings' word, not that of a header.
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )


class _WholeAnswers:
    """A transport that holds back an answer's head for the write of its body: each write is a system call."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._head = b""
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        """Write, unless a body follows."""
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 1"):
            self._head = data
            return
        self._transport.write(data)

    def flush(self) -> None:
        """Write what is held back."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        """Write what is held back, and close."""
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _BoundedProtocol(HeadTimeout, HttpToolsProtocol):
    """uvicorn's HTTP/1.1, which reads a head of any size; here one that grows too large ends its connection."""

    max_connections: int
    _unread: asyncio.TimerHandle | None = None
    _is_head_whole = False
    # Of the head, or of the trailers after a body in chunks.
    _head_bytes = 0
    _has_message_ended = False
    _is_body = False

    def connection_made(self, transport: Any) -> None:
        """Begin, on a transport that sends an answer as one write."""
        super().connection_made(_WholeAnswers(transport))
        if len(self.connections) > self.max_connections:
            self._refuse(answer_error(QueueFullError("The collector has reached its limit of connections."), ""))

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._stop_unread()
        super().connection_lost(exc)

    def awaits_head(self) -> bool:
        """Whether a head has begun, or is the connection's first, and is not whole."""
        return not self._is_head_whole

    def on_message_begin(self) -> None:
        """Begin a head."""
        self._is_head_whole = False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; a trailer is none (https://www.rfc-editor.org/rfc/rfc9110#section-6.5.1)."""
        if not self._is_head_whole:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """End a head."""
        self._is_head_whole = True
        self._head_bytes = 0
        self.watch_head()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Go on with a body."""
        self._is_body = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request; one whose handler has not begun is read without a timeout."""
        self._has_message_ended = True
        self._stop_unread()
        self.scope["extensions"] = {BODY_IS_HERE: {}}
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """End an answer; that to HEAD has no second write.

        An answer may come before its request's body has ended, and nothing else bounds how long the rest takes.
        """
        self.transport.flush()
        super().on_response_complete()
        if self.cycle.response_complete and self.cycle.more_body:
            self._unread = self.loop.call_later(self.head_seconds, self.transport.close)

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def data_received(self, data: bytes) -> None:
        """Go on with a request, and with waiting for its head."""
        self._has_message_ended = self._is_body = False
        super().data_received(data)
        if self.transport.is_closing():
            return
        # A piece that ends a request is mostly that one's body, and a head after it is counted from the next. One
        # without a byte of the body is of a head or of trailers.
        is_head = not (self._has_message_ended or self._is_body)
        self._head_bytes = self._head_bytes + len(data) if is_head else 0
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(head_too_large())
        elif not self._is_head_whole:
            self.watch_head()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP request, and close."""
        self._refuse(problem(HTTPStatus.BAD_REQUEST, "http_error", msg, ""))

    def _refuse(self, answer: Answer) -> None:
        status = HTTPStatus(answer.status)
        lines = [b"HTTP/1.1 %d %s" % (status, status.phrase.encode())]
        lines += [name + b": " + value for name, value in answer.headers]
        lines += [b"content-length: %d" % len(answer.body), b"connection: close", b"", answer.body]
        self.transport.write(b"\r\n".join(lines))
        self.transport.close()
