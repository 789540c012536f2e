import pytest

from connectors.oidc.jwks import SigningKeys
from model.errors import IdentityUnavailableError


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def keys(issuer, clock):
    return SigningKeys(issuer.url, clock=clock)


def test_keys_are_where_discovery_says(issuer, keys):
    found = keys.find("one")
    assert found["kid"] == "one"
    assert issuer.fetched == ["/.well-known/openid-configuration", "/keys"]


def test_a_given_address_needs_no_discovery(issuer, clock):
    assert SigningKeys("https://elsewhere.example", f"{issuer.url}/mine", clock=clock).find("one") is not None
    assert issuer.fetched == ["/mine"]


def test_known_keys_are_not_fetched_again_until_they_are_old(issuer, keys, clock):
    for _ in range(50):
        keys.find("one")
    assert len(issuer.fetched) == 2
    clock.now += 3600
    issuer.keys.clear()
    issuer.publish("two")
    assert keys.find("one") is None
    assert len(issuer.fetched) == 4


def test_made_up_ids_do_not_let_anybody_flood_the_issuer(issuer, keys, clock):
    for number in range(100):
        assert keys.find(f"made up {number}") is None
    assert len(issuer.fetched) == 2
    clock.now += 31
    issuer.publish("new")
    assert keys.find("new") is not None


def test_an_issuer_that_fails_is_said_and_asked_again_later(issuer, keys, clock):
    issuer.status = 503
    for _ in range(10):
        with pytest.raises(IdentityUnavailableError):
            keys.find("one")
    assert len(issuer.fetched) == 1
    issuer.status = 200
    clock.now += 31
    assert keys.find("one") is not None


def test_known_keys_count_for_a_day_while_the_issuer_is_away(issuer, keys, clock):
    keys.find("one")
    issuer.status = 503
    clock.now += 7200
    assert keys.find("one") is not None
    with pytest.raises(IdentityUnavailableError):
        keys.find("two")
    clock.now += 86_400
    with pytest.raises(IdentityUnavailableError):
        keys.find("one")


def test_a_redirect_is_not_followed(issuer, keys):
    issuer.status = 302
    with pytest.raises(IdentityUnavailableError):
        keys.find("one")
    assert issuer.fetched == ["/.well-known/openid-configuration"]


@pytest.mark.parametrize(
    "changes",
    [{"issuer": "http://127.0.0.1:1"}, {"jwks_uri": None}, {"jwks_uri": 7}, {"jwks_uri": "file:///etc/passwd"}],
)
def test_a_discovery_document_that_is_not_the_issuers_does_not_count(issuer, keys, changes):
    issuer.discovery |= changes
    with pytest.raises(IdentityUnavailableError):
        keys.find("one")


def test_keys_for_encryption_and_nonsense_are_left_out(issuer, keys):
    issuer.publish("secret", use="enc")
    issuer.keys += ["nonsense", {"kid": ["a", "list"], "kty": "RSA"}]
    assert keys.find("one") is not None
    assert keys.find("secret") is None


def test_without_an_id_the_only_key_is_meant(issuer, keys, clock):
    assert keys.find(None) is not None
    issuer.publish("two")
    clock.now += 3600
    assert keys.find(None) is None


def test_more_than_a_key_set_can_be_is_not_read(issuer, keys):
    issuer.discovery["padding"] = "x" * 1024 * 1024
    with pytest.raises(IdentityUnavailableError):
        keys.find("one")
