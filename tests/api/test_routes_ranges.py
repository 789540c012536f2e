"""Backfills of a topic and a range, over HTTP and in the terminal: the written query is a query like any other."""

import io
import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from client.api import RefeedApi
from connectors.lake.archive import LakeArchive
from model.moment import render_moment
from model.principal import PLAN, READ, RUN
from tests.api.backfills import assert_problem
from tests.archive import messages, write_commits

START = datetime.now(UTC) - timedelta(hours=3)
END = START + timedelta(hours=1)
TICK = timedelta(microseconds=1)
RANGE = {"source_topic": "sales", "from": render_moment(START), "to": render_moment(END)}


@pytest.fixture(scope="module")
def api(start_api):
    """An API whose archive has messages at both edges of an hour: m1 and m2 are within."""
    return fill(start_api())


def fill(api: Any) -> Any:
    for topic in ("sales", "trial"):
        api.pubsub.create_topic(topic)
    times = [START - TICK, START, END - TICK, END]
    rows = messages(len(times), publish_time=times)
    write_commits(LakeArchive(str(api.home / "lake"), "backup.messages"), {"sales": rows, "gone": rows})
    return api


def test_a_plan_shows_the_query_that_was_written_and_runs_with_its_id(client):
    plan = client.post("/backfills?validate_only=true", json=RANGE).json()
    assert (plan["topic"], plan["rows"], plan["rows_by_topic"]) == ("sales", 2, {"sales": 2})
    assert {sample["message_id"] for sample in plan["samples"]} == {"m1", "m2"}
    assert plan["replays"]["column"] == "publish_time"
    assert [datetime.fromisoformat(plan["replays"][name]) for name in ("from", "to")] == [START, END]
    kept = client.get(f"/plans/{plan['plan_id']}").json()
    assert kept["request"]["query"] == kept["query"] == plan["query"]
    asked = {**RANGE, "plan_id": plan["plan_id"], "start_paused": True}
    made = client.post("/backfills", json=asked, headers={"Idempotency-Key": "sales-1"})
    assert made.status_code == 202, made.text
    assert (made.json()["query"], made.json()["topic"]) == (plan["query"], "sales")
    again = client.post("/backfills", json=asked, headers={"Idempotency-Key": "sales-1"})
    assert again.json()["id"] == made.json()["id"]
    other = {**asked, "to": render_moment(END - TICK)}
    assert_problem(client.post("/backfills", json=other), 409, "plan_mismatch")


def test_the_query_that_was_written_is_the_same_request_as_the_range(client):
    plan = client.post("/backfills?validate_only=true", json=RANGE).json()
    asked = {"query": plan["query"], "topic": "sales"}
    assert client.post("/backfills?validate_only=true", json=asked).json()["query"] == plan["query"]


@pytest.mark.parametrize(
    ("narrowing", "found"),
    [
        ({"source_attributes": {"n": "1"}}, {"m1"}),
        ({"source_attributes": {"n": "1"}, "where": "message_id = 'm2'"}, set()),
        ({"where": "message_id = 'm2' OR message_id = 'm3'"}, {"m2"}),
        ({"where": "message_id = @id", "parameters": {"id": {"type": "STRING", "value": "m1"}}}, {"m1"}),
    ],
)
def test_attributes_and_a_condition_narrow_the_range(client, narrowing, found):
    plan = client.post("/backfills?validate_only=true", json={**RANGE, "topic": "trial", **narrowing}).json()
    assert {sample["message_id"] for sample in plan["samples"]} == found
    assert plan["topic"] == "trial"


def test_the_query_of_a_range_is_checked_and_runs_nowhere(client):
    found = client.post("/queries:check", json={**RANGE, "where": "n = 1", "source_attributes": {"a": "b"}}).json()
    ((line, code),) = ((each["line"], each["code"]) for each in found["findings"])
    assert (found["passes"], code, found["query"].splitlines()[line - 1]) == (False, "column_unknown", "n = 1")
    assert client.post("/queries:check", json=RANGE).json()["passes"]
    for asked, pointers in (
        ({"source_topic": "sales"}, ["/from", "/to"]),
        ({**RANGE, "query": "SELECT 1"}, ["/source_topic", "/from", "/to"]),
        ({**RANGE, "where": "TRUE) OR (TRUE"}, ["/where"]),
        ({**RANGE, "topic": "sales"}, ["/topic"]),
    ):
        problem = assert_problem(client.post("/queries:check", json=asked), 422, "request_invalid")
        assert [fault["pointer"] for fault in problem["errors"]] == pointers


@pytest.mark.parametrize("path", ["/backfills", "/backfills?validate_only=true"])
@pytest.mark.parametrize(
    ("changes", "code", "pointers"),
    [
        ({"query": "SELECT 1"}, "request_invalid", ["/source_topic", "/from", "/to", "/topic"]),
        ({"from": RANGE["to"], "to": RANGE["from"]}, "request_invalid", ["/to"]),
        ({"to": "2h"}, "topic_not_found", ["/topic"]),
        ({"to": "9999-01-01"}, "request_invalid", ["/to"]),
        ({"where": "TRUE) OR (_PARTITIONDATE = CURRENT_DATE()"}, "request_invalid", ["/where"]),
        ({"where": "nothing = 1"}, "request_invalid", ["/where"]),
        ({"where": "message_id IN (SELECT id FROM ops.secrets)"}, "request_invalid", ["/where"]),
        ({"from_": "2h"}, "request_invalid", ["/from_"]),
        ({"from": render_moment(END - timedelta(days=340))}, "request_invalid", ["/from"]),
        # A variable that is not set must not widen a replay, nor send it to its own topic.
        ({"where": ""}, "request_invalid", ["/where"]),
        ({"topic": ""}, "request_invalid", ["/topic"]),
    ],
)
def test_a_fault_has_its_place_on_every_way(client, path, changes, code, pointers):
    asked = {**RANGE, **changes} if code != "topic_not_found" else {**RANGE, **changes, "source_topic": "gone"}
    problem = assert_problem(client.post(path, json=asked), 422, code)
    assert [fault["pointer"] for fault in problem["errors"]] == pointers


def test_two_hours_of_a_topic_may_be_replayed_at_once_and_one_hour_only_once(client):
    made = []
    for begin, end, status in ((2, 3, 202), (3, 4, 202), (2.9, 3.5, 409)):
        times = {"from": START - timedelta(hours=end), "to": START - timedelta(hours=begin)}
        asked = {**RANGE, **{name: render_moment(moment) for name, moment in times.items()}, "start_paused": True}
        plan = client.post("/backfills?validate_only=true", json=asked).json()
        assert ("backfill_overlaps" in {each["code"] for each in plan["warnings"]}) == (status == 409)
        answer = client.post("/backfills", json={**asked, "allow_empty": True})
        assert answer.status_code == status, answer.text
        made += [answer.json()["id"]] if status == 202 else []
    for each in made:
        client.post(f"/jobs/{each}:cancel")


def test_a_caller_may_publish_to_a_range_s_own_topic_only_with_a_key_of_it(start_api):
    api = fill(start_api())
    key = api.make_key(READ, PLAN, RUN, name="trial", topics=("trial",))
    with api.client(key) as client:
        assert_problem(client.post("/backfills?validate_only=true", json=RANGE), 403, "forbidden")
        assert client.post("/backfills?validate_only=true", json={**RANGE, "topic": "trial"}).status_code == 200


def test_the_terminal_plans_asks_and_publishes_without_sql(client, refeed, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    words = ("backfill", "sales", "--from", RANGE["from"], "--to", RANGE["to"])
    code, printed, _ = refeed(*words, "--dry-run")
    assert code == 0
    for part in (
        f"sales from {RANGE['from']} to {RANGE['to']}, by publish time",
        f"AND publish_time >= TIMESTAMP '{RANGE['from']}'",
        "Up to 31 days can pass between publication and archiving",
        "2 messages -> sales",
        "To publish, run the command without --dry-run.",
    ):
        assert part in printed
    assert "--plan" not in printed
    assert client.get("/backfills", params={"label": "by:terminal"}).json()["backfills"] == []
    code, _, said = refeed(*words, "--label", "by=terminal")
    assert code == 1
    assert "Publish 2 messages to sales?" in said
    assert "To answer yes, use --yes." in said
    assert client.get("/backfills", params={"label": "by:terminal"}).json()["backfills"] == []
    narrowed = ("--attribute", "n=1", "--where", "message_id = @id", "-p", "id:STRING:m1", "--to-topic", "trial")
    code, printed, _ = refeed(*words, *narrowed, "--label", "by=terminal", "--start-paused", "--yes", "--json")
    assert code == 0
    made = json.loads(printed)
    assert (made["topic"], made["state"], made["plan_id"] is None) == ("trial", "PAUSED", False)
    assert "a.key = 'n' AND a.value = '1'" in made["query"]
    client.post(f"/jobs/{made['id']}:cancel")


def test_several_topics_get_a_backfill_each_and_none_is_made_if_one_is_wrong(client, refeed, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    words = ("--from", RANGE["from"], "--to", RANGE["to"], "--to-topic", "trial", "--label", "by=two")
    code, _, said = refeed("backfill", "sales", "gone", "sales", *words)
    assert (code, "Publish 2 messages to trial and 2 messages to trial?" in said) == (1, True)
    for wrong in ("nobody", "--from"):
        assert refeed("backfill", "sales", wrong, *words, "--yes")[0] != 0
    assert client.get("/backfills", params={"label": "by:two"}).json()["backfills"] == []
    code, printed, _ = refeed("backfill", "sales", "gone", *words, "--yes", "--json", "--start-paused")
    made = [json.loads(line) for line in printed.splitlines()]
    assert code == 0
    assert ["topic = 'sales'" in each["query"] for each in made] == [True, False]
    assert ["topic = 'gone'" in each["query"] for each in made] == [False, True]
    for each in made:
        client.post(f"/jobs/{each['id']}:cancel")


def test_the_terminal_reads_a_time_of_day_as_the_last_one_and_prints_it_in_full(refeed):
    begin = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=1)
    code, printed, _ = refeed("backfill", "sales", "--from", f"{begin:%H:%M}", "--dry-run", "--json")
    assert (code, json.loads(printed)["replays"]["from"]) == (0, render_moment(begin))
    code, _, said = refeed("backfill", "sales", "--from", "1h", "--to", "2h", "--yes")
    assert (code, said.count("is not after --from")) == (2, 1), said


def test_a_time_of_day_at_the_end_is_the_last_one_or_has_not_come_yet_since_the_start(refeed, client):
    begin = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(hours=2)
    end, coming = begin + timedelta(hours=1), begin + timedelta(hours=3)
    words = ("--from", render_moment(begin), "--dry-run", "--json")
    code, printed, said = refeed("backfill", "sales", *words, "--to", f"{end:%H:%M}")
    assert (code, json.loads(printed)["replays"]["to"]) == (0, render_moment(end)), said
    code, _, said = refeed("backfill", "sales", *words[:2], "--to", f"{coming:%H:%M}")
    assert (code, "For a range that ends now, leave out --to." in said) == (2, True), said
    asked = {"source_topic": "sales", "from": render_moment(begin)}
    plan = client.post("/backfills?validate_only=true", json={**asked, "to": f"{end:%H:%M}"})
    assert plan.json()["replays"]["to"] == render_moment(end), plan.text
    refused = client.post("/backfills?validate_only=true", json={**asked, "to": f"{coming:%H:%M}"})
    assert (refused.status_code, "has not come yet" in refused.json()["detail"]) == (422, True), refused.text


def test_messages_that_wait_for_the_backup_are_named_before_a_replay(refeed, monkeypatch):
    topics = {"topics": [{"topic": "sales", "backlog_messages": 1200}, {"topic": "orders", "backlog_messages": 0}]}
    monkeypatch.setattr(RefeedApi, "list_topics", lambda _: topics)
    words = ("sales", "orders", "--from", RANGE["from"], "--to", RANGE["to"], "--dry-run")
    code, _, said = refeed("backfill", *words)
    assert code == 0
    assert (
        "warning: 1,200 messages of sales wait in its backup subscription, and the archive does not have" in said
    )
    assert "messages of orders wait" not in said


def test_a_range_without_a_message_is_said_with_topics_that_are_close(client, refeed):
    words = ("--from", RANGE["from"], "--to", RANGE["to"], "--to-topic", "trial")
    code, _, said = refeed("backfill", "sale", *words, "--yes")
    assert code == 1
    assert "The archive has no message of sale in this range. Did you mean sales?" in said
    code, _, said = refeed("backfill", "sales", *words, "--attribute", "n=x", "--yes")
    assert code == 1
    assert "The archive has no message of sales in this range that fulfils the conditions." in said
    assert refeed("backfill", "sale", *words, "--dry-run")[0] == 0
    assert refeed("backfill", "sale", *words, "--dry-run", "--fail-if-empty")[0] == 1


def test_a_topic_that_does_not_exist_gets_the_one_that_is_close(refeed):
    code, _, said = refeed("backfill", "slaes", "--from", "2h")
    assert code == 4
    assert "Did you mean sales?" in said
