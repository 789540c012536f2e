from datetime import UTC, datetime, timedelta

import pytest

import jobs.keys
from jobs.keys import Keyring
from model.errors import RequestInvalidError, UnauthenticatedError
from model.principal import ADMIN, READ, RUN


@pytest.fixture
def keyring(store):
    return Keyring(store)


def refusal_of(keyring: Keyring, token: str) -> str:
    with pytest.raises(UnauthenticatedError) as raised:
        keyring.authenticate(token)
    assert token[-20:] not in raised.value.message
    return raised.value.details["why"]


def test_a_key_says_who_it_is_and_what_it_may(keyring):
    _, token = keyring.create("ci", [RUN, READ], topics=["orders", "test-*"])
    principal = keyring.authenticate(token)
    assert (principal.name, principal.scopes) == ("key:ci", {READ, RUN})
    assert principal.may(RUN)
    assert not principal.may(ADMIN)
    assert principal.may_publish_to("test-7")
    assert not principal.may_publish_to("payments")


def test_nothing_of_a_secret_is_kept(keyring, tmp_path):
    key, token = keyring.create("ci", [READ])
    secret = token.rpartition("_")[2]
    assert secret not in repr(key)
    assert token.startswith(f"rf_{key.prefix}_")
    for file in tmp_path.iterdir():
        assert secret.encode() not in file.read_bytes()


def test_two_keys_have_nothing_in_common(keyring):
    made = [keyring.create("ci", [READ]) for _ in range(2)]
    assert len({key.digest for key, _ in made}) == len({key.prefix for key, _ in made}) == 2
    assert len({token for _, token in made}) == 2


def test_a_key_whose_time_is_over_is_refused(keyring, store):
    ends_at = datetime.now(UTC) + timedelta(milliseconds=300)
    key, token = keyring.create("ci", [READ], expires_at=ends_at)
    keyring.authenticate(token)
    while datetime.now(UTC) < ends_at:
        pass
    assert refusal_of(keyring, token) == f"rf_{key.prefix} has expired"


def test_a_name_means_the_key_that_has_not_expired(keyring):
    ends_at = datetime.now(UTC) + timedelta(milliseconds=50)
    keyring.create("ci", [READ], expires_at=ends_at)
    key, _ = keyring.create("ci", [READ])
    while datetime.now(UTC) < ends_at:
        pass
    assert keyring.revoke("ci").id == key.id


def test_a_revoked_key_is_refused_and_stays_in_the_list(keyring):
    key, token = keyring.create("ci", [READ])
    revoked = keyring.revoke(f"rf_{key.prefix}")
    assert revoked.revoked_at is not None
    assert keyring.revoke(key.id).revoked_at == revoked.revoked_at
    assert refusal_of(keyring, token) == f"rf_{key.prefix} was revoked"
    assert keyring.list_keys() == [revoked]
    assert not keyring.is_empty()


@pytest.mark.parametrize(
    "token", ["rf_", "rf_a_b", "rf_aaaaaaaaaa_" + "a" * 53, "rf_AAAAAAAAAA_" + "a" * 52, "rf_é\udcff"]
)
def test_what_does_not_look_like_a_key_is_refused(keyring, token):
    assert refusal_of(keyring, token) == "it does not look like a key"


def test_known_and_unknown_prefixes_take_the_same_comparisons(keyring, monkeypatch):
    key, token = keyring.create("ci", [READ])
    compared = []
    compare = jobs.keys.is_same_digest

    def count(left, right):
        compared.append((len(left), len(right)))
        return compare(left, right)

    monkeypatch.setattr(jobs.keys, "is_same_digest", count)
    wrong = "a" * 52
    assert refusal_of(keyring, f"rf_{key.prefix}_{wrong}") == f"rf_{key.prefix} came with a wrong secret"
    known = compared.copy()
    compared.clear()
    refusal_of(keyring, f"rf_aaaaaaaaaa_{wrong}")
    unknown = compared.copy()
    compared.clear()
    keyring.authenticate(token)
    assert known == unknown == compared == [(64, 64)]


def test_the_last_use_is_noted_once_a_minute(keyring, store, monkeypatch):
    key, token = keyring.create("ci", [READ])
    touched = []
    touch = store.touch_key

    def count(key_id, at):
        touched.append(at)
        touch(key_id, at)

    monkeypatch.setattr(store, "touch_key", count)
    for _ in range(3):
        keyring.authenticate(token)
    assert len(touched) == 1
    assert store.find_key(key.prefix).last_used_at == touched[0]


def test_every_fault_of_a_new_key_is_named(keyring):
    with pytest.raises(RequestInvalidError) as raised:
        keyring.create(
            "a\nb", ["backfills.root"], topics=["no topic", "or*"], expires_at=datetime(2020, 1, 1, tzinfo=UTC)
        )
    pointers = [error["pointer"] for error in raised.value.details["errors"]]
    assert pointers == ["/name", "/scopes", "/topics", "/expires_at"]
    assert keyring.is_empty()
    with pytest.raises(RequestInvalidError):
        keyring.create("ci", [])
