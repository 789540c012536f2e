import pytest

from model.errors import ForbiddenError, SettingsError
from model.principal import ADMIN, APPROVE, LOCAL, PLAN, READ, RUN, SCOPES, Principal, parse_grants
from model.settings import read_settings
from model.variables import is_loopback_name


def test_admins_and_this_machine_may_do_everything():
    for principal in (LOCAL, Principal("key:ann", frozenset({ADMIN}))):
        for scope in SCOPES:
            principal.require(scope)
        principal.require_topic("anything")


def test_a_scope_holds_nothing_but_itself():
    for held in (READ, PLAN, RUN, APPROVE):
        principal = Principal("key:bob", frozenset({held}))
        assert [scope for scope in SCOPES if principal.may(scope)] == [held]


def test_what_is_missing_is_named_with_whom():
    with pytest.raises(ForbiddenError, match=r"backfills\.run.*key:bob"):
        Principal("key:bob", frozenset({READ})).require(RUN)
    with pytest.raises(ForbiddenError, match=r"key:bob.*payments"):
        Principal("key:bob", frozenset({RUN}), ("orders",)).require_topic("payments")


def test_no_topics_are_none_and_not_all():
    nowhere = Principal("key:bob", frozenset({RUN}), ())
    assert not nowhere.may_publish_to("orders")


@pytest.mark.parametrize("topic", ["orders", "order", "orders-2", "Orders", "", "x-orders"])
def test_a_topic_is_meant_whole_unless_it_ends_in_a_star(topic):
    assert Principal("a", frozenset(), ("orders",)).may_publish_to(topic) == (topic == "orders")
    assert Principal("a", frozenset(), ("order*",)).may_publish_to(topic) == topic.startswith("order")


@pytest.mark.parametrize(
    "text",
    ["email=ann", "ann:backfills.read", "email=ann:backfills.root", "=a:backfills.read", "email=:backfills.read"],
)
def test_a_grant_that_says_nothing_is_refused(text):
    with pytest.raises(ValueError, match=r"claim=value:scope,scope|no such scope"):
        parse_grants(text)


def test_a_claim_may_have_an_address_as_its_name_and_a_colon_in_its_value():
    (grant,) = parse_grants("https://shop.example/roles=team:ops:backfills.read, backfills.run;")
    assert (grant.claim, grant.value, grant.scopes) == ("https://shop.example/roles", "team:ops", {READ, RUN})


@pytest.mark.parametrize(
    "address",
    [
        *("http://login.example", "ftp://login.example", "https://", "https://ann:secret@login.example"),
        *("https://login.example\\@evil.example", "https://login.example/ x", "login.example"),
        "file:///etc/passwd",
    ],
)
@pytest.mark.parametrize("name", ["REFEED_OIDC_ISSUER", "REFEED_OIDC_JWKS_URL", "REFEED_NOTIFY_URL"])
def test_an_address_without_tls_or_with_a_secret_is_refused(name, address):
    with pytest.raises(SettingsError, match=name):
        read_settings({"HOME": "/home/ada", name: address})


def test_what_belongs_together_is_asked_for_together():
    with pytest.raises(SettingsError) as raised:
        read_settings({"REFEED_OIDC_ISSUER": "https://a.example", "REFEED_NOTIFY_URL": "https://b.example"})
    assert "REFEED_OIDC_AUDIENCE" in raised.value.message
    assert "REFEED_NOTIFY_SECRET" in raised.value.message


@pytest.mark.parametrize("secret", ["s3cr3t", "whsec_czNjcjN0", "whsec_***", "czNjcjN0" * 8])
def test_a_secret_that_is_wrong_is_not_repeated(secret):
    with pytest.raises(SettingsError) as raised:
        read_settings({"REFEED_NOTIFY_SECRET": secret})
    assert secret not in repr(raised.value.details) + raised.value.message
    assert "REFEED_NOTIFY_SECRET" in raised.value.message


@pytest.mark.parametrize("name", ["", "0.0.0.0", "localhost.example", "127.0.0.1.example", "10.0.0.1", "::"])
def test_other_names_are_not_loopback(name):
    assert not is_loopback_name(name)
