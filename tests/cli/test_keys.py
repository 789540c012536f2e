import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

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


def test_a_key_is_revoked_by_its_name_if_no_other_active_key_has_it(refeed):
    first, second = (json.loads(refeed("key", "create", "ci", "--scope", "read", "--json").out) for _ in range(2))
    both = refeed("key", "revoke", "ci")
    assert both.code == 1
    assert [made["id"] in both.err for made in (first, second)] == [True, True]
    assert refeed("key", "revoke", first["id"]).code == 0
    assert json.loads(refeed("key", "revoke", "ci", "--json").out)["id"] == second["id"]
    assert "refeed key list" in refeed("key", "revoke", "ci").err


def test_the_first_key_says_before_it_is_made_what_it_changes(refeed):
    first = refeed("key", "create", "ci", "--scope", "run")
    said = " ".join(first.err.split())
    assert said.startswith("This is the first key. After it is created, the API refuses calls without a key.")
    assert "does not have the scope backfills.admin" in said
    assert "REFEED_API_KEY" in said
    assert "first key" not in refeed("key", "create", "ann", "--scope", "admin").err
    assert "backfills.run" in refeed("key", "list").out


@pytest.mark.parametrize(
    "command",
    ["query", "attach", "detach", "publish", "source publish", "key create", "archive expire", "release add"],
)
def test_a_command_that_no_key_limits_says_so_in_its_help(refeed, command):
    said = " ".join(refeed(*command.split(), "--help").out.split())
    assert "of REFEED_API_KEY do not limit it" in said


def test_what_is_wrong_with_a_key_is_said_and_nothing_is_made(refeed):
    wrong = refeed("key", "create", "c\ti", "--scope", "root", "--topic", "no topic")
    assert wrong.code == 2
    assert [line in wrong.err for line in ("/name", "/scopes", "/topics")] == [True] * 3
    assert json.loads(refeed("key", "list", "--json").out) == []


def test_revoking_what_is_not_there_is_an_error(refeed):
    result = refeed("key", "revoke", "ky_nothing")
    assert result.code == 1
    assert "key_not_found" in result.err
