"""A collector's queue, run and ended as its process would."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from collector.http import make_event
from collector.queue import QueueDelivery
from connectors.pubsub.client import PubSub
from connectors.pubsub.encoding import encode_attributes


def message(number: int, size: int = 0) -> bytes:
    return make_event(b"%d" % number + b" " * size, encode_attributes([("n", str(number))])).message


def numbers(messages: list[Any]) -> list[int]:
    return [int(each.data) for each in messages]


async def wait_for(is_true: Callable[[], bool], why: str) -> None:
    try:
        async with asyncio.timeout(10):
            while not is_true():  # noqa: ASYNC110  the queue tells nobody
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"not within 10 s: {why}")


def run(
    pubsub: PubSub,
    folder: Path,
    work: Callable[[QueueDelivery], Coroutine[Any, Any, Any]],
    *,
    is_killed: bool = False,
    **options: Any,
) -> Any:
    """Open the queue, work, and end it as at a SIGTERM; or as at a kill, without a word to it."""

    async def go() -> Any:
        options.setdefault("max_bytes", 10_000_000)
        queue = QueueDelivery(pubsub, folder, **options)
        try:
            await queue.start()
            return await work(queue)
        finally:
            if is_killed:
                for each in queue._topics.values():
                    await each.stop()
                os.close(queue._lock)
            else:
                await queue.stop()

    return asyncio.run(go())
