"""Serves HTTP/1.1 with uvicorn: the options of every server of ours, and how long a request's head may take."""

import asyncio
from abc import ABC, abstractmethod
from importlib.metadata import version
from typing import Any

import uvicorn


class HeadTimeout(ABC, asyncio.Protocol):
    """Goes before a protocol of uvicorn's, which by itself waits for a request's head for ever.

    A head that is not whole in ``head_seconds`` ends its connection. The time begins with the connection or with
    the first byte of the next head, and does not begin again with later bytes.
    """

    head_seconds: float
    loop: asyncio.AbstractEventLoop
    transport: Any
    _timer: asyncio.TimerHandle | None = None

    @abstractmethod
    def awaits_head(self) -> bool:
        """Whether the head of a request is still to come, or to be completed."""

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self.watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop()
        super().connection_lost(exc)

    def watch_head(self) -> None:
        """Begin to wait, go on, or stop once the head is whole; to be called when bytes have come in."""
        if not self.awaits_head():
            self._stop()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.head_seconds, self._give_up)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if self.awaits_head() and not self.transport.is_closing():
            self.transport.close()


def make_server_config(
    app: Any, protocol: type[HeadTimeout], *, host: str, port: int, head_seconds: float, **options: Any
) -> uvicorn.Config:
    """Return how ``app`` is served; ``options`` are uvicorn's own, beside those that every server has."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http=type(protocol.__name__, (protocol,), {"head_seconds": head_seconds}),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        # uvicorn's own header; ours below names the release.
        server_header=False,
        headers=[("Server", f"refeed/{version('refeed').split('.')[0]}")],
        **options,
    )
