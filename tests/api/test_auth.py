from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from starlette.requests import Request

from api.auth import ClaimReader, StandingCaller, address_of, current_principal
from jobs.keys import Keyring
from model.errors import IdentityUnavailableError, UnauthenticatedError
from model.principal import ADMIN, PLAN, READ, RUN, Principal, parse_grants

JOB = "/jobs/bf_00000000000000000000000000"


@pytest.fixture(scope="module")
def closed(start_api):
    api = start_api()
    api.make_key(ADMIN, name="first")
    return api


def assert_refused(response, status, code):
    assert response.headers["content-type"] == "application/problem+json", response.text
    problem = response.json()
    assert (response.status_code, problem["code"]) == (status, code)
    return problem


def test_without_keys_this_machine_may_do_everything(start_api):
    api = start_api()
    with api.client() as client:
        assert client.get("/backfills").status_code == 200
        assert client.get("/audit").status_code == 200
    api.make_key(READ)
    with api.client() as client:
        refused = client.get("/backfills")
        assert_refused(refused, 401, "unauthenticated")
        assert refused.headers["www-authenticate"] == 'Bearer realm="refeed"'


def test_a_page_that_calls_again_and_again_is_slowed_down_and_this_machine_is_not(start_api):
    api = start_api(REFEED_RATE_LIMIT_PER_MINUTE="5")
    with api.client(Origin="https://evil.example") as page, api.client() as program:
        statuses = [page.get("/backfills").status_code for _ in range(10)]
        assert [program.get("/backfills").status_code for _ in range(10)] == [200] * 10
    assert statuses[:5] == [403] * 5
    assert statuses[-1] == 429
    assert len(api.audit()) < 10


def test_a_key_whose_topics_are_listed_publishes_nowhere_else(closed):
    day = {"type": "DATE", "value": "2026-01-01"}
    body = {"query": "SELECT * FROM backup.messages WHERE _PARTITIONDATE = @day", "parameters": {"day": day}}
    key = closed.make_key(RUN, PLAN, name="shop", topics=["shop-*"])
    with closed.client(key) as client:
        for path in ("/backfills", "/backfills?validate_only=true"):
            problem = assert_refused(client.post(path, json={**body, "topic": "payments"}), 403, "forbidden")
            assert "payments" in problem["detail"]


def test_a_key_that_ended_opens_nothing(closed):
    token = closed.make_key(ADMIN, name="old")
    key = closed.store.find_key(token.split("_")[1])
    with closed.client(token) as client:
        assert client.get("/backfills").status_code == 200
        closed.store.revoke_key(key.id, key.created_at)
        refused = client.get("/backfills")
    assert_refused(refused, 401, "unauthenticated")
    assert refused.headers["www-authenticate"] == 'Bearer realm="refeed", error="invalid_token"'


def test_the_caller_is_checked_before_the_body_is_looked_at(closed):
    with closed.client() as client:
        for content in (b"{", b"x" * 10_000_000):
            assert_refused(client.post("/backfills", content=content), 401, "unauthenticated")


def test_each_key_has_its_own_rate(start_api):
    api = start_api(REFEED_RATE_LIMIT_PER_MINUTE="5")
    hasty, calm = (api.make_key(READ, name=name) for name in ("hasty", "calm"))
    with api.client(hasty) as client:
        statuses = [client.get("/backfills").status_code for _ in range(7)]
        refused = client.get("/backfills")
    assert statuses[:5] == [200] * 5
    assert 429 in statuses[5:]
    assert_refused(refused, 429, "rate_limited")
    assert 1 <= int(refused.headers["retry-after"]) <= 12
    with api.client(calm) as client:
        assert client.get("/backfills").status_code == 200
    with api.client("rf_wrong") as client:
        guesses = [client.get("/backfills").status_code for _ in range(7)]
    assert guesses[0] == 401
    assert guesses[-1] == 429
    # Whoever guesses keeps nobody out who has a key.
    with api.client(calm) as client:
        assert client.get("/backfills").status_code == 200


def test_tokens_of_the_issuer_count_where_there_is_one(start_api, issuer):
    api = start_api(
        REFEED_OIDC_ISSUER=issuer.url,
        REFEED_OIDC_AUDIENCE="refeed",
        REFEED_OIDC_GRANTS="email=ann@shop.example:backfills.admin",
    )
    with api.client() as client:
        assert_refused(client.get("/backfills"), 401, "unauthenticated")
    with api.client(issuer.token(scope="openid backfills.read")) as client:
        assert client.get("/backfills").status_code == 200
        assert_refused(client.post(f"{JOB}:cancel"), 403, "forbidden")
    with api.client(issuer.token(email="ann@shop.example", email_verified=True)) as client:
        assert client.get("/audit").status_code == 200
    with api.client(issuer.token(email="ann@shop.example")) as client:
        assert_refused(client.get("/audit"), 403, "forbidden")
    with api.client(api.make_key(READ)) as client:
        assert client.get("/backfills").status_code == 200


def test_an_issuer_that_is_away_is_said_and_keys_still_count(start_api, issuer):
    issuer.status = 500
    api = start_api(REFEED_OIDC_ISSUER=issuer.url, REFEED_OIDC_AUDIENCE="refeed")
    with api.client(issuer.token()) as client:
        response = client.get("/backfills")
        assert_refused(response, 503, "identity_unavailable")
        assert int(response.headers["retry-after"]) >= 1
    with api.client(api.make_key(READ)) as client:
        assert client.get("/backfills").status_code == 200


@pytest.mark.parametrize(
    ("claims", "scopes"),
    [
        ({"scope": "backfills.read backfills.root"}, {READ}),
        ({"scope": ["backfills.read", "openid", 7]}, {READ}),
        ({"scope": {"backfills.read": True}}, set()),
        ({"groups": ["ops", "dev"]}, {READ, RUN}),
        ({"groups": "ops"}, {READ, RUN}),
        ({"groups": "dev ops"}, set()),
        ({"hd": "shop.example", "scope": "backfills.plan"}, {READ, PLAN}),
        ({"email": "ann@shop.example"}, set()),
        ({"email": "ann@shop.example", "email_verified": "true"}, set()),
        ({"email": "ann@shop.example", "email_verified": True}, {ADMIN}),
        ({}, set()),
    ],
)
def test_scopes_come_from_claims(claims, scopes):
    grants = parse_grants(
        "groups=ops:backfills.read,backfills.run; hd=shop.example:backfills.read;"
        "email=ann@shop.example:backfills.admin"
    )
    principal = ClaimReader("scope", grants).principal_of({"sub": "7", **claims})
    assert principal.scopes == scopes
    assert principal.name == ("user:ann@shop.example" if ADMIN in scopes else "user:7")


def test_nobody_is_a_principal_where_nothing_admitted_them():
    with pytest.raises(UnauthenticatedError):
        current_principal(Request({"type": "http", "path": "/backfills", "headers": []}))


@pytest.mark.parametrize(
    ("client", "address"),
    [
        (("10.1.2.3", 5), "10.1.2.3"),
        (("2001:db8:1:2:3:4:5:6", 5), "2001:db8:1:2::"),
        (("::ffff:10.1.2.3", 5), "10.1.2.3"),
        (("testclient", 5), "unknown"),
        (None, "unknown"),
    ],
)
def test_neighbours_in_one_network_are_one_address(client, address):
    assert address_of({"type": "http", "client": client}) == address


@pytest.fixture
def watched(closed, request_body):
    """The path of a backfill that waits to be resumed."""
    with closed.client(closed.make_key(ADMIN, name="maker")) as client:
        made = client.post("/backfills", json={**request_body, "start_paused": True, "allow_overlap": True})
        assert made.status_code == 202, made.text
        return f"/jobs/{made.json()['id']}"


@pytest.fixture
def request_body():
    start = {"type": "TIMESTAMP", "value": datetime.now(UTC).isoformat()}
    query = "SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONTIME >= @from"
    return {"query": query, "parameters": {"from": start}, "topic": "replay"}


def test_a_key_that_is_revoked_watches_no_further(closed, watched, monkeypatch):
    monkeypatch.setattr("api.auth._RECHECK_SECONDS", 0.0)
    key = closed.make_key(READ, name="watcher")
    with closed.client(key) as client, client.stream("GET", f"{watched}:watch") as response:
        lines = response.iter_lines()
        assert "event: progress" in (line for line in lines)
        Keyring(closed.store).revoke(key.rpartition("_")[0])
        rest = list(lines)
    assert rest[-3] == "event: problem"
    assert '"code": "unauthenticated"' in rest[-2]


def test_a_key_that_expires_follows_a_log_no_further(closed, watched, monkeypatch):
    monkeypatch.setattr("api.auth._RECHECK_SECONDS", 0.0)
    key = closed.make_key(READ, name="follower", expires_at=datetime.now(UTC) + timedelta(seconds=1.5))
    with closed.client(key) as client:
        said = client.get(f"{watched}/logs", params={"follow": "true"})
    assert said.status_code == 200
    assert said.text.splitlines()[-1].startswith("refeed: the log is not shown any further (unauthenticated)")


def test_an_open_stream_is_checked_now_and_then_and_outlasts_an_issuer_that_is_away(monkeypatch):
    ann = Principal("user:ann", frozenset({READ}))
    answers = [IdentityUnavailableError()]
    asked = []

    def recheck():
        asked.append(now[0])
        if answers:
            raise answers.pop(0)
        return ann

    now = [0.0]
    # Of this module alone: a server's loop that meets another clock sleeps for hours.
    monkeypatch.setattr("api.auth.time", SimpleNamespace(monotonic=lambda: now[0]))
    caller = StandingCaller(ann, recheck)
    for second in range(12):
        now[0] = float(second)
        assert caller.principal() == ann
    assert asked == [5.0, 10.0]
    answers.append(UnauthenticatedError())
    now[0] = 15.0
    with pytest.raises(UnauthenticatedError):
        caller.principal()
