"""The console alone, over the API of another process."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from api.server import Server, make_config
from app.console import LoneConsole, find_own_api
from tests.api.conftest import plain_log, start_api
from tests.waiting import wait_until

__all__ = ["plain_log", "start_api"]
SECONDS = 20.0


@contextmanager
def alone(api_url: str) -> Iterator[httpx.Client]:
    console = LoneConsole(api_url)
    server = Server(console, make_config(console.app, head_seconds=5))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive(), "it listens")
        assert server.started, "the server ended before it listened"
        port = server.servers[0].sockets[0].getsockname()[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=SECONDS, verify=False) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(SECONDS)
        assert not thread.is_alive()


def test_it_shows_the_other_process_s_api_and_ends_with_a_page_open(start_api):
    api = start_api()
    with alone(api.url) as client:
        assert client.get("/", follow_redirects=True).url.path == "/console"
        assert "Nothing waits for a person." in client.get("/console").text
        # Without keys it answers to this machine alone, as the API does.
        refused = client.get("/console", headers={"X-Forwarded-For": "203.0.113.7"})
        assert (refused.status_code, "Without keys" in refused.text) == (403, True)
        with client.stream("GET", "/console/live/streams") as live:
            assert next(live.iter_lines()).startswith("retry")
            began = time.monotonic()
        assert time.monotonic() - began < SECONDS / 2


def test_an_api_that_is_away_is_said_in_words():
    with alone("http://127.0.0.1:9") as client:
        page = client.get("/console")
        assert (page.status_code, "does not answer" in page.text) == (503, True)
        assert client.get("/console/sign-in").status_code == 200


@pytest.mark.parametrize(
    ("server", "url"), [(("127.0.0.1", 80), "http://127.0.0.1:80"), (("::1", 8080), "http://[::1]:8080")]
)
def test_the_api_beside_it_is_at_the_socket_whatever_the_host_header_says(server, url):
    assert find_own_api({"type": "http", "server": server, "headers": [(b"host", b"evil.example")]}) == url
