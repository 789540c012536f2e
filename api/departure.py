"""Notices that the caller of a request has left, so that work in a thread can end early."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Annotated

from fastapi import Depends, Request
from starlette.types import Receive


async def watch_caller(call: Request) -> AsyncIterator[Callable[[], bool]]:
    """Yield whether the caller has left, or has its answer already; a FastAPI dependency of routes without a body.

    A route in a thread is not cancelled when its caller closes the connection: it has to look.
    """
    has_left = threading.Event()
    watching = asyncio.create_task(_wait_until_left(call.receive, has_left))
    try:
        yield has_left.is_set
    finally:
        watching.cancel()


CallerLeft = Annotated[Callable[[], bool], Depends(watch_caller)]


async def _wait_until_left(receive: Receive, has_left: threading.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    has_left.set()
