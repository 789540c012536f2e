"""An ended job runs again from a form that has its request, over a real API."""

import json
import re
from datetime import UTC, datetime, timedelta
from html import unescape

import pytest

from backfill.plan.request import BackfillRequest
from console.new_backfill import OPTIONS
from console.range_query import read_range
from model.declaration import declared_fields
from model.job import JobState
from model.plain_yaml import read_yaml
from pipeline.registry import Registry
from sql.range_query import write_range_query
from tests.console.test_jobs import add_compaction, add_merge
from tests.console.yard import make_yard, token_of
from tests.waiting import wait_until

START = datetime(2026, 1, 10, 2, tzinfo=UTC)
END = START + timedelta(hours=1)
OF_THE_FORM = {
    *("query", "topic", "parameters", "description", "labels", "rate_limit_messages_per_second"),
    *("canary_messages", "plan_id"),
}


@pytest.fixture(scope="module")
def yard(start_api):
    return make_yard(start_api)


def form_of(page):
    """Return what the page's form would send as it stands."""
    text = page.text.split("<main")[1]
    inputs = re.findall(r'<input id="\w+" name="(\w+)" value="([^"]*)"', text)
    areas = re.findall(r'<textarea[^>]* name="(\w+)"[^>]*>\n?(.*?)</textarea>', text, re.DOTALL)
    return {name: unescape(value) for name, value in (*inputs, *areas)} | {"form_token": token_of(page)}


def ended(yard, client, **request):
    made = client.post("/backfills", json=request)
    assert made.status_code == 202, made.text
    job = made.json()["id"]
    # Nothing here carries jobs out.
    wait_until(lambda: yard.api.store.get(job).state is JobState.FAILED, "it fails")
    return job


def test_a_backfill_runs_again_with_everything_that_was_asked_for(yard, browser):
    query = "SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONTIME >= @from AND n = @n"
    query = query.replace("n = @n", "_PARTITIONTIME < @to AND message_id != @n")
    wanted = {
        "query": query,
        "topic": "replay",
        "parameters": {
            "from": {"type": "TIMESTAMP", "value": "2026-01-01T00:00:00Z"},
            "to": {"type": "TIMESTAMP", "value": "2026-01-02T00:00:00Z"},
            "n": {"type": "STRING", "value": "m0"},
        },
        "description": "why",
        "labels": {"ticket": "ops-1", "team": "shop"},
        "rate_limit_messages_per_second": 7.5,
        "canary_messages": 5,
        "ordering": "by_key",
        "max_failed": 3,
        "attributes": {"again": "yes"},
        "allow_overlap": True,
    }
    with yard.api.client(yard.key) as client:
        job = ended(yard, client, **wanted)
        assert f'href="/console/jobs/{job}/rerun"' in browser.get(f"/console/jobs/{job}").text
        page = browser.get(f"/console/jobs/{job}/rerun")
        assert "It runs its query again, and publishes the messages that it selects now." in page.text
        made = browser.post(f"/console/jobs/{job}/rerun", data={**form_of(page), "do": "perform"})
        assert made.status_code == 303, made.text[-3000:]
        found = client.get(f"/jobs/{made.headers['location'].rpartition('/')[2]}").json()
        assert found["id"] != job
        assert {name: found[name] for name in wanted} == wanted


def test_the_range_of_a_topic_is_filled_in_and_another_one_is_planned(yard, browser):
    hour = timedelta(hours=1)
    end = datetime.now(UTC)
    with yard.api.client(yard.key) as client:
        request = {"source_topic": "orders", "topic": "replay", "source_attributes": {"a": "b"}, "where": "TRUE"}
        bounds = {"from": (end - hour).isoformat(), "to": end.isoformat()}
        job = ended(yard, client, **request, **bounds, allow_overlap=True)
    path = f"/console/jobs/{job}/rerun"
    form = form_of(browser.get(path))
    assert (form["source"], form["topic"], form["query"]) == ("orders", "replay", "")
    assert (form["source_attributes"], form["where"]) == ("a=b", "TRUE")
    assert datetime.fromisoformat(form["to"]) == end
    changed = {**form, "source_attributes": "", "from": (end - 2 * hour).isoformat(), "do": "plan"}
    planned = browser.post(path, data=changed)
    assert "The backfill would publish 30 messages to replay" in planned.text, planned.text[-3000:]
    plan = re.search(r'name="plan_id" value="([^"]+)"', planned.text)
    # The plan has an address here too, whose form is of the same range.
    opened = browser.get(path, params={"plan": plan[1]})
    assert "The backfill would publish 30 messages to replay" in opened.text
    sent = {**form_of(opened), "plan_id": plan[1], "do": "perform"}
    assert sent["query"] == ""
    made = browser.post(path, data=sent)
    assert made.status_code == 303, made.text[-3000:]


def test_the_address_of_a_range_s_plan_opens_the_range_and_launches_it(yard, browser):
    path = "/console/backfills/new"
    begun = {**form_of(browser.get(path)), "source": "orders", "from": "2h", "to": "90m", "topic": "replay"}
    begun["options"] = "allow_empty: true"
    planned = browser.post(path, data={**begun, "do": "plan"})
    plan = re.search(r'name="plan_id" value="([^"]+)"', planned.text)
    assert plan is not None, planned.text[-3000:]
    form = form_of(browser.get(path, params={"plan": plan[1], "source": "orders"}))
    assert (form["query"], form["source"], form["options"]) == ("", "orders", "allow_empty: true\n")
    made = browser.post(path, data={**form, "plan_id": plan[1], "do": "perform"})
    assert made.status_code == 303, made.text[-3000:]


def test_a_plan_of_a_query_has_nothing_of_the_range_before_it(yard, browser):
    start = datetime.now(UTC) - timedelta(hours=1)
    with yard.api.client(yard.key) as client:
        request = {"source_topic": "orders", "from": start.isoformat(), "to": "0s", "where": "message_id = 'm1'"}
        job = ended(yard, client, **request, topic="replay", allow_overlap=True)
    path = f"/console/jobs/{job}/rerun"
    query = "SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE >= '2026-01-01'"
    planned = browser.post(path, data={**form_of(browser.get(path)), "query": query, "do": "plan"})
    plan = re.search(r'name="plan_id" value="([^"]+)"', planned.text)
    assert plan is not None, planned.text[-3000:]
    form = form_of(browser.get(path, params={"plan": plan[1]}))
    assert form["query"] == query
    assert {form[name] for name in ("source", "from", "to", "where")} == {""}


def test_more_options_that_are_none_are_refused_in_words(yard, browser):
    page = browser.get("/console/backfills/new?source=orders")
    form = {**form_of(page), "topic": "replay", "from": "2h", "query": "", "do": "plan"}
    for options, said in (
        ("- 1", "More options are written as NAME: VALUE, one per line."),
        ("a: [", "More options: line 1, column"),
        ("max_rovs: 1", "max_rovs"),
    ):
        assert said in browser.post("/console/backfills/new", data={**form, "options": options}).text, options


def test_a_range_is_read_back_as_it_was_written():
    query = write_range_query("backup.messages", "orders", START, END, attributes={"a": "b", "c": "d"})
    found = read_range(query)
    assert (found["source"], found["source_attributes"], found["where"]) == ("orders", "a=b, c=d", "")
    assert (datetime.fromisoformat(found["from"]), datetime.fromisoformat(found["to"])) == (START, END)
    where = "topic = 'x'\n  OR TRUE -- )"
    assert read_range(write_range_query("t", "orders", START, END, where=where))["where"] == where


@pytest.mark.parametrize(
    "query",
    [
        write_range_query("t", "o'r", START, END),
        write_range_query("t", "orders", START, END, attributes={"a": "b, c=d"}),
        write_range_query("t", "orders", START, END) + " LIMIT 1",
        "SELECT 1",
    ],
)
def test_a_query_that_says_more_than_the_fields_stays_a_query(query):
    assert read_range(query) == {}


def test_the_form_has_every_field_of_a_request():
    assert {each.name for each in declared_fields(BackfillRequest)} == {*OPTIONS, *OF_THE_FORM}
    assert read_yaml(json.dumps(dict.fromkeys(OPTIONS))).value == dict.fromkeys(OPTIONS)


def test_a_merge_runs_again_with_changes_once_a_form(yard, browser):
    sources = b"sources:\n  hooks: {topic: hooks, schema: inferred, key: [id]}\n"
    Registry(str(yard.api.home / "registry")).publish({"sources.yaml": sources})
    since = "2026-01-02T00:15:00Z"
    job = add_merge(yard, JobState.SUCCEEDED, source="hooks", since=since, dry_run=True)
    page = browser.get(f"/console/jobs/{job}/rerun")
    for said in (
        "A new merge is created.",
        'value="hooks"',
        f'value="{since}"',
        'name="dry_run" value="yes" checked',
    ):
        assert said in page.text
    sent = {"form_token": token_of(page), "do": "perform", "source": "hooks", "since": since, "dry_run": "yes"}
    sent["key"] = re.findall(r'name="key" value="([^"]+)"', page.text)[0]
    first, second = (browser.post(f"/console/jobs/{job}/rerun", data=sent) for _ in range(2))
    assert first.status_code == 303, first.text
    assert second.headers["location"] == first.headers["location"]
    made = yard.api.store.get(first.headers["location"].removeprefix("/console/jobs/"))
    assert (made.id != job, made.request["source"], made.request["dry_run"]) == (True, "hooks", True)
    assert made.request["since"].startswith("2026-01-02T00:15:00")
    # A box that is not ticked is not sent, and what is refused keeps what was written.
    wrong = {**sent, "since": "never", "key": "k1"}
    assert browser.post(f"/console/jobs/{job}/rerun", data=wrong).status_code == 422
    del sent["dry_run"]
    refused = browser.post(f"/console/jobs/{job}/rerun", data={**sent, "source": "nothing", "key": "k2"})
    assert ('value="nothing"' in refused.text, "checked" in refused.text) == (True, False)
    other = browser.post(f"/console/jobs/{job}/rerun", data={**sent, "since": "", "key": "k3"})
    made = yard.api.store.get(other.headers["location"].removeprefix("/console/jobs/"))
    assert (made.request["since"], made.request["dry_run"]) == (None, False)


def test_a_compaction_runs_again_with_other_tables(yard, browser):
    job = add_compaction(yard, JobState.SUCCEEDED)
    page = browser.get(f"/console/jobs/{job}/rerun")
    before = " ".join(yard.api.store.get(job).request["tables"])
    assert ("No row changes." in page.text, f'value="{before}"' in page.text) == (True, True)
    key = re.findall(r'name="key" value="([^"]+)"', page.text)[0]
    sent = {"form_token": token_of(page), "do": "perform", "tables": "archive staging.orders", "key": key}
    first, second = (browser.post(f"/console/jobs/{job}/rerun", data=sent) for _ in range(2))
    assert first.status_code == 303, first.text
    assert second.headers["location"] == first.headers["location"]
    made = yard.api.store.get(first.headers["location"].removeprefix("/console/jobs/"))
    assert (made.id != job, made.request["tables"]) == (True, ["archive", "staging.orders"])
    refused = browser.post(f"/console/jobs/{job}/rerun", data={**sent, "tables": "no table", "key": "k2"})
    assert refused.status_code == 422
