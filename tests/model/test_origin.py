import pytest

from model.origin import find_foreign, find_proxy


def scope_of(client=("127.0.0.1", 9), method="POST", **headers):
    given = {"host": "127.0.0.1:8080", **{name.replace("_", "-"): value for name, value in headers.items()}}
    raw = [(name.encode(), value.encode("latin-1")) for name, value in given.items() if value is not None]
    return {"type": "http", "scheme": "http", "method": method, "client": client, "headers": raw}


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8080", "localhost:8080", "LOCALHOST", "[::1]:8080", "[::1]", "127.8.9.1:80"]
)
def test_this_machine_s_names_are_let_through(host):
    assert find_foreign(scope_of(host=host)) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "localhost.",
        "evil.example#localhost",
        "evil.example/localhost",
        "localhost/evil",
        "evil@127.0.0.1",
        "127.0.0.1@evil.example",
        "127.0.0.1:8080:evil",
        "127.0.0.1, evil.example",
        "0.0.0.0",
        "2130706433",
        "127.1",
        "0x7f.1",
        "[::1",
        "::1]",
        "",
        " ",
        "localhost:99999999",
        "10.0.0.7",
        "[::ffff:10.0.0.7]",
        None,
    ],
)
def test_other_names_are_refused_wherever_they_lead(host):
    assert find_foreign(scope_of(host=host)) is not None


def test_two_hosts_are_refused():
    scope = scope_of()
    scope["headers"].append((b"host", b"localhost"))
    assert find_foreign(scope) is not None


@pytest.mark.parametrize("address", ["10.0.0.7", "192.168.1.1", "::2", "testclient", ""])
def test_callers_from_elsewhere_are_refused(address):
    assert find_foreign(scope_of(client=(address, 9))) is not None


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "https://127.0.0.1:8080"},
        {"origin": "http://127.0.0.1:3000"},
        {"origin": "http://localhost:8080"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"},
    ],
)
def test_pages_of_other_origins_are_refused(headers):
    assert find_foreign(scope_of(**headers)) is not None


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("POST", {"origin": "http://127.0.0.1:8080", "sec_fetch_site": "same-origin"}),
        ("GET", {"sec_fetch_site": "none", "sec_fetch_mode": "navigate"}),
        ("GET", {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}),
        ("GET", {}),
    ],
)
def test_its_own_pages_links_and_programs_are_let_through(method, headers):
    assert find_foreign(scope_of(method=method, **headers)) is None


@pytest.mark.parametrize(
    "headers",
    [
        {"forwarded": "for=192.0.2.60;proto=https"},
        {"x_forwarded_for": "192.0.2.60"},
        {"x_forwarded_proto": "https"},
        {"x_forwarded_host": "refeed.shop.example"},
        {"via": "1.1 caddy"},
        {"x_real_ip": "192.0.2.60"},
        {"X_Forwarded_Anything": ""},
    ],
)
def test_what_a_proxy_adds_gives_it_away(headers):
    assert find_proxy(scope_of(**headers)) is not None


def test_http_1_0_gives_a_bare_proxy_away_and_a_local_program_is_none():
    assert find_proxy({**scope_of(), "http_version": "1.0"}) == "HTTP/1.0"
    assert find_proxy({**scope_of(), "http_version": "1.1"}) is None
