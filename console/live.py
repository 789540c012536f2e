"""Keeps an open page up to date: server-sent events with the page's part whenever it has changed."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, tzinfo
from typing import Any, Final

from console.view import show_time
from console.visit import SignedOutError
from model.errors import ApiUnavailableError

_LOOK_SECONDS: Final = 0.25
_BACK_AFTER: Final = "retry: 2000\n\n"
SIGNED_OUT: Final = "event: signed-out\ndata: {}\n\n"


def render_event(name: str, data: dict[str, Any]) -> str:
    """Return a server-sent event."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


async def stream_page(
    read: Callable[[], Awaitable[str]],
    *,
    every_seconds: float,
    zone: tzinfo,
    is_stopping: Callable[[], bool],
) -> AsyncIterator[str]:
    """Yield ``page`` with the part when it has changed, ``tick`` when it has not, ``away`` while the API is away.

    It ends when the service stops, and with ``signed-out`` when the API does not know the caller any more. The
    browser comes back by itself, to any replica; nothing is kept for it in between.
    """
    yield _BACK_AFTER
    sent: str | None = None
    while not is_stopping():
        try:
            html = await read()
        except SignedOutError:
            yield SIGNED_OUT
            return
        except ApiUnavailableError as error:
            sent = None
            yield render_event("away", {"message": error.message})
        else:
            as_of = show_time(datetime.now(UTC).replace(microsecond=0), zone)
            if html == sent:
                yield render_event("tick", {"as_of": as_of})
            else:
                sent = html
                yield render_event("page", {"as_of": as_of, "html": html})
        waited = 0.0
        while waited < every_seconds and not is_stopping():
            await asyncio.sleep(_LOOK_SECONDS)
            waited += _LOOK_SECONDS
