import asyncio
import json

import pytest
from uvicorn.server import ServerState

from collector.server import make_config, open_collector
from model.errors import SettingsError
from model.settings import read_settings


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


@pytest.mark.parametrize("length", [b"5", b"99"])
def test_a_connection_that_ends_within_a_body_gives_no_event(yard, length):
    async def work(port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /{yard.topic} HTTP/1.1\r\nHost: localhost\r\nContent-Length: ".encode()
        writer.write(head + length + b"\r\n\r\n123")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    yard.serve(work)
    yard.pull(0)


def test_a_head_that_does_not_come_ends_its_connection(yard):
    async def work(port):
        assert await talk(port) == b""
        assert await talk(port, b"POST /orders HTTP/1.1\r\nHost:") == b""

    yard.serve(work, head_seconds=0.1)


def test_a_head_without_an_end_is_cut_off(yard):
    said = yard.serve(lambda port: talk(port, b"POST / HTTP/1.1\r\n", *([b"X: " + b"x" * 9_000 + b"\r\n"] * 3)))
    assert said.startswith(b"HTTP/1.1 431 ")


def test_a_body_is_no_part_of_the_head_after_it(yard):
    """A client that pipelines may send the beginning of a head together with the end of a large body."""
    head = f"POST /{yard.topic} HTTP/1.1\r\nHost: localhost\r\n"
    first = head.encode() + b"Content-Length: 30002\r\n\r\n" + b'"' + b"x" * 30_000 + b'"'
    second = head.encode() + b"Connection: close\r\nContent-Length: 1\r\n\r\n1"

    async def work(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(first + second[:30])
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.write(second[30:])
        said = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        return said

    assert yard.serve(work).count(b"HTTP/1.1 200 OK") == 2
    yard.pull(2)


def test_what_is_no_http_gets_a_problem(yard):
    said = yard.serve(lambda port: talk(port, b"HELO there\r\n\r\n"))
    assert said.startswith(b"HTTP/1.1 400 ")
    assert json.loads(said.partition(b"\r\n\r\n")[2])["code"] == "http_error"


def test_listed_topics_are_created_on_a_local_server_and_patterns_are_not(yard):
    settings = read_settings({"HOME": "/nowhere", "PUBSUB_EMULATOR_HOST": "127.0.0.1:1"})
    open_collector(settings, yard.settings("", f"{yard.topic}-new", "shop.*"), yard.pubsub, host="127.0.0.1")
    assert yard.pubsub.topic_exists(f"{yard.topic}-new")


def test_another_host_without_keys_is_refused_at_start(yard):
    with pytest.raises(SettingsError, match="public: true"):
        open_collector(read_settings({"HOME": "/nowhere"}), yard.settings(), yard.pubsub, host="0.0.0.0")


@pytest.mark.parametrize(("request_line", "ending"), [(b"GET", b"}"), (b"HEAD", b"\r\n\r\n")])
def test_an_answer_is_sent_whole(yard, request_line, ending):
    said = yard.serve(
        lambda port: talk(port, request_line + b" /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    )
    assert said.startswith(b"HTTP/1.1 200 OK")
    assert said.endswith(ending)


def test_a_client_that_asks_first_is_told_to_go_on_before_its_body(yard):
    async def work(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /{yard.topic} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nConnection: close\r\n"
        writer.write(head.encode() + b"Content-Length: 2\r\n\r\n")
        first = await asyncio.wait_for(reader.readline(), 5)
        writer.write(b"{}")
        rest = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        return first, rest

    first, rest = yard.serve(work)
    assert first.startswith(b"HTTP/1.1 100 ")
    assert b"HTTP/1.1 200 OK" in rest
    yard.pull(1)


def test_head_and_body_of_an_answer_are_one_write(yard):
    sizes = []

    class Counted(asyncio.Transport):
        def write(self, data):  # type: ignore[override]
            sizes.append(len(data))

        def is_closing(self):
            return False

        def close(self):
            pass

        def get_extra_info(self, name, default=None):
            return default

    async def work(_port):
        config = make_config(yard.collector(), head_seconds=5)
        config.load()
        make_protocol = config.http_protocol_class
        protocol = make_protocol(config=config, server_state=ServerState(), app_state={})
        protocol.connection_made(Counted())
        protocol.data_received(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        async with asyncio.timeout(5):
            while not sizes:  # noqa: ASYNC110  the protocol has no event for it
                await asyncio.sleep(0.01)
        protocol.connection_lost(None)

    yard.serve(work)
    assert len(sizes) == 1


def test_requests_that_come_before_an_answer_are_answered_in_turn(yard):
    one = f"POST /{yard.topic} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{{}}".encode()
    last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    said = yard.serve(lambda port: talk(port, one + one + last))
    assert said.count(b"HTTP/1.1 200 OK") == 3
    assert said.endswith(b'{"status":"ok"}')
    yard.pull(2)


def test_a_bare_proxy_is_refused_without_keys(yard):
    """nginx's ``proxy_pass`` without other settings: HTTP/1.0, the upstream's address as Host, no header added."""
    head = f"POST /{yard.topic} HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n\r\n{{}}"
    said = yard.serve(lambda port: talk(port, head.encode()))
    assert said.startswith(b"HTTP/1.1 403 ")
    assert json.loads(said.partition(b"\r\n\r\n")[2])["code"] == "proxy_without_key"
    yard.pull(0)


@pytest.mark.parametrize("is_in_one_piece", [True, False])
def test_trailers_never_become_headers(yard, is_in_one_piece):
    """RFC 9110, section 6.5.1: a trailer field must not be merged into the headers."""
    head = f"POST /{yard.topic} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n"
    pieces = [
        head.encode() + b"\r\n2\r\n{}\r\n0\r\n",
        b"User-Agent: forged\r\nContent-Type: text/forged\r\nHost: b\r\nX-Forwarded-For: 1.1.1.1\r\n\r\n",
    ]
    said = yard.serve(lambda port: talk(port, *([b"".join(pieces)] if is_in_one_piece else pieces)))
    assert said.startswith(b"HTTP/1.1 200 OK")
    [message] = yard.pull(1)
    assert [value for value in message.attributes.values() if "forged" in value] == []
    assert "content_type" not in message.attributes


def test_trailers_without_an_end_are_cut_off(yard):
    head = f"POST /{yard.topic} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    line = b"X: " + b"x" * 9_000 + b"\r\n"
    said = yard.serve(lambda port: talk(port, head.encode(), *([line] * 3)))
    assert said.startswith(b"HTTP/1.1 431 ")
    yard.pull(0)


@pytest.mark.parametrize("hosts", [b"", b"Host: localhost\r\nHost: localhost\r\n", b"Host: a\r\nhost: b\r\n"])
@pytest.mark.parametrize("path", [b"/healthz", b"/none"])
def test_a_request_has_one_host(yard, hosts, path):
    """RFC 9112, section 3.2: no Host, or more than one, must be answered with 400."""
    said = yard.serve(lambda port: talk(port, b"GET %s HTTP/1.1\r\n%sConnection: close\r\n\r\n" % (path, hosts)))
    assert said.startswith(b"HTTP/1.1 400 ")
    assert json.loads(said.partition(b"\r\n\r\n")[2])["code"] == "http_error"


def test_a_probe_in_http_1_0_needs_no_host(yard):
    said = yard.serve(lambda port: talk(port, b"GET /healthz HTTP/1.0\r\n\r\n"))
    assert said.startswith(b"HTTP/1.1 200 ")
