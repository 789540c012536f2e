"""Schedules over a real API: their list, the page of one, and what people do with it."""

import re
from html import unescape

import httpx
import pytest

from jobs.store.tables import SCHEDULE_RUNS
from model.manifest_record import RunState
from model.principal import READ, STREAMS_READ
from model.stream_options import StreamKind
from tests.console.places import apply_schedule
from tests.console.yard import EVIL, make_yard, open_client, sign_in, token_of


@pytest.fixture(scope="module")
def yard(start_api):
    yard = make_yard(start_api)
    yard.api.store.launch_stream("backup", StreamKind.BACKUP, actor="key:ann")
    return yard


@pytest.fixture
def schedule(yard):
    """A schedule of snapshots, which no driver and here no agent carries out, and none is due soon."""
    return apply_schedule(yard)


def act(client: httpx.Client, schedule: str, verb: str, **fields: str) -> httpx.Response:
    path = f"/console/schedules/{schedule}/{verb}"
    return client.post(path, data={"form_token": token_of(client.get(path)), "do": "perform", **fields})


def facts(page: httpx.Response) -> str:
    """Return a page's text without the blanks between its elements."""
    assert page.status_code == 200, page.text
    return re.sub(r"\s+(?=<)|(?<=>)\s+", "", page.text)


def test_the_list_says_when_each_runs_next_and_how_it_last_ran(yard, browser, schedule):
    text = facts(browser.get("/console/schedules?zone=Asia/Tokyo"))
    row = text.split(f'<a href="/console/schedules/{schedule}?zone=Asia%2FTokyo">')[1].split("</tr>")[0]
    assert '<td data-label="Job">snapshot</td>' in row
    assert "<code>15 0 1 1 *</code>Europe/Stockholm" in row
    assert re.search(r'data-label="Next run"><time datetime="\d{4}-12-31T23:15:00Z" title="\d{4}-01-01 08:15', row)
    assert '<td data-label="Last run">never</td>' in row
    assert ("&lt;img" in row, EVIL in text) == (True, False)
    assert 'aria-current="page">Schedules' in text


def test_a_pause_and_its_reason_are_seen_until_the_resume(yard, browser, schedule):
    page = browser.get(f"/console/schedules/{schedule}")
    assert f"/console/schedules/{schedule}/resume" not in page.text
    assert len(re.findall(r"<li><time", page.text.split("<h2>Next runs</h2>")[1].split("</section>")[0])) == 5
    said = "A paused schedule starts no jobs, and running jobs continue."
    assert said in browser.get(f"/console/schedules/{schedule}/pause").text
    assert act(browser, schedule, "pause").headers["location"] == f"/console/schedules/{schedule}"
    text = browser.get(f"/console/schedules/{schedule}").text
    assert "The schedule is paused and starts no jobs: key:ann paused it." in text
    assert f"/console/schedules/{schedule}/pause" not in text
    assert re.search(r"<strong>paused</strong> by key:ann", text.split("<h2>History</h2>")[1])
    assert "key:ann paused it." in browser.get("/console/schedules").text
    again = browser.get(f"/console/schedules/{schedule}/pause")
    assert "The schedule is already paused." in again.text
    assert 'name="form_token"' not in again.text.split("<main")[1]
    assert (
        "Runs that were due during the pause are skipped."
        in browser.get(f"/console/schedules/{schedule}/resume").text
    )
    assert act(browser, schedule, "resume").status_code == 303
    assert "paused and starts no jobs" not in browser.get(f"/console/schedules/{schedule}").text
    assert "The schedule is not paused." in browser.get(f"/console/schedules/{schedule}/resume").text


def test_a_run_now_is_one_run_however_often_its_form_is_sent(yard, browser, schedule):
    page = browser.get(f"/console/schedules/{schedule}/run")
    assert "The schedule runs its snapshot now, for the newest slot that has ended." in page.text
    assert "The previous run has not ended." not in page.text
    key = re.search(r'name="key" value="([^"]+)"', page.text)[1]
    for _ in range(2):
        answer = act(browser, schedule, "run", key=key)
        assert answer.headers.get("location") == f"/console/schedules/{schedule}", answer.text
    runs = browser.get(f"/console/schedules/{schedule}").text.split("<h2>Last runs</h2>")[1].split("</section>")[0]
    assert runs.count('data-label="Requested by">key:ann<') == 1
    assert "The previous run has not ended." in browser.get(f"/console/schedules/{schedule}/run").text


def test_a_run_leads_to_its_job_and_says_why_it_failed(yard, browser, schedule):
    act(browser, schedule, "run")
    failed = {"state": RunState.FAILED, "job_kind": "merge", "job_id": "mg_1", "why": f"No. {EVIL}"}
    with yard.api.store._database.write() as connection:
        connection.execute(
            SCHEDULE_RUNS.update()
            .where(SCHEDULE_RUNS.c.schedule == schedule)
            .values(**failed, finished_at=SCHEDULE_RUNS.c.created_at)
        )
    for path in (f"/console/schedules/{schedule}", "/console/schedules"):
        text = browser.get(path).text
        assert ('<a href="/console/jobs/mg_1">mg_1</a>' in text, EVIL in text) == (True, False)
    assert "No. &lt;img" in browser.get(f"/console/schedules/{schedule}").text


def test_what_was_skipped_is_no_last_run_and_is_said_with_the_reason(yard, browser, schedule):
    act(browser, schedule, "run")
    skipped = {"state": RunState.SKIPPED, "job_id": None, "why": "The run before has not ended."}
    with yard.api.store._database.write() as connection:
        connection.execute(SCHEDULE_RUNS.update().where(SCHEDULE_RUNS.c.schedule == schedule).values(**skipped))
    text = facts(browser.get("/console/schedules"))
    row = text.split(f'<a href="/console/schedules/{schedule}">')[1].split("</tr>")[0]
    said = (
        r'data-label="Last run">never<br><span class="over">then \d skipped: The run before has not ended.</span>'
    )
    assert re.search(said, row)


def test_a_reader_sees_schedules_and_is_told_which_scope_changes_them(yard, schedule):
    with open_client(yard) as client:
        sign_in(client, yard.api.make_key(READ, STREAMS_READ, name="reader"))
        text = client.get(f"/console/schedules/{schedule}").text
        assert "you need the scope <code>schedules.apply</code>" in text
        assert f"/console/schedules/{schedule}/run" not in text
        answer = act(client, schedule, "pause")
    assert (answer.status_code, "schedules.apply" in answer.text) == (403, True)


def test_a_job_s_page_leads_to_the_schedule_that_made_it(yard, browser):
    made = yard.api.store.insert(
        "cp_01K0ABCDEFGHJKMNPQRSTVWXYZ",
        "compaction",
        {"tables": ["archive"]},
        actor="schedule:a b",
        state="PAUSED",
    )
    link = re.search(r'href="([^"]+)">schedule:a b<', browser.get(f"/console/jobs/{made.id}").text)
    assert unescape(link[1]) == "/console/schedules/a%20b"


def test_without_schedules_the_list_says_so(start_api):
    yard = make_yard(start_api, REFEED_MERGE_AT="off")
    with open_client(yard) as client:
        sign_in(client, yard.key)
        assert "There are no schedules." in client.get("/console/schedules").text
