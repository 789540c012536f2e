import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from jobs.keys import Keyring
from jobs.store import JobStore
from model.principal import READ, RUN


def entries(home: Path) -> list[tuple[str, str, str | None]]:
    store = JobStore(home / "jobs.db")
    try:
        return [(e.action, e.outcome, e.why) for e in store.list_audit(100)[::-1]]
    finally:
        store.close()


def test_a_key_is_shown_once_and_opens_what_it_says(refeed, home):
    made = refeed("key", "create", "ci", "--scope", "read", "--scope", "backfills.run", "--topic", "orders")
    token = made.out.strip()
    assert made.code == 0
    assert "can't be shown again" in made.err
    assert "refuses calls without a key" in made.err
    store = JobStore(home / "jobs.db")
    principal = Keyring(store).authenticate(token)
    store.close()
    assert (principal.name, principal.scopes, principal.topics) == ("key:ci", {READ, RUN}, ("orders",))
    listed = refeed("key", "list")
    assert token not in listed.out
    assert token[:13] in listed.out
    assert entries(home) == [("createKey", "done", "ci: backfills.read, backfills.run")]


def test_a_key_ends_after_a_year_unless_something_else_is_said(refeed):
    def expiry(*arguments):
        made = json.loads(refeed("key", "create", "ci", "--scope", "read", "--json", *arguments).out)
        return made["expires_at"]

    for days, arguments in ((365, ()), (7, ("--days", "7"))):
        ends_at = datetime.fromisoformat(expiry(*arguments) or "")
        assert abs(ends_at - datetime.now(UTC) - timedelta(days=days)) < timedelta(minutes=5)
    assert expiry("--days", "0") is None


def test_a_revoked_key_is_listed_as_such(refeed, home):
    made = json.loads(refeed("key", "create", "ci", "--scope", "admin", "--json").out)
    revoked = refeed("key", "revoke", made["prefix"], "--json")
    assert json.loads(revoked.out)["state"] == "revoked"
    (listed,) = json.loads(refeed("key", "list", "--json").out)
    assert (listed["id"], listed["state"]) == (made["id"], "revoked")
    assert "key" not in listed
    assert "digest" not in listed
    assert entries(home)[-1] == ("revokeKey", "done", "ci")
    store = JobStore(home / "jobs.db")
    found = store.list_last_events(limit=9, of=("key", "ci"), with_keys=True)
    assert [event.what for event in found] == ["revoked", "created"]
    assert {event.actor for event in found} == {store.list_audit(1)[0].actor}
    store.close()


def test_what_is_wrong_with_a_key_is_said_and_nothing_is_made(refeed):
    wrong = refeed("key", "create", "c\ti", "--scope", "root", "--topic", "no topic")
    assert wrong.code == 2
    assert [line in wrong.err for line in ("/name", "/scopes", "/topics")] == [True] * 3
    assert json.loads(refeed("key", "list", "--json").out) == []


def test_revoking_what_is_not_there_is_an_error(refeed):
    result = refeed("key", "revoke", "ky_nothing")
    assert result.code == 1
    assert "key_not_found" in result.err
