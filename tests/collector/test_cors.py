import httpx
import pytest

from tests.collector.conftest import Yard, problem_of

SHOP = "https://shop.example"
CORS = f"topics: {{TOPIC: {{cors: ['{SHOP}']}}}}"


def preflight(yard: Yard, yaml: str, origin: str) -> httpx.Response:
    headers = {"origin": origin, "access-control-request-method": "POST"}

    async def work(client: httpx.AsyncClient) -> httpx.Response:
        return await client.options(f"/{yard.topic}", headers=headers)

    return yard.call(work, yard.collector(yard.settings(yaml)))


def test_a_listed_page_may_send_and_read_the_answer(yard):
    asked = preflight(yard, CORS, SHOP)
    assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (204, SHOP)
    assert "content-type" in asked.headers["access-control-allow-headers"]
    app = yard.collector(yard.settings(CORS))
    sent = yard.post(b"{}", app=app, origin=SHOP, sec_fetch_site="cross-site")
    refused = yard.post(b"{", app=app, origin=SHOP)
    assert [sent.status_code, refused.status_code] == [200, 422]
    assert {each.headers["access-control-allow-origin"] for each in (sent, refused)} == {SHOP}
    assert {each.headers["vary"] for each in (sent, refused)} == {"Origin"}
    yard.pull(1)


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "https://shop.example.evil", "http://shop.example"]
)
def test_another_page_may_not(yard, origin):
    asked = preflight(yard, CORS, origin)
    assert problem_of(asked)[:2] == (403, "forbidden")
    sent = yard.post(b"{}", app=yard.collector(yard.settings(CORS)), origin=origin)
    assert problem_of(sent)[:2] == (403, "forbidden")
    assert not any("access-control-allow-origin" in each.headers for each in (asked, sent))
    yard.pull(0)


def test_a_topic_for_every_page_says_so(yard):
    asked = preflight(yard, "topics: {TOPIC: {public: true, cors: ['*']}}", "https://any.example")
    assert asked.headers["access-control-allow-origin"] == "https://any.example"


def test_without_cors_a_browser_is_told_nothing(yard):
    asked = preflight(yard, "topics: {TOPIC: {public: true}}", SHOP)
    assert problem_of(asked)[:2] == (405, "method_not_allowed")
    assert "access-control-allow-origin" not in asked.headers
