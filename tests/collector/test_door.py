import pytest

from tests.collector.conftest import Yard, problem_of

FAR = ("192.0.2.1", 5)
KEYS = """
keys:
  - {name: shop, secret: "env:SHOP_KEY"}
  - {name: other, secret: "env:OTHER_KEY", topics: [members]}
"""


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_KEY", "a-secret-of-the-shop")
    monkeypatch.setenv("OTHER_KEY", "another-secret-key")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": "Bearer a-secret-of-the-shop"}, 200),
        ({"x_api_key": "a-secret-of-the-shop"}, 200),
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Basic a-secret-of-the-shop"}, 401),
        ({"x_api_key": "another-secret-key"}, 403),
    ],
)
def test_a_key_opens_its_topics(yard: Yard, headers: dict[str, str], status: int) -> None:
    settings = yard.settings(KEYS, yard.topic, "members")
    # Neither where it listens nor where the caller is makes up for a key.
    app = yard.collector(settings, is_open=True)
    answer = yard.post(b"{}", app=app, **headers)
    assert answer.status_code == status
    if status == 401:
        assert problem_of(answer)[1] == "unauthenticated"
        assert answer.headers["www-authenticate"].startswith("Bearer")
    for message in yard.pull(1 if status == 200 else 0):
        assert [value for value in message.attributes.values() if "secret" in value] == []


def test_a_key_in_the_query_is_no_key(yard: Yard) -> None:
    app = yard.collector(yard.settings(KEYS, yard.topic, "members"))
    assert yard.post(b"{}", app=app, to=f"/{yard.topic}?x-api-key=a-secret-of-the-shop").status_code == 401


def test_a_public_topic_wants_no_key(yard: Yard) -> None:
    app = yard.collector(
        yard.settings(KEYS + "topics: {TOPIC: {public: true}}", yard.topic, "members"), is_open=False
    )
    assert yard.post(b"{}", app=app, client=FAR, origin="https://a.se").status_code == 200
    assert yard.post(b"{}", app=app, client=FAR, to="/members").status_code == 401


def test_figures_want_a_key_where_there_are_keys(yard: Yard) -> None:
    app = yard.collector(yard.settings(KEYS, yard.topic, "members"))
    assert yard.call(lambda client: client.get("/metrics"), app).status_code == 404
    headers = {"authorization": "Bearer another-secret-key"}
    assert yard.call(lambda client: client.get("/metrics", headers=headers), app, FAR).status_code == 200


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"origin": "https://evil.example"}, "forbidden"),
        ({"sec_fetch_site": "cross-site"}, "forbidden"),
        ({"host": "evil.example"}, "forbidden"),
        ({"host": "127.0.0.1@evil.example"}, "forbidden"),
        ({"x_forwarded_for": "127.0.0.1"}, "proxy_without_key"),
        ({"via": "1.1 proxy"}, "proxy_without_key"),
        ({"forwarded": "for=192.0.2.60"}, "proxy_without_key"),
        ({"x_forwarded_proto": "https"}, "proxy_without_key"),
        ({"x_forwarded_host": "shop.example"}, "proxy_without_key"),
        ({"x_forwarded_port": "443"}, "proxy_without_key"),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}, "forbidden"),
        ({"origin": "https://127.0.0.1"}, "forbidden"),
    ],
)
def test_without_keys_a_web_page_or_a_proxy_is_refused(yard: Yard, headers: dict[str, str], code: str) -> None:
    assert problem_of(yard.post(b"{}", **headers))[:2] == (403, code)
    yard.pull(0)


def test_without_keys_a_link_on_another_page_sends_no_event(yard: Yard) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    answer = yard.call(lambda client: client.get(f"/{yard.topic}?a=1", headers=headers))
    assert problem_of(answer)[:2] == (403, "forbidden")
    yard.pull(0)


@pytest.mark.parametrize(
    "headers", [{"x-forwarded-proto": "https"}, {"host": "evil.example"}, {"origin": "http://evil.example"}]
)
def test_without_keys_figures_are_shown_to_programs_of_this_machine_alone(yard, headers):
    assert yard.call(lambda client: client.get("/metrics")).status_code == 200
    assert yard.call(lambda client: client.get("/metrics", headers=headers)).status_code == 404
    assert "problems" not in yard.call(lambda client: client.get("/readyz", headers=headers)).json()


def test_without_keys_only_this_machine_is_answered(yard: Yard) -> None:
    assert problem_of(yard.post(b"{}", client=FAR))[:2] == (403, "forbidden")
    assert problem_of(yard.post(b"{}", app=yard.collector(is_open=False)))[:2] == (401, "unauthenticated")


@pytest.mark.parametrize(
    ("proxies", "forwarded", "address"),
    [
        (0, "6.6.6.6", "192.0.2.1"),
        (1, "6.6.6.6, 198.51.100.7", "198.51.100.7"),
        (2, "6.6.6.6, 198.51.100.7", "6.6.6.6"),
        (2, "198.51.100.7", "192.0.2.1"),
        (1, "nonsense", "192.0.2.1"),
        (1, "2001:db8::1", "2001:db8::1"),
    ],
)
def test_the_caller_s_address_is_what_our_own_proxies_saw(yard, proxies, forwarded, address):
    app = yard.collector(yard.settings(f"proxies: {proxies}\ntopics: {{TOPIC: {{public: true}}}}"))
    yard.post(b"{}", app=app, client=FAR, x_forwarded_for=forwarded)
    assert yard.pull(1)[0].attributes["http_client_address"] == address


def test_a_key_and_an_address_have_their_rates(yard: Yard) -> None:
    rates = "rate_limits: {key_per_minute: 2}\n"
    app = yard.collector(yard.settings(rates + KEYS, yard.topic, "members"))
    headers = {"x_api_key": "a-secret-of-the-shop"}
    answers = [yard.post(b"{}", app=app, **headers) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert 1 <= int(answers[2].headers["retry-after"]) <= 30
    yard.pull(2)
    app = yard.collector(yard.settings("rate_limits: {address_per_minute: 1}\ntopics: {TOPIC: {public: true}}"))
    clients = ["192.0.2.1", "192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2", "2001:db8:0:1::2"]
    statuses = [yard.post(b"{}", app=app, client=(client, 1)).status_code for client in clients]
    assert statuses == [200, 429, 200, 200, 429, 200]
    yard.pull(4)


def test_without_a_limit_nobody_is_slowed_down(yard: Yard) -> None:
    app = yard.collector()
    assert {yard.post(b"{}", app=app).status_code for _ in range(30)} == {200}
    yard.pull(30)
