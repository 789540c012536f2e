import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from cli.client import RefeedApi
from cli.processes import free_port
from model.errors import ApiUnavailableError, RequestRefusedError

Answer = tuple[int, str, str]


class FakeApi:
    """Answers every request with the next of ``answers`` and keeps what was asked."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []


@pytest.fixture
def api_server() -> Iterator[tuple[FakeApi, str]]:
    fake = FakeApi()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fake.asked.append((self.command, self.path, dict(self.headers), json.loads(body) if body else None))
            status, kind, text = fake.answers.pop(0)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = answer  # noqa: N815  the names that http.server calls

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield fake, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_create_carries_its_request_and_key(api_server: tuple[FakeApi, str]) -> None:
    fake, url = api_server
    fake.answers.append((202, "application/json", '{"id": "bf_1"}'))
    with RefeedApi(url + "/") as api:
        assert api.create_backfill({"query": "SELECT 1", "topic": "t"}, idempotency_key="k") == {"id": "bf_1"}
    method, path, headers, body = fake.asked[0]
    assert (method, path, body) == ("POST", "/backfills", {"query": "SELECT 1", "topic": "t"})
    assert {k.lower(): v for k, v in headers.items()}["idempotency-key"] == "k"


@pytest.mark.parametrize(
    ("call", "asked"),
    [
        (lambda api: api.read_backfill("bf_1"), ("GET", "/backfills/bf_1")),
        (lambda api: api.cancel_backfill("bf_1"), ("POST", "/backfills/bf_1:cancel")),
        (lambda api: api.list_backfills(page_size=7), ("GET", "/backfills?page_size=7")),
        (
            lambda api: api.list_backfills(page_size=7, page_token="a b"),
            ("GET", "/backfills?page_size=7&page_token=a+b"),
        ),
    ],
)
def test_each_call_goes_where_the_api_has_it(
    api_server: tuple[FakeApi, str], call: Callable[[RefeedApi], Any], asked: tuple[str, str]
) -> None:
    fake, url = api_server
    fake.answers.append((200, "application/json", "{}"))
    with RefeedApi(url) as api:
        call(api)
    assert fake.asked[0][:2] == asked


def test_a_problem_is_an_error_with_everything_it_says(api_server: tuple[FakeApi, str]) -> None:
    fake, url = api_server
    problem = {
        "type": "x",
        "title": "Query refused",
        "status": 422,
        "detail": "The query is not allowed.",
        "code": "query_refused",
        "errors": [{"code": "a", "message": "b", "line": 1, "column": 2}],
    }
    fake.answers.append((422, "application/problem+json", json.dumps(problem)))
    with RefeedApi(url) as api, pytest.raises(RequestRefusedError) as raised:
        api.create_backfill({})
    assert raised.value.message == "The query is not allowed. (HTTP 422)"
    assert raised.value.details == problem


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (502, "<html>Bad gateway</html>", "<html>Bad gateway</html> (HTTP 502)"),
        (500, "[]", "HTTP 500 (HTTP 500)"),
        (200, "[]", "HTTP 200 (HTTP 200)"),
    ],
)
def test_what_is_no_answer_of_refeed_s_is_an_error_too(
    api_server: tuple[FakeApi, str], status: int, body: str, said: str
) -> None:
    fake, url = api_server
    fake.answers.append((status, "text/html", body))
    with RefeedApi(url) as api, pytest.raises(RequestRefusedError) as raised:
        api.read_backfill("bf_1")
    assert raised.value.message == said


def test_nobody_there_says_how_to_start_it() -> None:
    with RefeedApi(f"http://127.0.0.1:{free_port()}") as api:
        assert not api.is_ready()
        with pytest.raises(ApiUnavailableError, match="refeed up"):
            api.read_backfill("bf_1")


@pytest.mark.parametrize(("status", "is_ready"), [(200, True), (503, False)])
def test_ready_is_what_readyz_says(api_server: tuple[FakeApi, str], status: int, is_ready: bool) -> None:
    fake, url = api_server
    fake.answers.append((status, "application/json", "{}"))
    with RefeedApi(url) as api:
        assert api.is_ready() is is_ready


def test_the_address_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with RefeedApi.from_environment() as api:
        assert api.url == "http://127.0.0.1:8080"
    monkeypatch.setenv("REFEED_API_URL", "http://127.0.0.1:9/")
    with RefeedApi.from_environment() as api:
        assert api.url == "http://127.0.0.1:9"
