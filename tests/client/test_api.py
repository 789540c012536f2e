import json
from collections.abc import Iterator
from typing import Any

import pytest

from cli.api import open_api
from cli.processes import free_port
from client.api import RefeedApi
from model.errors import ApiUnavailableError, ApiUnknownError, RequestRefusedError
from tests.worlds import http

Answer = tuple[int, str, str]


class FakeApi:
    """Answers every request with the next of ``answers`` and keeps what was asked."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []


@pytest.fixture
def api_server() -> Iterator[tuple[FakeApi, str]]:
    fake = FakeApi()

    def answer(call: http.Call) -> http.Answer:
        body = json.loads(call.body) if call.body else None
        fake.asked.append((call.method, call.path, dict(call.headers), body))
        status, kind, text = fake.answers.pop(0)
        return http.Answer(status, text.encode(), {"Content-Type": kind})

    with http.answering(answer) as address:
        yield fake, address


def test_a_create_carries_its_request_and_key(api_server: tuple[FakeApi, str]) -> None:
    fake, url = api_server
    fake.answers.append((202, "application/json", '{"id": "bf_1"}'))
    with RefeedApi(url + "/") as api:
        assert api.backfills.create({"query": "SELECT 1", "topic": "t"}, idempotency_key="k") == {"id": "bf_1"}
    method, path, headers, body = fake.asked[0]
    assert (method, path, body) == ("POST", "/backfills", {"query": "SELECT 1", "topic": "t"})
    assert {k.lower(): v for k, v in headers.items()}["idempotency-key"] == "k"


@pytest.mark.parametrize(
    ("call", "asked"),
    [
        (lambda api: api.backfills.read("bf_1"), ("GET", "/backfills/bf_1")),
        (lambda api: api.plan_backfill({}), ("POST", "/backfills:plan")),
        (lambda api: api.plan_backfill({}, exact=True), ("POST", "/backfills:plan?exact=true")),
        (lambda api: api.backfills.act("bf_1", "cancel"), ("POST", "/backfills/bf_1:cancel")),
        (
            lambda api: api.backfills.read_part("bf_1", "events", after="3"),
            ("GET", "/backfills/bf_1/events?after=3"),
        ),
        (
            lambda api: list(api.backfills.read_log("bf_1", tail_bytes=9, follow=True)),
            ("GET", "/backfills/bf_1/logs?tail=9&follow=true"),
        ),
        (lambda api: api.backfills.list(page_size=7), ("GET", "/backfills?page_size=7")),
        (
            lambda api: api.backfills.list(page_size=7, page_token="a b"),
            ("GET", "/backfills?page_size=7&page_token=a+b"),
        ),
        (
            lambda api: api.backfills.list(page_size=7, order_by="id", state=["FAILED", "PAUSED"], topic=None),
            ("GET", "/backfills?page_size=7&order_by=id&state=FAILED&state=PAUSED"),
        ),
    ],
)
def test_each_call_goes_where_the_api_has_it(api_server, call, asked):
    fake, url = api_server
    # A log is text, and what is JSON is read whatever it is called.
    fake.answers.append((200, "text/plain", '{"id": "bf_1"}'))
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
        api.backfills.create({})
    assert raised.value.message == "The query is not allowed. (HTTP 422)"
    assert raised.value.details == problem


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (403, "<html>Forbidden</html>", "<html>Forbidden</html> (HTTP 403)"),
        (403, '{"message": "Forbidden", "self": "x", "errors": ["y"]}', "HTTP 403 (HTTP 403)"),
        (500, "[]", "HTTP 500 (HTTP 500)"),
    ],
)
def test_what_is_no_answer_of_refeed_s_is_an_error_too(api_server, status, body, said):
    fake, url = api_server
    fake.answers.append((status, "text/html", body))
    with RefeedApi(url) as api, pytest.raises(RequestRefusedError) as raised:
        api.backfills.read("bf_1")
    assert (raised.value.message, raised.value.details) == (said, {})


def _read_log(api: RefeedApi) -> list[str]:
    return list(api.stream_log("/topics", tail_bytes=9, follow=False))


NO_ANSWERS = ["{}", "[]", "null", '"hello"', "", "<html>Sign in to the wireless network</html>"]


@pytest.mark.parametrize("body", NO_ANSWERS)
@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize("call", [RefeedApi.list_topics, _read_log], ids=["json", "log"])
def test_a_server_that_is_no_refeed_api_is_named_as_one(api_server, call, body, status):
    fake, url = api_server
    fake.answers.append((status, "text/html", body))
    with RefeedApi(url) as api, pytest.raises(ApiUnknownError) as raised:
        call(api)
    assert (
        f"The answer to GET {url}/topics does not come from Refeed's API (HTTP {status}, " in raised.value.message
    )
    assert raised.value.message.endswith("Set REFEED_API_URL to the API's address.")


def test_an_answer_that_lacks_what_the_api_has_in_it_is_none_of_refeed_s(api_server: tuple[FakeApi, str]) -> None:
    fake, url = api_server
    fake.answers.append((200, "application/json", '{"status": "healthy"}'))
    with RefeedApi(url) as api:
        found = api.list_topics()
    assert (found["status"], found.get("topics"), "topics" in found) == ("healthy", None, False)
    with pytest.raises(ApiUnknownError, match=f"GET {url}/topics does not come from Refeed's API .*no 'topics'"):
        found["topics"]


@pytest.mark.parametrize("body", ["{}", "[]", "<html>Welcome</html>", '{"status": "not_ready"}'])
def test_another_server_s_yes_is_not_that_of_a_ready_api(api_server: tuple[FakeApi, str], body: str) -> None:
    fake, url = api_server
    fake.answers.append((200, "application/json", body))
    with RefeedApi(url) as api:
        assert not api.is_ready()


@pytest.mark.parametrize("body", ["", "<html>Bad gateway</html>", '{"message": "Service Unavailable"}'])
@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_proxy_in_front_of_an_api_that_is_away_is_no_refusal(api_server, status, body):
    fake, url = api_server
    fake.answers.append((status, "text/html", body))
    with RefeedApi(url) as api, pytest.raises(ApiUnavailableError, match=f"HTTP {status}"):
        api.backfills.read("bf_1")


def test_a_watch_waits_for_an_api_that_is_restarted_behind_a_proxy(api_server, monkeypatch):
    monkeypatch.setattr("client.jobs._POLL_SECONDS", 0.01)
    fake, url = api_server
    fake.answers += [
        (200, "application/json", '{"state": "RUNNING"}'),
        *[(502, "text/html", "<html>Bad gateway</html>")] * 5,
        (200, "application/json", '{"state": "SUCCEEDED"}'),
    ]
    with RefeedApi(url) as api:
        assert [job["state"] for job in api.backfills.watch("bf_1")] == ["RUNNING", "SUCCEEDED"]


@pytest.mark.parametrize("key", ["rf_secret\nword", "rf_secret\x00word"])
def test_a_key_that_no_header_can_have_is_refused_and_never_shown(api_server, key):
    fake, url = api_server
    with RefeedApi(url, key) as api, pytest.raises(RequestRefusedError) as raised:
        api.read_status()
    assert (raised.value.details["status"], "secret" in raised.value.message, fake.asked) == (422, False, [])


def test_nobody_there_says_how_to_start_it() -> None:
    with RefeedApi(f"http://127.0.0.1:{free_port()}") as api:
        assert not api.is_ready()
        with pytest.raises(ApiUnavailableError, match="refeed up"):
            api.backfills.read("bf_1")


@pytest.mark.parametrize(("status", "is_ready"), [(200, True), (503, False)])
def test_ready_is_what_readyz_says(api_server: tuple[FakeApi, str], status: int, is_ready: bool) -> None:
    fake, url = api_server
    fake.answers.append((status, "application/json", '{"status": "ok"}'))
    with RefeedApi(url) as api:
        assert api.is_ready() is is_ready


def test_the_address_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_api() as api:
        assert api.url == "http://127.0.0.1:8080"
    monkeypatch.setenv("REFEED_API_URL", "http://127.0.0.1:9/")
    with open_api() as api:
        assert api.url == "http://127.0.0.1:9"


def test_a_change_and_a_retry_carry_what_is_asked(api_server: tuple[FakeApi, str]) -> None:
    fake, url = api_server
    fake.answers += [(200, "application/json", '{"id": "bf_1"}')] * 2
    with RefeedApi(url) as api:
        api.backfills.change("bf_1", {"description": "x"})
        api.backfills.act("bf_1", "retry", {"only": "failed"})
    assert [(asked[0], asked[3]) for asked in fake.asked] == [
        ("PATCH", {"description": "x"}),
        ("POST", {"only": "failed"}),
    ]


def test_the_key_is_sent_as_a_bearer_token(api_server, monkeypatch):
    fake, url = api_server
    fake.answers += [(200, "application/json", '{"id": "bf_1"}')] * 2
    monkeypatch.setenv("REFEED_API_URL", url)
    for key, sent in ((" rf_secret\n", "Bearer rf_secret"), ("", None)):
        monkeypatch.setenv("REFEED_API_KEY", key)
        with open_api() as api:
            api.backfills.read("bf_1")
        assert {k.lower(): v for k, v in fake.asked[-1][2].items()}.get("authorization") == sent


def shown(state: str, published: int = 0) -> str:
    return json.dumps({"id": "bf_1", "state": state, "progress": {"published": published}})


def events(*told: tuple[str, int, str]) -> Answer:
    text = ": the connection lives\n\n" + "".join(f"id: {n}\nevent: {e}\ndata: {d}\n\n" for e, n, d in told)
    return 200, "text/event-stream; charset=utf-8", text


def states(api: RefeedApi) -> list[str]:
    return [found["state"] for found in api.backfills.watch("bf_1")]


def test_a_watch_takes_events_as_they_come(api_server: tuple[FakeApi, str]) -> None:
    fake, url = api_server
    fake.answers += [
        (200, "application/json", shown("PENDING")),
        events(("history", 3, "{}"), ("progress", 3, shown("RUNNING", 1)), ("end", 4, shown("SUCCEEDED", 2))),
    ]
    with RefeedApi(url) as api:
        assert states(api) == ["PENDING", "RUNNING", "SUCCEEDED"]
    assert [asked[1] for asked in fake.asked] == ["/backfills/bf_1", "/backfills/bf_1:watch"]


def test_a_watch_that_breaks_off_goes_on_behind_what_was_seen(api_server: tuple[FakeApi, str]) -> None:
    fake, url = api_server
    fake.answers += [
        (200, "application/json", shown("PENDING")),
        events(("progress", 7, shown("RUNNING"))),
        events(("end", 8, shown("FAILED"))),
    ]
    with RefeedApi(url) as api:
        assert states(api) == ["PENDING", "RUNNING", "FAILED"]
    assert [{k.lower(): v for k, v in asked[2].items()}.get("last-event-id") for asked in fake.asked] == [
        None,
        "0",
        "7",
    ]


def test_a_watch_asks_again_and_again_where_events_are_not_to_be_had(api_server: tuple[FakeApi, str]) -> None:
    fake, url = api_server
    fake.answers += [
        (200, "application/json", shown("PENDING")),
        (404, "application/problem+json", "{}"),
        events(),
        (200, "application/json", shown("RUNNING")),
        (200, "application/json", shown("SUCCEEDED")),
    ]
    with RefeedApi(url) as api:
        assert states(api) == ["PENDING", "RUNNING", "SUCCEEDED"]
    assert [asked[1] for asked in fake.asked[-2:]] == ["/backfills/bf_1"] * 2


def test_a_watch_waits_for_an_api_that_is_restarted_and_not_for_ever(api_server, monkeypatch):
    fake, url = api_server
    fake.answers += [(200, "application/json", shown("RUNNING"))]
    with RefeedApi(url) as api:
        watched = api.backfills.watch("bf_1")
        assert next(watched)["state"] == "RUNNING"
        calls = iter([ApiUnavailableError(), ApiUnavailableError()])

        def fail(_id: str, _after: int) -> Any:
            error = next(calls, None)
            if error is not None:
                raise error
            return iter([(1, json.loads(shown("SUCCEEDED")))])

        monkeypatch.setattr(api, "stream_events", fail)
        assert next(watched)["state"] == "SUCCEEDED"

        monkeypatch.setattr("client.jobs._PATIENCE_SECONDS", 0.0)
        fake.answers += [(200, "application/json", shown("RUNNING"))]
        again = api.backfills.watch("bf_1")
        next(again)
        calls = iter([ApiUnavailableError()] * 9)
        with pytest.raises(ApiUnavailableError):
            next(again)


def test_a_log_that_is_refused_is_an_error(api_server: tuple[FakeApi, str]) -> None:
    fake, url = api_server
    fake.answers.append(
        (404, "application/problem+json", '{"detail": "There is no job.", "code": "job_not_found"}')
    )
    with RefeedApi(url) as api, pytest.raises(RequestRefusedError, match="There is no job"):
        list(api.backfills.read_log("bf_1", tail_bytes=1, follow=False))


def test_another_caller_s_calls_go_out_with_their_own_key(api_server: tuple[FakeApi, str]) -> None:
    fake, url = api_server
    fake.answers += [(200, "application/json", '{"id": "bf_1"}')] * 3
    with RefeedApi(url, "rf_ann") as api:
        api.as_caller("rs_bob").read_status()
        api.as_caller(None).read_status()
        api.read_status()
    sent = [{name.lower(): value for name, value in asked[2].items()}.get("authorization") for asked in fake.asked]
    assert sent == ["Bearer rs_bob", None, "Bearer rf_ann"]


def test_an_action_is_bound_to_what_was_read_and_an_id_never_leaves_its_place(api_server):
    fake, url = api_server
    fake.answers += [(200, "application/json", '{"id": "bf_1"}')] * 2
    with RefeedApi(url) as api:
        api.backfills.act("bf_1", "cancel", etag='"4"')
        api.backfills.act("bf_1:cancel?x=/../..", "pause")
    (_, path, headers, _), (_, odd, bare, _) = fake.asked
    assert (path, {name.lower(): value for name, value in headers.items()}["if-match"]) == (
        "/backfills/bf_1:cancel",
        '"4"',
    )
    assert (odd, "if-match" in {name.lower() for name in bare}) == (
        "/backfills/bf_1%3Acancel%3Fx%3D%2F..%2F..:pause",
        False,
    )


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_of_dots_is_a_name_and_no_way_up(api_server: tuple[FakeApi, str], name: str) -> None:
    fake, url = api_server
    fake.answers += [(200, "application/json", '{"id": "bf_1"}')] * 2
    with RefeedApi(url) as api:
        api.read_stream(name)
        api.list_stream_events(name)
    written = name.replace(".", "%2E")
    assert [asked[1] for asked in fake.asked] == [f"/streams/{written}", f"/streams/{written}/events?after=0"]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_have_is_refused_as_the_api_would(api_server, number):
    fake, url = api_server
    with RefeedApi(url) as api, pytest.raises(RequestRefusedError) as raised:
        api.backfills.change("bf_1", {"rate_limit_messages_per_second": number})
    assert (raised.value.details["code"], raised.value.details["status"]) == ("request_invalid", 422)
    assert fake.asked == []


def test_a_key_with_any_letters_is_the_api_s_to_refuse(api_server: tuple[FakeApi, str]) -> None:
    fake, url = api_server
    fake.answers.append((401, "application/json", '{"code": "unauthenticated", "status": 401, "detail": "no"}'))
    with RefeedApi(url, "rf_ä") as api, pytest.raises(RequestRefusedError, match="no"):
        api.backfills.create({}, idempotency_key="ä")
    headers = {name.lower(): value.encode("latin-1").decode() for name, value in fake.asked[0][2].items()}
    assert (headers["authorization"], headers["idempotency-key"]) == ("Bearer rf_ä", "ä")


def test_a_key_that_is_no_text_is_the_api_s_to_refuse(api_server: tuple[FakeApi, str]) -> None:
    fake, url = api_server
    fake.answers.append((401, "application/json", '{"code": "unauthenticated", "status": 401, "detail": "no"}'))
    with RefeedApi(url, "rf_\udcff") as api, pytest.raises(RequestRefusedError, match="no"):
        api.read_status()
