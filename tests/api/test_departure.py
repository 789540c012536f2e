"""A caller that leaves ends its query: nobody reads the answer, and others wait for its place."""

import select
import socket
from contextlib import ExitStack
from typing import Any, Final

import pytest

from api.bulkhead import MAX_SLOW_CALLS
from tests.archive import fill_archive
from tests.query_processes import find_query_processes, hold_query_processes
from tests.waiting import wait_until

# Far below what a query may take.
_SECONDS: Final = 20.0
_REFUSED: Final = 3
_PATHS: Final = ("/messages?topic=orders", "/messages/m1/data?topic=orders")


@pytest.fixture(scope="module")
def api(start_api):
    api = start_api()
    fill_archive(api.home, {"orders": 7})
    return api


def _ask(api: Any, path: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", api.port), timeout=_SECONDS)
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{api.port}\r\n\r\n".encode())
    return connection


@pytest.mark.usefixtures("own_spares")
@pytest.mark.parametrize("path", _PATHS)
def test_callers_who_leave_end_their_queries_and_give_their_places_back(api, path):
    # It takes the process that was there before, which is no child of this one.
    assert _get_status(api, path) == 200
    with ExitStack() as stack, hold_query_processes() as held:
        asked = [stack.enter_context(_ask(api, path)) for _ in range(MAX_SLOW_CALLS + _REFUSED)]
        wait_until(
            lambda: len(select.select(asked, [], [], 0)[0]) == _REFUSED and len(held) >= 2,
            "the queries take every place",
        )
        answered = select.select(asked, [], [], 0)[0]
        assert all(b" 429 " in connection.recv(65536)[:20] for connection in answered)
        running = held & find_query_processes()
        for connection in asked:
            connection.close()
        wait_until(lambda: not running & find_query_processes(), "no query goes on without its caller")
        wait_until(lambda: _get_status(api, "/topics") == 200, "a place is free again")


def _get_status(api: Any, path: str) -> int:
    with api.client() as client:
        return int(client.get(path).status_code)
