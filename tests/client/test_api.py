import json
from typing import Any

import pytest

from cli.api import open_api
from cli.processes import free_port
from client.api import RefeedApi
from model.errors import ApiUnavailableError, ApiUnknownError, RequestRefusedError
from tests.worlds import http

DONE = '{"id": "bf_1"}'
REQUEST = {"query": "SELECT 1", "topic": "t"}


class FakeApi:
    """Answers every request with the next of ``answers`` and keeps what was asked."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, str, str]] = []
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []
        self.url = ""

    def add(self, *texts: str, status: int = 200, kind: str = "application/json") -> None:
        self.answers += [(status, kind, text) for text in texts]

    def sent(self, header: str) -> list[str | None]:
        return [headers.get(header) for _, _, headers, _ in self.asked]


@pytest.fixture
def fake():
    fake = FakeApi()

    def answer(call):
        body = json.loads(call.body) if call.body else None
        fake.asked.append((call.method, call.path, {k.lower(): v for k, v in call.headers.items()}, body))
        status, kind, text = fake.answers.pop(0)
        return http.Answer(status, text.encode(), {"Content-Type": kind})

    with http.answering(answer) as fake.url:
        yield fake


@pytest.fixture
def api(fake):
    with RefeedApi(f"{fake.url}/") as api:
        yield api


@pytest.mark.parametrize(
    ("call", "method", "path"),
    [
        (lambda jobs: jobs.read("bf_1"), "GET", "/bf_1"),
        (lambda jobs: jobs.change("bf_1", {"description": "x"}), "PATCH", "/bf_1"),
        (lambda jobs: jobs.act("bf_1", "cancel", etag='"4"'), "POST", "/bf_1:cancel"),
        (lambda jobs: jobs.act("bf_1", "retry", {"only": "failed"}), "POST", "/bf_1:retry"),
        (lambda jobs: jobs.act("bf_1:cancel?x=/../..", "pause"), "POST", "/bf_1%3Acancel%3Fx%3D%2F..%2F..:pause"),
        (
            lambda jobs: list(jobs.read_log("bf_1", tail_lines=9, follow=True)),
            "GET",
            "/bf_1/logs?tail=9&follow=true",
        ),
        (lambda jobs: jobs.list(page_size=7), "GET", "?page_size=7"),
        (lambda jobs: jobs.list(page_size=7, page_token="a b"), "GET", "?page_size=7&page_token=a+b"),
        (
            lambda jobs: jobs.list(page_size=7, order_by="id", state=["FAILED", "PAUSED"], topic=None),
            "GET",
            "?page_size=7&order_by=id&state=FAILED&state=PAUSED",
        ),
    ],
)
def test_each_call_goes_where_the_api_has_it(fake, api, call, method, path):
    # A log is text, and what is JSON is read whatever it is called.
    fake.add(DONE, kind="text/plain")
    assert call(api.jobs) in ({"id": "bf_1"}, [DONE])
    ((found, place, headers, body),) = fake.asked
    assert (found, place) == (method, f"/jobs{path}")
    bodies = {"/bf_1": {"description": "x"}, "/bf_1:retry": {"only": "failed"}}
    assert body == (None if method == "GET" else bodies.get(path))
    assert headers.get("if-match") == ('"4"' if path == "/bf_1:cancel" else None)


def test_a_job_is_made_by_its_kind_which_has_its_parts(fake, api):
    fake.add(DONE, DONE, DONE)
    assert api.backfills.create(REQUEST, idempotency_key="k") == {"id": "bf_1"}
    api.jobs.read_part("bf_1", "missing", page_size="3")
    assert api.backfills.read("bf_1") == {"id": "bf_1"}
    (_, made, headers, body), (_, part, _, _), (_, one, _, _) = fake.asked
    assert (made, headers["idempotency-key"], body) == ("/backfills", "k", REQUEST)
    assert (part, one) == ("/jobs/bf_1/missing?page_size=3", "/backfills/bf_1")


def test_a_plan_is_exact_where_that_is_asked_for(fake, api):
    fake.add(DONE, DONE)
    assert api.plan_backfill({}) == api.plan_backfill({}, exact=True) == {"id": "bf_1"}
    assert [asked[:2] for asked in fake.asked] == [
        ("POST", "/backfills?validate_only=true"),
        ("POST", "/backfills?validate_only=true&exact=true"),
    ]


def test_a_problem_is_an_error_with_everything_it_says(fake, api):
    problem = {
        "type": "x",
        "title": "Query refused",
        "status": 422,
        "detail": "The query is not allowed.",
        "code": "query_refused",
        "errors": [{"code": "a", "message": "b", "line": 1, "column": 2}],
    }
    fake.add(json.dumps(problem), status=422, kind="application/problem+json")
    with pytest.raises(RequestRefusedError) as raised:
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
def test_what_is_no_answer_of_refeed_s_is_an_error_too(fake, api, status, body, said):
    fake.add(body, status=status, kind="text/html")
    with pytest.raises(RequestRefusedError) as raised:
        api.jobs.read("bf_1")
    assert (raised.value.message, raised.value.details) == (said, {})


def _read_log(api: RefeedApi) -> list[str]:
    return list(api.stream_log("/topics", tail_lines=9, follow=False))


NO_ANSWERS = ["{}", "[]", "null", '"hello"', "", "<html>Sign in to the wireless network</html>"]


@pytest.mark.parametrize("body", NO_ANSWERS)
@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize("call", [RefeedApi.list_topics, _read_log], ids=["json", "log"])
def test_a_server_that_is_no_refeed_api_is_named_as_one(fake, api, call, body, status):
    fake.add(body, status=status, kind="text/html")
    with pytest.raises(ApiUnknownError) as raised:
        call(api)
    said = f"The answer to GET {fake.url}/topics does not come from Refeed's API (HTTP {status}, "
    assert said in raised.value.message
    assert raised.value.message.endswith("Set REFEED_API_URL to the API's address.")


def test_an_answer_that_lacks_what_the_api_has_in_it_is_none_of_refeed_s(fake, api):
    fake.add('{"status": "healthy"}')
    found = api.list_topics()
    assert (found["status"], found.get("topics"), "topics" in found) == ("healthy", None, False)
    said = f"GET {fake.url}/topics does not come from Refeed's API .*no 'topics'"
    with pytest.raises(ApiUnknownError, match=said):
        found["topics"]


@pytest.mark.parametrize(
    ("status", "body", "is_ready"),
    [
        (200, '{"status": "ok"}', True),
        (503, '{"status": "ok"}', False),
        # Another server's yes.
        *((200, body, False) for body in ("{}", "[]", "<html>Welcome</html>", '{"status": "not_ready"}')),
    ],
)
def test_ready_is_what_readyz_of_a_refeed_api_says(fake, api, status, body, is_ready):
    fake.add(body, status=status)
    assert api.is_ready() is is_ready


@pytest.mark.parametrize("body", ["", "<html>Bad gateway</html>", '{"message": "Service Unavailable"}'])
@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_proxy_in_front_of_an_api_that_is_away_is_no_refusal(fake, api, status, body):
    fake.add(body, status=status, kind="text/html")
    with pytest.raises(ApiUnavailableError, match=f"HTTP {status}"):
        api.jobs.read("bf_1")


@pytest.mark.parametrize("key", ["rf_secret\nword", "rf_secret\x00word"])
def test_a_key_that_no_header_can_have_is_refused_and_never_shown(fake, key):
    with RefeedApi(fake.url, key) as api, pytest.raises(RequestRefusedError) as raised:
        api.read_status()
    assert (raised.value.details["status"], "secret" in raised.value.message, fake.asked) == (422, False, [])


def test_nobody_there_says_how_to_start_it():
    with RefeedApi(f"http://127.0.0.1:{free_port()}") as api:
        assert not api.is_ready()
        with pytest.raises(ApiUnavailableError, match="refeed up"):
            api.jobs.read("bf_1")


def test_address_and_key_come_from_the_environment_the_key_as_a_bearer_token(fake, monkeypatch):
    with open_api() as api:
        assert api.url == "http://127.0.0.1:8080"
    monkeypatch.setenv("REFEED_API_URL", f"{fake.url}/")
    fake.add(DONE, DONE)
    for key in (" rf_secret\n", ""):
        monkeypatch.setenv("REFEED_API_KEY", key)
        with open_api() as api:
            assert api.url == fake.url
            api.jobs.read("bf_1")
    assert fake.sent("authorization") == ["Bearer rf_secret", None]


def shown(state: str, published: int = 0) -> str:
    return json.dumps({"id": "bf_1", "state": state, "progress": {"published": published}})


def events(*told: tuple[str, int, str]) -> tuple[int, str, str]:
    text = ": the connection lives\n\n" + "".join(f"id: {n}\nevent: {e}\ndata: {d}\n\n" for e, n, d in told)
    return 200, "text/event-stream; charset=utf-8", text


def states(api: RefeedApi) -> list[str]:
    return [found["state"] for found in api.jobs.watch("bf_1")]


def test_a_watch_waits_for_an_api_that_is_restarted_behind_a_proxy(fake, api, monkeypatch):
    monkeypatch.setattr("client.jobs._POLL_SECONDS", 0.01)
    fake.add(shown("RUNNING"))
    fake.add(*["<html>Bad gateway</html>"] * 5, status=502, kind="text/html")
    fake.add(shown("SUCCEEDED"))
    assert states(api) == ["RUNNING", "SUCCEEDED"]


def test_a_watch_takes_events_as_they_come(fake, api):
    fake.add(shown("PENDING"))
    fake.answers.append(
        events(("history", 3, "{}"), ("progress", 3, shown("RUNNING", 1)), ("end", 4, shown("SUCCEEDED", 2)))
    )
    assert states(api) == ["PENDING", "RUNNING", "SUCCEEDED"]
    assert [asked[1] for asked in fake.asked] == ["/jobs/bf_1", "/jobs/bf_1:watch"]


def test_a_watch_that_breaks_off_goes_on_behind_what_was_seen(fake, api):
    fake.add(shown("PENDING"))
    fake.answers += [events(("progress", 7, shown("RUNNING"))), events(("end", 8, shown("FAILED")))]
    assert states(api) == ["PENDING", "RUNNING", "FAILED"]
    assert fake.sent("last-event-id") == [None, "0", "7"]


def test_a_watch_asks_again_and_again_where_events_are_not_to_be_had(fake, api):
    fake.add(shown("PENDING"))
    fake.add("{}", status=404, kind="application/problem+json")
    fake.answers.append(events())
    fake.add(shown("RUNNING"), shown("SUCCEEDED"))
    assert states(api) == ["PENDING", "RUNNING", "SUCCEEDED"]
    assert [asked[1] for asked in fake.asked[-2:]] == ["/jobs/bf_1"] * 2


def test_a_watch_waits_for_an_api_that_is_restarted_and_not_for_ever(fake, api, monkeypatch):
    fake.add(shown("RUNNING"), shown("RUNNING"))
    watched = api.jobs.watch("bf_1")
    assert next(watched)["state"] == "RUNNING"
    calls = iter([ApiUnavailableError(), ApiUnavailableError()])

    def fail(_id, _after):
        error = next(calls, None)
        if error is not None:
            raise error
        return iter([(1, json.loads(shown("SUCCEEDED")))])

    monkeypatch.setattr(api, "stream_events", fail)
    assert next(watched)["state"] == "SUCCEEDED"
    monkeypatch.setattr("client.jobs._PATIENCE_SECONDS", 0.0)
    again = api.jobs.watch("bf_1")
    next(again)
    calls = iter([ApiUnavailableError()] * 9)
    with pytest.raises(ApiUnavailableError):
        next(again)


def test_a_log_that_is_refused_is_an_error(fake, api):
    problem = '{"detail": "There is no job.", "code": "job_not_found"}'
    fake.add(problem, status=404, kind="application/problem+json")
    with pytest.raises(RequestRefusedError, match="There is no job"):
        list(api.jobs.read_log("bf_1", tail_lines=1, follow=False))


def test_another_caller_s_calls_go_out_with_their_own_key(fake):
    fake.add(DONE, DONE, DONE)
    with RefeedApi(fake.url, "rf_ann") as api:
        api.as_caller("rs_bob").read_status()
        api.as_caller(None).read_status()
        api.read_status()
    assert fake.sent("authorization") == ["Bearer rs_bob", None, "Bearer rf_ann"]


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_of_dots_is_a_name_and_no_way_up(fake, api, name):
    fake.add(DONE, DONE)
    api.read_stream(name)
    api.check_stream(name, {})
    written = name.replace(".", "%2E")
    assert [asked[1] for asked in fake.asked] == [
        f"/streams/{written}",
        f"/streams/{written}:update?validate_only=true",
    ]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_have_is_refused_as_the_api_would(fake, api, number):
    with pytest.raises(RequestRefusedError) as raised:
        api.jobs.change("bf_1", {"rate_limit_messages_per_second": number})
    assert (raised.value.details["code"], raised.value.details["status"]) == ("request_invalid", 422)
    assert fake.asked == []


@pytest.mark.parametrize("key", ["rf_ä", "rf_\udcff"])
def test_a_key_with_any_letters_is_the_api_s_to_refuse(fake, key):
    fake.add('{"code": "unauthenticated", "status": 401, "detail": "no"}', status=401)
    with RefeedApi(fake.url, key) as api, pytest.raises(RequestRefusedError, match="no"):
        api.backfills.create({}, idempotency_key="ä")
    if key == "rf_ä":
        sent = fake.sent("authorization") + fake.sent("idempotency-key")
        assert [text.encode("latin-1").decode() for text in sent] == ["Bearer rf_ä", "ä"]
