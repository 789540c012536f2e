from datetime import UTC, datetime, timedelta

import pytest

from jobs.keys import Keyring
from jobs.sessions import SessionDesk
from model.errors import UnauthenticatedError
from model.principal import READ


@pytest.fixture
def keyring(store):
    return Keyring(store)


@pytest.fixture
def desk(store, keyring):
    return SessionDesk(store, keyring)


def test_neither_key_nor_token_lies_in_the_store(desk, keyring, tmp_path):
    _, key = keyring.create("ann", [READ])
    _, token = desk.open(key)
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert token.encode() not in kept
    assert key.encode() not in kept


def test_a_session_ends_with_its_key_or_after_half_a_day(desk, keyring, monkeypatch):
    soon = datetime.now(UTC) + timedelta(hours=1)
    _, short = keyring.create("short", [READ], expires_at=soon)
    assert desk.open(short)[0].expires_at == soon
    _, long = keyring.create("long", [READ])
    monkeypatch.setattr("jobs.sessions._LIFE", timedelta(seconds=-1))
    _, token = desk.open(long)
    with pytest.raises(UnauthenticatedError) as refused:
        desk.authenticate(token)
    assert refused.value.details["why"] == "the session has expired"


@pytest.mark.parametrize("token", ["", "rs_", "rs_" + "a" * 43, "rs_" + "a" * 44, "rs_\udcff", "rf_x"])
def test_what_is_no_session_is_refused(desk, token):
    with pytest.raises(UnauthenticatedError):
        desk.authenticate(token)
