"""What somebody would try who wants in, wants more than they may, or wants the service to stop."""

import base64
import socket
import threading
from functools import partial
from typing import Any

import pytest

from model.principal import ADMIN, READ, RUN

BODY_BYTES = 10_000
JOB = "/jobs/bf_00000000000000000000000000"


@pytest.fixture(scope="module")
def api(start_api):
    """An API with keys, which the tests may call as often as they like."""
    api = start_api(
        REFEED_RATE_LIMIT_PER_MINUTE="0", REFEED_MAX_BODY_BYTES=str(BODY_BYTES), REFEED_BODY_TIMEOUT_SECONDS="3"
    )
    api.make_key(ADMIN, name="first")
    return api


@pytest.fixture(scope="module")
def admin(api):
    return api.make_key(ADMIN, name="admin")


@pytest.fixture(scope="module")
def open_api(start_api):
    """An API without keys."""
    return start_api()


def raw(api: Any, *lines: str, key: str = "", method: str = "GET", path: str = "/backfills", body: bytes = b""):
    """What comes back for a request that no client library would send."""
    bearer = [f"Authorization: Bearer {key}"] * bool(key)
    head = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close", *bearer, *lines]
    return api.send_raw("\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body)


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


# --- without a key -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"])
@pytest.mark.parametrize(
    "path", ["/backfills", f"{JOB}:cancel", "/audit", "/nothing", "/messages", "/backfills:plan"]
)
def test_no_method_and_no_path_gets_by_without_a_key(api, method, path):
    assert status_of(raw(api, method=method, path=path)) == 401


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"])
def test_the_first_page_needs_no_key_and_is_there_to_read_alone(api, method):
    assert status_of(raw(api, path="/")) == 200
    assert status_of(raw(api, method=method, path="/")) == 405


@pytest.mark.parametrize(
    "path",
    [
        *("/healthz/../backfills", "/healthz/..;/backfills", "/healthz/%2e%2e/backfills"),
        *("/healthz%2f..%2fbackfills", "/healthz%00/backfills", "/healthz?/backfills", "//backfills"),
        *("/./backfills", "/backfills/", "/BACKFILLS", "/backfills%20", "/%62ackfills", "/backfills%2f"),
        *("/problems/../backfills", "/problems/..%2fbackfills", "/problems/%2e%2e/backfills"),
        *("/problems/..%252fbackfills", "/problems/x/../../backfills", "/docs/../backfills"),
        *("/openapi.json/../backfills", "http://127.0.0.1/backfills", "http://127.0.0.1/healthz"),
        *("/backfills#/healthz", "/\\..\\backfills"),
    ],
)
def test_no_spelling_of_a_path_gets_by_without_a_key(api, path):
    answer = raw(api, path=path)
    # The public pages themselves may answer; nothing of a backfill ever does.
    assert b'"backfills"' not in answer
    if status_of(answer) == 200:
        assert path.partition("?")[0] == "/healthz"
    else:
        assert status_of(answer) in (400, 401, 404)


@pytest.mark.parametrize(
    "path", ["/problems/..%2f..%2fpyproject", "/problems/%2e%2e%2fsecurity", "/problems/..%5cx", "/problems/x%00"]
)
def test_the_pages_of_problems_lead_to_no_other_file(api, path):
    assert status_of(raw(api, path=path)) == 404


@pytest.mark.parametrize(
    "query", ["access_token={key}", "key={key}", "api_key={key}", "Authorization=Bearer%20{key}", "token={key}"]
)
def test_a_key_in_an_address_does_not_count(api, admin, query):
    assert status_of(raw(api, path=f"/backfills?{query.format(key=admin)}")) == 401


@pytest.mark.parametrize(
    "lines",
    [
        ["Authorization: Basic {basic}"],
        ["Authorization: {key}"],
        ["Authorization: Bearer"],
        ["Authorization: Bearer "],
        ["Authorization: Token {key}"],
        ["Authorization: Bearer {key} {key}"],
        ["Authorization: Bearer {key},Bearer {key}"],
        ["Authorization: Bearer {key}x"],
        ["Authorization: Bearer {upper}"],
        ['Authorization: Bearer "{key}"'],
        ["Authorization: Bearer {key}", "Authorization: Bearer {key}"],
        ["Authorization: Bearer rf_wrong", "Authorization: Bearer {key}"],
        ["Authorization: Bearer {key}", "authorization: Basic {basic}"],
        ["X-Authorization: Bearer {key}"],
        ["Proxy-Authorization: Bearer {key}"],
        ["X-Api-Key: {key}"],
        ["Cookie: Authorization=Bearer {key}; token={key}"],
        ["X-Forwarded-User: admin", "X-Remote-User: admin", "Remote-User: admin"],
        ["X-Original-Url: /healthz", "X-Rewrite-Url: /healthz"],
        ["X-Http-Method-Override: GET"],
        ["Authorization: Bearer \xe9\xff"],
        ["Authorization: Bearer null"],
        ["Authorization: Bearer ' OR '1'='1"],
        ["Authorization: Bearer rf_%%%%%%%%%%_{secret}"],
    ],
)
def test_only_one_well_formed_bearer_header_counts(api, admin, lines):
    basic = base64.b64encode(f"admin:{admin}".encode()).decode()
    values = {"key": admin, "basic": basic, "upper": admin.upper(), "secret": admin.rsplit("_", 1)[1]}
    assert status_of(raw(api, *(line.format(**values) for line in lines))) == 401


@pytest.mark.parametrize(
    "line", ["Authorization: Bearer {}", "authorization: bearer {}", "AUTHORIZATION: BEARER {}"]
)
def test_the_spelling_of_header_and_scheme_does_not_matter(api, admin, line):
    assert status_of(raw(api, line.format(admin))) == 200


def test_one_key_s_secret_does_not_open_another_one(api, admin):
    reader = api.make_key(READ, name="reader")
    mixed = f"{admin.rsplit('_', 1)[0]}_{reader.rsplit('_', 1)[1]}"
    assert status_of(raw(api, key=mixed)) == 401


def test_a_refusal_says_nothing_that_helps_to_guess(api, admin):
    prefix = admin.rsplit("_", 1)[0]
    guesses = ["nonsense", f"rf_aaaaaaaaaa_{'a' * 52}", f"{prefix}_{'a' * 52}"]
    with api.client() as client:
        answers = [client.get("/backfills", headers={"Authorization": f"Bearer {guess}"}) for guess in guesses]
    assert len({answer.text for answer in answers}) == 1
    assert len({str({k: v for k, v in a.headers.items() if k != "date"}) for a in answers}) == 1


# --- with a key that may little ------------------------------------------------------------------------------


def test_nobody_makes_themselves_somebody_else(api):
    key = api.make_key(RUN, READ, name="mallory")
    body = {"query": "SELECT 1", "topic": "orders", "created_by": "key:ann", "actor": "key:ann"}
    with api.client(key, **{"X-Forwarded-User": "ann", "From": "ann@shop.example"}) as client:
        refused = client.post("/backfills", json=body)
    assert refused.status_code == 422
    assert {error["pointer"] for error in refused.json()["errors"]} >= {"/created_by", "/actor"}


# --- bodies and heads ----------------------------------------------------------------------------------------


def test_huge_bodies_are_refused_before_they_are_read(api, admin):
    post = partial(raw, api, key=admin, method="POST")
    assert status_of(post("Content-Length: 1099511627776", body=b"x" * 100)) == 413
    assert status_of(post(f"Content-Length: {'9' * 4000}")) in (400, 413)


def test_a_body_without_an_end_is_refused_at_the_limit(api, admin):
    sent = 0
    with socket.create_connection(("127.0.0.1", api.port), timeout=20) as connection:
        head = f"POST /backfills HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {admin}\r\n"
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        try:
            while sent < 1000 * BODY_BYTES:
                connection.sendall(b"400\r\n" + b" " * 1024 + b"\r\n")
                sent += 1024
        except OSError:
            pass
    assert sent < 1000 * BODY_BYTES


def test_a_body_that_drips_is_cut_off_and_holds_nobody_up(api, admin):
    stop = threading.Event()
    ended = []

    def drip():
        with socket.create_connection(("127.0.0.1", api.port), timeout=20) as connection:
            head = f"POST /backfills HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {admin}\r\n"
            connection.sendall(f"{head}Content-Length: 5000\r\n\r\n".encode())
            connection.settimeout(0.05)
            while not stop.is_set():
                try:
                    connection.sendall(b" ")
                    answer = connection.recv(10_000)
                except TimeoutError:
                    continue
                except OSError:
                    answer = b""
                ended.append(answer)
                return

    threads = [threading.Thread(target=drip, daemon=True) for _ in range(50)]
    for thread in threads:
        thread.start()
    try:
        with api.client(admin) as client:
            assert client.get("/backfills").status_code == 200
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive(), "a body that drips is cut off"
    finally:
        stop.set()
    assert len(ended) == 50
    assert {status_of(answer) for answer in ended if answer} == {408}


@pytest.mark.parametrize(
    "lines",
    [
        ["Content-Length: 5", "Content-Length: 6"],
        ["Content-Length: 5", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked, identity"],
        ["Transfer-Encoding: xchunked"],
        ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
        ["Content-Length: +5"],
        ["Content-Length: 0x5"],
        ["Content-Length : 5"],
        ["Content-Length: 5\x0b"],
    ],
)
def test_one_request_can_t_be_read_as_two(api, admin, lines):
    smuggled = b"0\r\n\r\nGET /audit HTTP/1.1\r\nHost: localhost\r\n\r\n"
    key = f"Authorization: Bearer {admin}"
    head = "\r\n".join(["POST /backfills HTTP/1.1", "Host: localhost", "Connection: close", key, *lines])
    answer = api.send_raw(head.encode("latin-1") + b"\r\n\r\n" + smuggled)
    # At most one answer; and what hides behind a request has no key.
    assert answer.count(b"HTTP/1.1 ") <= 2
    assert b'"entries"' not in answer
    assert status_of(answer) >= 400


def test_a_header_can_t_bring_another_one_along(api, admin):
    evil = "a%0d%0aSet-Cookie:%20x=1%0d%0a%0d%0a<script>"
    admins = partial(raw, api, key=admin)
    answers = [
        admins(path=f"/jobs/{evil}"),
        admins(path=f"/problems/{evil}"),
        admins(path=f"/backfills?page_token={evil}"),
        admins("If-Match: a\x01b", path=f"{JOB}:cancel", method="POST"),
        admins(f"Idempotency-Key: {'x' * 300}", method="POST"),
        admins("Host: evil.example"),
    ]
    for answer in answers:
        head = answer.partition(b"\r\n\r\n")[0].lower()
        assert b"set-cookie" not in head
        assert status_of(answer) in (400, 404, 412, 422)
        assert b"\r\n\r\n<script>" not in answer


def test_many_headers_are_refused(api):
    many = raw(api, *(f"X-{number}: x" for number in range(200)))
    large = raw(api, *(f"X-{number}: {'x' * 1000}" for number in range(30)))
    assert (status_of(many), status_of(large)) == (431, 431)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b'"text"', b"null", b"\xff\xfe"),
        b"[" * 9000,
        b'{"query":' * 900,
        b'{"labels": {' + b",".join(b'"%d": "x"' % n for n in range(600)) + b"}}",
        b'{"query": 1e999999, "topic": -0}',
        b'{"query": "\\u0000", "topic": "\\ud800"}',
        b'{"query": "a", "query": "b"}',
        b'{"__proto__": {}, "constructor": 1}',
        b"\x00" * 5000,
        b"\xff\xfe{\x00}\x00",
        b'{"parameters": {"a": {"type": "INT64", "value": ' + b"9" * 5000 + b"}}}",
        b'{"parameters": {"a": {"type": "' + b"ARRAY<" * 700 + b'", "value": 1}}}',
    ],
)
def test_bodies_made_to_break_a_parser_are_refused(api, admin, content):
    with api.client(admin) as client:
        for path in ("/backfills", "/backfills?validate_only=true"):
            response = client.post(path, content=content, headers={"Content-Type": "application/json"})
            assert response.status_code == 422, response.text
            assert "Traceback" not in response.text


# --- web pages of others -------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8080", "localhost.evil.example", "evil"])
@pytest.mark.parametrize("path", ["/backfills", "/healthz", "/openapi.json", "/docs", "/nothing"])
def test_a_name_that_was_pointed_here_is_refused(open_api, host, path):
    with open_api.client() as client:
        answer = client.get(path, headers={"Host": host})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


def test_a_page_of_another_origin_changes_nothing(open_api):
    with open_api.client() as client:
        before = client.get("/backfills").json()
        for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
            # What a page may send without asking first: a plain form.
            form = {"Content-Type": "text/plain", **headers}
            answer = client.post("/backfills", content=b"{}", headers=form)
            assert answer.status_code == 403
            assert "access-control-allow-origin" not in answer.headers
            assert client.options("/backfills", headers=headers).status_code == 403
        assert client.get("/backfills").json() == before


def test_a_forwarded_address_makes_nobody_local(open_api):
    with open_api.client() as client:
        answer = client.get("/backfills", headers={"X-Forwarded-For": "203.0.113.9"})
    assert answer.status_code == 403


# --- tokens --------------------------------------------------------------------------------------------------


@pytest.fixture
def token_api(start_api, issuer):
    return start_api(
        REFEED_OIDC_ISSUER=issuer.url, REFEED_OIDC_AUDIENCE="refeed", REFEED_RATE_LIMIT_PER_MINUTE="0"
    )


def test_no_token_gets_by_that_the_issuer_did_not_sign_for_this_service(token_api, issuer, generated_key):
    """All that can be wrong with a token is in tests/connectors/oidc/test_tokens.py."""
    scope = "backfills.admin"
    good = issuer.token(scope=scope)
    tokens = {
        "an audience that only begins like it": issuer.token(scope=scope, aud="refeed2"),
        "another issuer": issuer.token(scope=scope, iss=f"{issuer.url}/"),
        "another key": issuer.token(scope=scope, key=generated_key("RS256", 1)),
        "no signature": good.rpartition(".")[0] + ".",
    }
    with token_api.client(good) as client:
        assert client.get("/backfills").status_code == 200
    for name, token in tokens.items():
        with token_api.client(token) as client:
            response = client.get("/backfills")
        assert (name, response.status_code) == (name, 401)
        assert token not in repr(token_api.audit())


def test_a_token_in_the_place_of_a_key_and_a_key_in_the_place_of_a_token_are_nothing(token_api, issuer):
    for token in (f"rf_{issuer.token()}", issuer.token() + "rf_", "rf_" + "a" * 10 + "_" + issuer.token()[:52]):
        with token_api.client(token) as client:
            assert client.get("/backfills").status_code == 401
