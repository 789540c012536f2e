import asyncio
import json
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvicorn

from collector.server import make_config, open_collector
from model.errors import SettingsError
from model.settings import read_settings
from tests.collector.conftest import Yard


async def talk(port: int, *pieces: bytes, seconds: float = 5) -> bytes:
    """Send these bytes and return all that comes until the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        return await asyncio.wait_for(reader.read(), seconds)
    finally:
        writer.close()


def serve(yard: Yard, work: Callable[[int], Coroutine[Any, Any, Any]], *, head_seconds: float = 5) -> Any:
    """Serve the collector on a socket, and run ``work`` with its port."""

    async def go() -> Any:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            server = uvicorn.Server(make_config(yard.collector(), head_seconds=head_seconds))
            task = asyncio.create_task(server.serve([listener]))
            async with asyncio.timeout(10):
                while not server.started:  # noqa: ASYNC110  uvicorn has no event for it
                    await asyncio.sleep(0.01)
            try:
                return await work(listener.getsockname()[1])
            finally:
                server.should_exit = True
                await task

    return yard.loop.run(go())


def test_an_event_comes_in_over_a_socket(yard: Yard) -> None:
    body = b'{"a": 1}'
    head = f"POST /{yard.topic} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    said = serve(yard, lambda port: talk(port, head.encode(), body))
    assert said.startswith(b"HTTP/1.1 200 OK")
    assert b"server: refeed/" in said.lower()
    told = json.loads(said.partition(b"\r\n\r\n")[2])
    [message] = yard.pull(1)
    assert (message.data, message.attributes["uuid"]) == (body, told["uuid"])


@pytest.mark.parametrize("length", [b"5", b"99"])
def test_a_connection_that_ends_within_a_body_gives_no_event(yard: Yard, length: bytes) -> None:
    async def work(port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /{yard.topic} HTTP/1.1\r\nHost: localhost\r\nContent-Length: ".encode()
        writer.write(head + length + b"\r\n\r\n123")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    serve(yard, work)
    yard.pull(0)


def test_a_head_that_does_not_come_ends_its_connection(yard: Yard) -> None:
    async def work(port: int) -> None:
        assert await talk(port) == b""
        assert await talk(port, b"POST /orders HTTP/1.1\r\nHost:") == b""

    serve(yard, work, head_seconds=0.1)


def test_a_head_without_an_end_is_cut_off(yard: Yard) -> None:
    said = serve(yard, lambda port: talk(port, b"POST / HTTP/1.1\r\n", *([b"X: " + b"x" * 9_000 + b"\r\n"] * 3)))
    assert said.startswith(b"HTTP/1.1 431 ")


def test_what_is_no_http_gets_a_problem(yard: Yard) -> None:
    said = serve(yard, lambda port: talk(port, b"HELO there\r\n\r\n"))
    assert said.startswith(b"HTTP/1.1 400 ")
    assert json.loads(said.partition(b"\r\n\r\n")[2])["code"] == "http_error"


def test_listed_topics_are_created_on_a_local_server_and_patterns_are_not(yard: Yard) -> None:
    settings = read_settings({"HOME": "/nowhere", "PUBSUB_EMULATOR_HOST": "127.0.0.1:1"})
    open_collector(settings, yard.settings("", f"{yard.topic}-new", "shop.*"), yard.pubsub, host="127.0.0.1")
    assert yard.pubsub.topic_exists(f"{yard.topic}-new")


def test_another_host_without_keys_is_refused_at_start(yard: Yard) -> None:
    with pytest.raises(SettingsError, match="public: true"):
        open_collector(read_settings({"HOME": "/nowhere"}), yard.settings(), yard.pubsub, host="0.0.0.0")
