"""The terminal against the API as it is served: both mean the same by the same words."""

import json
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from backfill.plan.request import BackfillRequest
from connectors.lake.archive import LakeArchive
from model.declaration import declared_fields
from tests.archive import messages, write_commits

QUERY = "SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE >= @day"
DAY = f"day:DATE:{(datetime.now(UTC).date() - timedelta(days=1)).isoformat()}"


@pytest.fixture(scope="module")
def api(start_api):
    api = start_api()
    rows = messages(1, data=[b'{"n": 1}'], message_id=["m1"])
    write_commits(LakeArchive(str(api.home / "lake"), "backup.messages"), {"orders": rows})
    return api


@pytest.fixture
def backfill(api, refeed, monkeypatch):
    """Runs ``refeed backfill ARGUMENTS`` against the API, in its home."""
    monkeypatch.setenv("REFEED_HOME", str(api.home))
    return partial(refeed, "backfill")


def test_a_plan_is_read_and_quoted(backfill):
    code, text, _ = backfill("planned", "--query", QUERY, "-p", DAY, "--dry-run")
    assert code == 0
    plan_id = text.split()[0]
    assert "1 message -> planned" in text
    assert 'sample     m1: {"n": 1}' in text
    words = ("--query", QUERY, "-p", DAY, "--plan", plan_id)
    code, shown, _ = backfill("planned", *words, "--start-paused", "--json")
    assert (code, json.loads(shown)["plan_id"]) == (0, plan_id)
    code, _, said = backfill("other", *words)
    assert code == 4
    assert "another topic" in said


def test_a_misspelt_topic_is_refused_and_created_when_that_is_asked_for(api, backfill):
    words = ("planed", "--query", QUERY, "-p", DAY)
    for how in ("--dry-run", "--yes"):
        code, _, said = backfill(*words, how)
        assert (code, "topic_not_found" in said, "Did you mean planned?" in said) == (4, True, True)
    assert not api.pubsub.topic_exists("planed")
    code, text, _ = backfill(*words, "--create-topic", "--yes")
    assert (code, "(nobody_receives)" in text) == (0, True)
    assert api.pubsub.topic_exists("planed")


def test_a_backfill_is_made_looked_at_steered_and_ended(backfill, refeed):
    options = ("--start-paused", "--canary", "5", "--label", "team=shop", "--yield-to", "nobody:5")
    words = ("steered", "--query", QUERY, "-p", DAY, "--yes")
    code, _, said = backfill(*words, *options)
    assert code == 4
    assert "nobody" in said
    code, shown, _ = backfill(*words, *options[:5], "--json")
    made = json.loads(shown)
    assert (code, made["state"], made["canary_messages"]) == (0, "PAUSED", 5)
    code, text, _ = refeed("describe", made["id"])
    assert (code, f"refeed resume {made['id']}" in text) == (0, True)
    wanted = ("--state", "paused", "--topic", "steered", "--label", "team=shop", "--since", "1h")
    code, text, _ = refeed("get", "backfills", *wanted)
    assert [line.split()[0] for line in text.splitlines()[1:]] == [made["id"]]
    code, shown, _ = refeed("set", made["id"], "--rate-limit", "7", "--description", "slower", "--json")
    assert json.loads(shown)["rate_limit_messages_per_second"] == 7
    for words in (["pause"], ["missing"], ["dead-letters"], ["logs"]):
        code, _, said = refeed(*words, made["id"])
        assert code == (4 if "missing" in words else 0), said
    code, text, _ = refeed("cancel", made["id"])
    assert (code, "CANCELLED" in text) == (0, True)
    code, _, _ = refeed("watch", made["id"])
    assert code == 1
    code, text, _ = refeed("events", made["id"])
    changes = '/description: "" -> "slower"; /rate_limit_messages_per_second: nothing -> 7.0'
    assert [" ".join(line.split(made["id"])[1].split()) for line in text.splitlines()[:0:-1]] == [
        "created",
        f"changed description, rate_limit_messages_per_second; {changes}",
        "PAUSED -> CANCELLED cancelled",
    ]
    for words in (["resume"], ["approve"], ["revert", "--yes"]):
        assert refeed(*words, made["id"])[0] == 4
    assert refeed("retry", made["id"], "--json")[0] == 0


def test_an_ended_backfill_runs_again_with_the_same_request(backfill, refeed):
    options = ("--canary", "5", "--label", "team=shop", "--rate-limit", "9", "--add-attribute", "a=b")
    _, shown, _ = backfill("steered", "--query", QUERY, "-p", DAY, *options, "--start-paused", "--yes", "--json")
    first = json.loads(shown)
    code, _, said = refeed("rerun", first["id"], "--yes")
    assert (code, "is PAUSED" in said) == (2, True)
    assert refeed("cancel", first["id"])[0] == 0
    code, shown, said = refeed("rerun", first["id"][:-1], "--yes", "--json")
    assert code == 0, said
    again = json.loads(shown)
    assert (again["id"] != first["id"], again["state"]) == (True, "PAUSED")
    names = [each.name for each in declared_fields(BackfillRequest) if each.name != "plan_id"]
    assert {name: again[name] for name in names} == {name: first[name] for name in names}
    assert refeed("cancel", again["id"])[0] == 0


def test_a_backfill_that_went_on_after_its_canary_runs_again_with_it(backfill, refeed):
    options = ("-p", DAY, "--canary", "5", "--start-paused", "--yes", "--json")
    code, shown, said = backfill("replay", "--query", QUERY, *options)
    assert code == 0, said
    first = json.loads(shown)
    assert refeed("resume", first["id"])[0] == 0
    refeed("cancel", first["id"], "--watch")
    code, shown, said = refeed("rerun", first["id"], "--yes", "--json")
    assert (code, json.loads(shown)["canary"]["messages"]) == (0, 5), said
    assert refeed("cancel", json.loads(shown)["id"])[0] == 0
