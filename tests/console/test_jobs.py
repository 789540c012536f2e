"""The list of jobs of every kind, and the page and the actions of merges and compactions, over a real API."""

import re
from html import unescape

import pytest

from backup.compaction.kind import COMPACTION
from console.effects import revert_effects
from console.jobs import VERBS, find_verbs
from model.audit import Audit
from model.fault import FaultRecord
from model.job import JobState, new_job_id
from model.principal import PLAN, READ
from model.stream_options import StreamKind
from model.stream_update import UpdateRequest
from reporting.kind import MERGE
from reporting.request import MergeRequest
from reporting.view import describe_failure
from tests.console.yard import EVIL, make_yard, open_client, sign_in, token_of


@pytest.fixture(scope="module")
def yard(start_api):
    return make_yard(start_api)


def add_merge(yard, state=JobState.PAUSED, **wanted):
    """Keep a merge of two sources, of which one has failed; paused, so that no driver is started for it."""
    request = {**MergeRequest().to_json(), "sources": ["hooks", "odd"], "dry_run": False, **wanted}
    store = yard.api.store
    job = store.insert(new_job_id("mg"), MERGE.name, request, actor="schedule:nightly", state=JobState.PAUSED)
    audit = Audit("keys_unique", False, 90, 91, {}).to_json()
    failed = describe_failure("hooks", "audit_failed", EVIL, [audit])
    store.change(job.id, actor="driver", what="hooks failed", why=EVIL, findings={"sources": {"hooks": failed}})
    if state is not JobState.PAUSED:
        error = FaultRecord("merge_failed", f"hooks failed. {EVIL}") if state is JobState.FAILED else None
        store.move(job.id, state, actor="driver", error=error)
    return str(job.id)


def add_compaction(yard, state=JobState.PAUSED):
    store, tables = yard.api.store, {"tables": ["archive", "staging.orders"]}
    job = store.insert(new_job_id("cp"), COMPACTION.name, tables, actor="key:bob", state=JobState.PAUSED)
    store.change(job.id, actor="driver", what="compacted", findings={"tables": {"staging.orders": 1812}})
    if state is not JobState.PAUSED:
        store.move(job.id, state, actor="driver")
    return str(job.id)


def ids_of(page):
    assert page.status_code == 200, page.text
    return set(re.findall(r'<a href="/console/jobs/(\w+)', page.text))


def test_the_list_has_every_kind_and_the_filters_of_its_address(yard, browser):
    merge, compaction = add_merge(yard), add_compaction(yard, JobState.FAILED)
    everything = ids_of(browser.get("/console/jobs"))
    assert {merge, compaction, yard.failed, yard.done, yard.running} <= everything
    for query, wanted in (
        ("kind=merge", {merge}),
        ("kind=compaction&state=FAILED", {compaction}),
        ("state=FAILED", {compaction, yard.failed}),
        ("topic=orders&state=SUCCEEDED", {yard.done}),
        ("label=ticket:another", set()),
        ("since=2026-01-01T00:00:00Z", everything),
    ):
        assert ids_of(browser.get(f"/console/jobs?{query}")) == wanted, query
    page = browser.get("/console/jobs?kind=merge&since=2999-01-01T00:00:00Z")
    assert "No job matches these filters." in page.text
    assert "<option selected>merge</option>" in page.text
    assert 'value="2999-01-01T00:00:00Z"' in page.text


def test_a_page_leads_to_the_next_one_with_the_same_filters(yard, browser, monkeypatch):
    monkeypatch.setattr("console.jobs._PAGE_SIZE", 1)
    older = {add_merge(yard), add_merge(yard)}
    path, seen = "/console/jobs?kind=merge&zone=Asia/Tokyo", set()
    while path:
        page = browser.get(path)
        found = ids_of(page)
        assert len(found) == 1
        seen |= found
        links = re.findall(r'class="button" href="([^"]+)">Older jobs', page.text)
        path = unescape(links[0]) if links else ""
        assert not path or ("kind=merge" in path, "zone=Asia%2FTokyo" in path) == (True, True)
    assert older <= seen
    assert all(each.startswith("mg_") for each in seen)


def test_former_addresses_lead_to_those_of_jobs(yard, browser):
    for former, now in (
        ("", "?kind=backfill"),
        ("?state=FAILED&zone=Asia/Tokyo", "?kind=backfill&state=FAILED&zone=Asia%2FTokyo"),
        (f"/{yard.done}", f"/{yard.done}"),
        (f"/{yard.done}/retry?only=failed", f"/{yard.done}/retry?only=failed"),
    ):
        answer = browser.get(f"/console/backfills{former}")
        assert (answer.status_code, answer.headers["location"]) == (308, f"/console/jobs{now}")
    # What stands there is part of a path, and never another site.
    assert browser.get("/console/backfills//evil.example").headers["location"] == "/console/jobs//evil.example"


def test_a_merge_s_page_has_what_it_was_to_do_and_did_by_source(yard, browser):
    text = browser.get(f"/console/jobs/{add_merge(yard, JobState.FAILED)}").text
    assert "<h1>Merge of all sources</h1>" in text
    # The id stands below, to be copied.
    assert re.search(r"<code>mg_\w{26}</code> <button", text)
    assert "0 of 2 sources merged, 1 failed" in text
    assert "<strong>merge_failed</strong> hooks failed. &lt;img" in text
    table = text.split("<h2>Sources</h2>")[1].split("</table>")[0]
    assert '<a href="/console/sources/hooks">hooks</a>' in table
    assert '<span class="badge bad">keys_unique: expected 90, found 91</span>' in table
    assert "<strong>audit_failed</strong>" in table
    assert "<dt>Dry run</dt><dd>no</dd>" in re.sub(r"\s+(?=<)|(?<=>)\s+", "", text)
    history = text.split("<h2>History</h2>")[1]
    assert "<strong>hooks failed</strong> by driver" in history
    assert "The log is empty." in text
    assert EVIL not in text


def test_a_compaction_s_page_has_a_row_for_each_table(yard, browser):
    text = browser.get(f"/console/jobs/{add_compaction(yard)}").text
    assert "<h1>Compaction of archive, staging.orders</h1>" in text
    assert "1 of 2 tables compacted" in text
    removed = text.split("<h2>Files removed</h2>")[1].split("</section>")[0]
    assert "<dt>staging.orders</dt><dd>1,812</dd>" in removed


@pytest.mark.parametrize(
    ("state", "verbs"),
    [
        (JobState.PAUSED, {"cancel"}),
        (JobState.FAILED, {"retry"}),
        (JobState.CANCELLED, {"retry"}),
        (JobState.SUCCEEDED, set()),
    ],
)
def test_a_page_offers_what_the_state_allows_and_the_rest_has_no_form(yard, browser, state, verbs):
    verbs = verbs | ({"rerun"} if state.is_final else set())
    for job in (add_merge(yard, state), add_compaction(yard, state)):
        text = browser.get(f"/console/jobs/{job}").text
        assert set(re.findall(rf'href="/console/jobs/{job}/(\w+)"', text)) == verbs
        for verb in set(VERBS) - verbs:
            page = browser.get(f"/console/jobs/{job}/{verb}")
            said = f"is {state.value}. This action is not possible in this state."
            assert (page.status_code, said in page.text) == (200, True), page.text
            assert 'name="form_token"' not in page.text.split("<main")[1]


def test_what_is_being_cancelled_already_is_not_offered_a_cancel():
    assert find_verbs({"kind": "merge", "state": "CANCELLING"}) == ()


def test_a_merge_is_cancelled_and_retried_with_the_effect_in_words_before(yard, browser):
    job = add_merge(yard)
    page = browser.get(f"/console/jobs/{job}/cancel")
    for said in ("0 of 2 sources are merged.", "Sources that are already merged stay merged."):
        assert said in page.text
    sent = {"form_token": token_of(page), "do": "perform", "etag": '"999"'}
    stale = browser.post(f"/console/jobs/{job}/cancel", data=sent)
    assert (stale.status_code, "job_changed" in stale.text) == (412, True)
    assert yard.api.store.get(job).state is JobState.PAUSED
    sent["etag"] = unescape(re.search(r'name="etag" value="([^"]+)"', page.text)[1])
    done = browser.post(f"/console/jobs/{job}/cancel", data=sent)
    assert done.headers.get("location") == f"/console/jobs/{job}", done.text
    assert yard.api.store.get(job).state is JobState.CANCELLED
    page = browser.get(f"/console/jobs/{job}/retry")
    assert "The merge continues where it stopped. Finished work is not repeated." in page.text
    assert 'name="only"' not in page.text
    assert browser.post(f"/console/jobs/{job}/retry", data={**sent, "etag": ""}).status_code == 303
    assert [event.why for event in yard.api.store.list_events(job)].count("retried") == 1


def test_an_update_s_page_shows_its_fields_and_takes_it_back(yard, browser):
    store = yard.api.store
    store.launch_stream("backup", StreamKind.BACKUP, actor="key:ann")
    request = UpdateRequest(release=None, options={"slots": 8}, mapping={}, reason=f"more slots {EVIL}")
    update = store.create_update("backup", request, actor="key:ann")
    assert update.id in ids_of(browser.get("/console/jobs?kind=update"))
    text = browser.get(f"/console/jobs/{update.id}").text
    assert "<h1>Update of backup</h1>" in text
    assert '<a href="/console/streams/backup">backup</a>' in text
    assert ("more slots &lt;img" in text, EVIL in text, "End of the log" in text) == (True, False, False)
    assert f'<a href="/console/jobs/{update.id}">' in browser.get("/console/streams/backup").text
    page = browser.get(f"/console/jobs/{update.id}/revert")
    assert "The stream returns to its previous release and options." in page.text
    sent = {"form_token": token_of(page), "do": "perform", "typed": "backup"}
    answer = browser.post(f"/console/jobs/{update.id}/revert", data=sent)
    assert answer.headers.get("location") == f"/console/jobs/{update.id}", answer.text
    assert f"/console/jobs/{update.id}/revert" not in browser.get(f"/console/jobs/{update.id}").text


def test_a_stable_update_is_taken_back_by_another_one():
    stable = {
        "kind": "update",
        "id": "up_1",
        "state": "STABLE",
        "stream": "s",
        "finished_at": "2026-01-01T00:00:00Z",
    }
    assert find_verbs(stable) == ("revert",)
    assert "A new update returns the stream to its earlier release and options." in revert_effects(stable)
    assert find_verbs({**stable, "state": "FAILED"}) == ()
    assert find_verbs({**stable, "kind": "restore", "state": "RUNNING", "finished_at": None}) == ()


def test_who_may_only_plan_steers_dry_runs_and_is_told_which_scope_others_need(yard):
    real, dry = add_merge(yard), add_merge(yard, dry_run=True)
    with open_client(yard) as client:
        sign_in(client, yard.api.make_key(READ, PLAN, name="planner"))
        page = client.get(f"/console/jobs/{real}").text
        assert ("you need the scope <code>backfills.run</code>" in page, "/cancel" in page) == (True, False)
        assert "you need the scope" in client.get(f"/console/jobs/{real}/cancel").text
        assert f"/console/jobs/{dry}/cancel" in client.get(f"/console/jobs/{dry}").text
        assert "you need the scope" not in client.get(f"/console/jobs/{dry}/cancel").text


def test_an_open_list_is_kept_up_to_date(yard, browser):
    job = add_compaction(yard)
    with browser.stream("GET", "/console/live/jobs?kind=compaction") as live:
        lines = (line for line in live.iter_lines() if line.startswith("data: "))
        assert job in next(lines)
        later = add_compaction(yard)
        assert any(later in line for line in lines)


def test_a_merge_that_found_nothing_says_how_to_read_rows_again(yard, browser):
    nothing, since = add_merge(yard, JobState.SUCCEEDED), "2026-01-02T00:15:00Z"
    again = add_merge(yard, JobState.SUCCEEDED, since=since)
    pages = [browser.get(f"/console/jobs/{job}").text for job in (nothing, again, add_merge(yard))]
    assert ["so the merge read none" in text for text in pages] == [True, False, False]
