"""The first page over a real API: volumes, changes, and the way to what waits."""

import re

from markupsafe import escape

from backup.compaction.kind import COMPACTION
from console.home import path_of
from console.visit import PagePart, RecentReads
from model.job import JobState, new_job_id
from reporting.kind import MERGE
from reporting.request import MergeRequest
from tests.console.yard import open_client, sign_in


def test_topics_have_the_volume_that_the_api_counts(yard, browser):
    text = browser.get("/console").text
    row = text.split("<h2>Topics")[1].split("</section>")[0]
    assert 'href="/console/topics/orders"' in row
    assert '<td data-label="Messages" class="figure">30</td>' in row
    with yard.api.client(yard.key) as client:
        (found,) = client.get("/volumes", params={"step": "hour"}).json()["topics"]
    assert found["total_messages"] == 30
    assert 'class="line"' in row


def test_what_changed_is_listed_with_who_did_it_and_a_way_there(yard, browser):
    text = browser.get("/console?zone=Asia/Tokyo").text
    changes = text.split("<h2>Changed in the last day</h2>")[1]
    title = f"Backfill to {yard.api.store.get(yard.failed).request['topic']}"
    path = f"/console/jobs/{yard.failed}?zone=Asia%2FTokyo"
    assert f'<a href="{path}" title="{yard.failed}">{escape(title)}</a>' in changes
    assert "by key:ann" in changes
    assert "+09:00" in changes


def test_what_waits_leads_to_a_page_that_is_there(yard, browser):
    text = browser.get("/console").text
    waiting = text.split("Waits for a person")[1].split("</section>")[0]
    title = f"Backfill to {yard.api.store.get(yard.failed).request['topic']}"
    assert f'<a href="/console/jobs/{yard.failed}">{escape(title)}</a>' in waiting
    assert f'<span class="over">{yard.failed}</span>' in waiting
    wrong = text.split('id="verdict"')[1].split("</section>")[0]
    assert 'href="/console/streams/pipeline-shop"' in wrong
    for resource in ("backfill", "update", "change", "topic", "source"):
        path = path_of(resource, "unheard-of", "2026-01-02T03:00:00Z")
        assert path is not None
        # The page is there, also where nothing has that name.
        page = browser.get(f"/console{path}")
        assert (page.status_code in {200, 404}, "There is no such page." in page.text) == (True, False), path
    assert path_of("merge", "mg_1") == "/jobs/mg_1"


def test_an_alert_of_a_source_leads_to_the_source(yard, browser):
    alerts = [
        {"about": "hooks push", "code": "evolution_refused", "message": "id was INT64"},
        {"about": "registry", "code": "registry_invalid", "message": "no such file"},
    ]
    yard.report("pipeline-hooks", state="running", alerts=alerts)
    wrong = browser.get("/console").text.split('id="verdict"')[1].split("</section>")[0]
    of_source, of_registry = (each for each in wrong.split("<li>") if "source_alert" in each)
    assert '<a href="/console/sources/hooks">' in of_source
    assert '<a href="/console/streams/pipeline-hooks">' in of_registry


def test_running_jobs_of_every_kind_are_rows_of_one_table(yard, browser):
    store = yard.api.store
    request = {**MergeRequest().to_json(), "source": "hooks", "sources": ["hooks"], "dry_run": False}
    # Paused, so that no driver is started for them.
    merge = store.insert(new_job_id("mg"), MERGE.name, request, actor="key:ann", state=JobState.PAUSED)
    tables = {"tables": ["backup.messages"]}
    compaction = store.insert(new_job_id("cp"), COMPACTION.name, tables, actor="key:bob", state=JobState.PAUSED)
    page = browser.get("/console").text.split("<h2>Running jobs")[1].split("</section>")[0]
    heads = [re.findall('<th scope="col">(.*?)</th>', table) for table in page.split("<table")[1:]]
    assert heads == [["Job", "Kind", "State", "Done", "By", "Created"]]
    assert f'<a href="/console/jobs/{merge.id}">Merge of hooks</a>' in page
    assert f'<a href="/console/jobs/{compaction.id}">Compaction of backup.messages</a>' in page
    assert "0 of 1 sources merged" in page
    assert "0 of 1 tables compacted" in page


def test_a_caller_without_the_scope_sees_why_a_part_is_not_there(yard):
    with open_client(yard) as client:
        sign_in(client, yard.api.make_key("messages.read", name="messages"))
        assert "backfills.read" in client.get("/console").text


def test_what_was_read_is_kept_for_as_long_as_it_is_good():
    recent, calls = RecentReads(), []

    def call():
        calls.append(1)
        return PagePart(len(calls))

    assert recent.read("ann", "volumes", call, for_seconds=60).data == 1
    assert recent.read("ann", "volumes", call).data == 1
    assert recent.read("bob", "volumes", call, for_seconds=0).data == 2
    assert recent.read("bob", "volumes", call, for_seconds=0).data == 3
