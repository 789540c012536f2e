import asyncio
import json
import re
from datetime import datetime
from typing import Any

import pytest

from model.message import MAX_ATTRIBUTES
from tests.collector.conftest import problem_of

# Byte for byte: spaces, key order, escapes, a number that no float holds.
EVENT = b' {"b" : 1.10,\t"a":"\\u00e9\xc3\xa9", "n": 123456789012345678901234567890 }\r\n'
UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def test_an_event_arrives_byte_for_byte_with_its_attributes(yard):
    answer = yard.post(
        EVENT, to=f"/{yard.topic}?shop=se", content_type="application/json", referer="https://a.se/"
    )
    [message] = yard.pull(1)
    assert message.data == EVENT
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    told = answer.json()
    attributes = dict(message.attributes)
    assert UUID7.fullmatch(told["uuid"])
    datetime.fromisoformat(told["timestamp"])
    assert attributes.pop("http_user_agent").startswith("python-httpx/")
    assert attributes == {
        **told,
        "topic": yard.topic,
        "source": "http",
        "content_type": "application/json",
        "http_path": f"/{yard.topic}",
        "http_query": "shop=se",
        "http_referer": "https://a.se/",
        "http_client_address": "127.0.0.1",
        "shop": "se",
    }


def test_a_caller_s_own_ids_never_win(yard):
    names = ("uuid", "timestamp", "topic", "source", "content_type", "refeed_replay", "googclient", "http_path")
    query = "&".join(f"{name}=mine" for name in (*names, "caller_uuid2", "event"))
    told = yard.post(
        b"{}", to=f"/{yard.topic}?{query}", cookie="s=1", x_api_key="k", content_type="application/json"
    )
    attributes = dict(yard.pull(1)[0].attributes)
    assert {f"caller_{name}": "mine" for name in names}.items() <= attributes.items()
    assert (attributes["caller_caller_uuid2"], attributes["event"]) == ("mine", "mine")
    assert {name for name in attributes if name.startswith(("goog", "refeed"))} == set()
    assert attributes["uuid"] == told.json()["uuid"]
    assert [name for name in attributes if "cookie" in name or "authorization" in name or "api" in name] == []


def test_a_fact_that_is_too_long_is_cut_and_named(yard):
    yard.post(b"{}", referer="https://a.se/" + "x" * 3000)
    attributes = yard.pull(1)[0].attributes
    assert (len(attributes["http_referer"]), attributes["http_cut"]) == (1024, "referer")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "json_invalid"),
        (b"{", "json_invalid"),
        (b'{"a": NaN}', "json_invalid"),
        (b'{"a": 1}{"b": 2}', "json_invalid"),
        (b'{"a": "\x00"}', "json_invalid"),
        (b'\xef\xbb\xbf{"a": 1}', "json_invalid"),
        (b'{"a": 1, "a": 2}', "json_name_repeated"),
        (b'{"a": "\xff"}', "json_not_utf8"),
        (b'{"a": "\\ud83d"}', "json_surrogate"),
        (b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", "json_too_deep"),
        (b"[" * 5_000, "json_too_deep"),
        (b'{"a":' * 200_000, "json_too_deep"),
    ],
)
def test_what_is_no_strict_json_is_refused(yard, body, code):
    assert problem_of(yard.post(body)) == (422, "request_invalid", [code])
    yard.pull(0)


def test_a_raw_topic_keeps_what_it_gets(yard):
    app = yard.collector(yard.settings("topics: {TOPIC: {format: raw, source: legacy}}"))
    body = b'\xff\x00 {"a": 1, "a": 2'
    assert yard.post(body, app=app, content_type="text/csv").status_code == 200
    [message] = yard.pull(1)
    assert (message.data, message.attributes["source"]) == (body, "legacy")
    assert message.attributes["content_type"] == "text/csv"


@pytest.mark.parametrize(
    "path", ["/", "/ORDERS", "/none", "/../orders", "/a/b", "/%2e%2e", "/goog1", "/a%00b", "/*"]
)
def test_a_topic_that_is_not_listed_is_unknown(yard, path):
    assert problem_of(yard.post(b"{}", to=path))[:2] == (404, "topic_unknown")


def test_a_pattern_takes_topics_that_are_there_and_creates_none(yard):
    app = yard.collector(yard.settings("", "orders-*"))
    assert yard.post(b"{}", app=app).status_code == 200
    assert problem_of(yard.post(b"{}", app=app, to="/orders-made-up"))[:2] == (404, "topic_unknown")
    assert not yard.pubsub.topic_exists("orders-made-up")


@pytest.mark.parametrize("name", ["shop.a/b", "shop.%0A", "shop.%C3%A9", "shop." + "x" * 300, "goog.shop"])
def test_a_name_that_no_topic_can_have_is_unknown_under_a_pattern_too(yard, name):
    app = yard.collector(yard.settings("", "shop.*", "goog*"))
    assert problem_of(yard.post(b"{}", app=app, to=f"/{name}"))[:2] == (404, "topic_unknown")


def test_a_listed_topic_that_pubsub_has_not_is_a_fault_of_ours(yard):
    app = yard.collector(yard.settings("", "away-for-now"))
    answer = yard.post(b"{}", app=app, to="/away-for-now")
    assert problem_of(answer)[:2] == (503, "topic_not_found")
    assert answer.headers["retry-after"] == "5"


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("a=1&a=2", "parameter_repeated"),
        ("uuid=1&caller_x=2&caller_uuid=3&uuid=4", "parameter_repeated"),
        ("=1", "parameter_unnamed"),
        ("a=%ff", "parameters_not_utf8"),
        (f"{'n' * 257}=1", "parameter_name_too_long"),
        (f"a={'v' * 1025}", "parameter_too_long"),
        ("&".join(f"a{n}=1" for n in range(MAX_ATTRIBUTES + 1)), "too_many_parameters"),
        ("&".join(f"a{n}=1" for n in range(MAX_ATTRIBUTES - 5)), "too_many_parameters"),
    ],
)
def test_parameters_that_pubsub_would_not_take_are_named(yard, query, code):
    assert problem_of(yard.post(b"{}", to=f"/{yard.topic}?{query}")) == (422, "request_invalid", [code])


def test_every_fault_of_the_parameters_is_named(yard):
    answer = yard.post(b"{}", to=f"/{yard.topic}?a=1&a=2&b={'v' * 1025}")
    assert problem_of(answer)[2] == ["parameter_repeated", "parameter_too_long"]


def test_as_many_attributes_as_pubsub_takes_are_published(yard):
    facts = 4  # topic, source, uuid, timestamp
    app = yard.collector(yard.settings("facts: []"))
    query = "&".join(f"a{n}=1" for n in range(MAX_ATTRIBUTES - facts))
    assert yard.post(b"{}", app=app, to=f"/{yard.topic}?{query}").status_code == 200
    assert len(yard.pull(1)[0].attributes) == MAX_ATTRIBUTES


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"content_type": "text/plain"}, "content_type_unsupported"),
        ({"content_type": "application/xml"}, "content_type_unsupported"),
        ({"content_type": "application/json", "content_encoding": "br"}, "content_encoding_unsupported"),
    ],
)
def test_a_body_of_another_kind_is_refused(yard, headers, code):
    assert problem_of(yard.post(b"{}", **headers)) == (415, "request_invalid", [code])


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.x+json"])
def test_json_has_several_names(yard, kind):
    assert yard.post(b"{}", content_type=kind).status_code == 200
    assert yard.pull(1)[0].attributes["content_type"] == kind


def test_a_body_over_the_bound_is_refused_by_its_length_and_by_its_bytes(yard):
    app = yard.collector(yard.settings("max_body_bytes: 1024"))
    said = yard.post(b"[" + b"1," * 600 + b"1]", app=app)
    assert problem_of(said)[:2] == (413, "body_too_large")
    assert said.headers["connection"] == "close"

    async def pieces():
        for _ in range(3):
            yield b" " * 400

    async def work(client):
        return await client.post(f"/{yard.topic}", content=pieces())

    assert problem_of(yard.call(work, app))[:2] == (413, "body_too_large")
    yard.pull(0)


def test_a_message_of_more_than_pubsub_takes_is_refused(yard):
    assert problem_of(yard.post(b'"%s"' % (b"x" * 9_999_900)))[:2] == (413, "body_too_large")
    assert yard.post(b'"%s"' % (b"x" * 9_990_000)).status_code == 200
    assert len(yard.pull(1)[0].data) == 9_990_002


async def ask(app: Any, *messages: dict[str, Any], path: str, seconds: float = 5) -> list[dict[str, Any]]:
    """Call the application with these pieces of a request; after the last one, none comes."""
    sent: list[dict[str, Any]] = []
    waiting = list(messages)

    async def receive() -> dict[str, Any]:
        if waiting:
            return waiting.pop(0)
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"host", b"localhost")], "client": None}
    await asyncio.wait_for(app({**scope, "client": ("127.0.0.1", 1)}, receive, send), seconds)
    return sent


def test_a_body_that_does_not_come_is_not_waited_for(yard):
    settings = yard.settings()
    object.__setattr__(settings, "body_timeout_seconds", 0.05)
    piece = {"type": "http.request", "body": b"{", "more_body": True}
    sent = yard.loop.run(ask(yard.collector(settings), piece, path=f"/{yard.topic}"))
    assert sent[0]["status"] == 408
    yard.pull(0)


@pytest.mark.parametrize("method", ["HEAD", "PUT", "DELETE", "PATCH", "BREW"])
def test_other_methods_are_not_allowed(yard, method):
    async def work(client):
        return await client.request(method, f"/{yard.topic}")

    answer = yard.call(work)
    assert answer.status_code == 405
    assert "POST" in answer.headers["allow"]


def test_too_large_a_head_is_refused(yard):
    assert yard.post(b"{}", x_large="x" * 17_000).status_code == 431
    assert yard.post(b"{}", **{f"x{n}": "1" for n in range(101)}).status_code == 431


def test_figures_count_events_and_answers_and_no_topic_that_only_a_caller_made_up(yard, monkeypatch):
    """Who has no key could make up a name a request, and each would stay in memory and in Prometheus."""
    monkeypatch.setenv("SHOP_KEY", "x" * 20)
    prefix = yard.topic[:-4]
    app = yard.collector(yard.settings('keys: [{name: shop, secret: "env:SHOP_KEY"}]', f"{prefix}*"))
    key = "x" * 20
    assert yard.post(b"{}", app=app, to=f"/{prefix}made-up").status_code == 401
    assert yard.post(b"{}", app=app, to=f"/{prefix}made-up", x_api_key=key).status_code == 404
    assert yard.post(b"{}", app=app, x_api_key=key).status_code == 200
    assert yard.post(b"{", app=app, x_api_key=key).status_code == 422
    assert yard.post(b"{}", app=app).status_code == 401
    text = yard.call(lambda client: client.get("/metrics", headers={"x-api-key": key}), app).text
    assert "made-up" not in text
    assert 'refeed_collector_answers_total{status="401",topic="none"} 1.0' in text
    assert 'refeed_collector_answers_total{status="404",topic="none"} 1.0' in text
    assert f'refeed_collector_events_total{{topic="{yard.topic}"}} 1.0' in text
    for status in (200, 401, 422):
        assert f'refeed_collector_answers_total{{status="{status}",topic="{yard.topic}"}} 1.0' in text


def test_readiness_names_a_topic_that_is_missing_to_operators_only(yard):
    app = yard.collector(yard.settings("", yard.topic, "away-for-now"))
    near = yard.call(lambda client: client.get("/readyz"), app)
    assert (near.status_code, list(near.json()["problems"])) == (503, ["away-for-now"])
    far = yard.call(lambda client: client.get("/readyz"), app, client=("192.0.2.1", 1))
    assert (far.status_code, far.json()) == (503, {"status": "not_ready"})
    assert yard.call(lambda client: client.get("/metrics"), app, client=("192.0.2.1", 1)).status_code == 404
    assert yard.call(lambda client: client.get("/readyz"), yard.collector()).json() == {
        "status": "ok",
        "problems": {},
    }
    assert yard.call(lambda client: client.get("/healthz"), app).json() == {"status": "ok"}


def test_an_unexpected_fault_is_answered_without_its_words(yard, monkeypatch):
    def fail(_data):
        raise ValueError("secret")

    monkeypatch.setattr("collector.http.check_json", fail)
    answer = yard.post(b"{}")
    assert problem_of(answer)[:2] == (500, "internal")
    assert "secret" not in json.dumps(answer.json())
