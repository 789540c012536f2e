"""Pages replace nothing that a link says, offer only what is possible, and are 404 of what does not exist."""

import httpx
import pytest

from backfill.run.progress import Progress
from model.job import JobState, new_job_id


@pytest.fixture
def browser(yard):
    with httpx.Client(base_url=f"{yard.api.url}/console", follow_redirects=True) as client:
        page = client.get("/sign-in").text
        token = page.partition('name="form_token" value="')[2].partition('"')[0]
        client.post("/sign-in", data={"form_token": token, "key": yard.key})
        yield client


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"from": "yesterday"}, "from is not a time: &#39;yesterday&#39;."),
        ({"to": "9999-12-31"}, "to is not a time: &#39;9999-12-31&#39;."),
        ({"from": "2026-01-02", "to": "2026-01-01"}, "must be earlier than to"),
        ({"from": "2026-01-02", "to": "2026-01-02"}, "must be earlier than to"),
    ],
)
def test_a_range_that_is_none_is_refused_and_stays_as_it_was_written(browser, query, said):
    page = browser.get("/topics/orders", params=query)
    assert (page.status_code, said in page.text) == (422, True), page.text
    assert f'value="{query.get("from", "")}" data-from' in page.text
    assert f'value="{query.get("to", "")}" data-to' in page.text


@pytest.mark.parametrize(
    "path",
    [
        *("/topics?of=gold", "/topics?by=year", "/topics/orders?step=week", "/streams/backup?over=year"),
        *("/jobs?kind=change&state=MAYBE", "/jobs?kind=dream", "/jobs?state=running", "/jobs?since=yesterday"),
        *("/jobs?label=team", "/streams?zone=Nowhere/Atlantis", "/sources/orders/redrive?since=yesterday"),
        *("/sources/orders/dead-letters?code=x&since=yesterday", "/scan/orders?from=2026-01-02&to=2026-01-01"),
    ],
)
def test_what_a_link_says_is_refused_where_it_is_none_of_the_choices(browser, path):
    headers = {"Sec-Fetch-Site": "same-origin"}
    answer = browser.get(path, headers=headers)
    assert (answer.status_code, 'class="problem"' in answer.text) == (422, True), answer.text[-2000:]


@pytest.mark.parametrize(
    "path",
    [
        *("/jobs/{job}", "/jobs/{job}/dead-letters", "/jobs/{job}/missing", "/jobs/{job}/cancel"),
        *("/jobs/mg_01K0ABCDEFGHJKMNPQRSTVWXYZ", "/jobs/cp_01K0ABCDEFGHJKMNPQRSTVWXYZ/retry", "/jobs/nothing"),
        *("/backfills/{job}", "/schedules/nothing", "/schedules/nothing/run", "/manifests/nothing"),
        *("/manifests/nothing/remove", "/manifests/nothing/launch"),
        *("/snapshots/sn_01K0ABCDEFGHJKMNPQRSTVWXYZ/delete", "/streams/nothing", "/streams/nothing/drain"),
        *("/sources/nothing", "/topics/nothing", "/nowhere"),
    ],
)
def test_a_page_of_what_does_not_exist_is_404_without_buttons(browser, path):
    page = browser.get(path.replace("{job}", new_job_id("bf")))
    # The header has those of every page: the zone and the sign-out.
    body = page.text.partition('<main id="main">')[2]
    assert body, page.text
    assert (page.status_code, "<button" in body, 'class="button' in body) == (404, False, False), page.text
    assert ('href="/console/streams"' in page.text, "(HTTP" in page.text) == (True, False), page.text


def test_dead_letters_are_messages_that_are_not_published_yet(yard, browser):
    page = browser.get(f"/jobs/{yard.failed}/retry").text
    said = "990 of 1,000 messages are published. 10 are not published yet, including 10 dead letters."
    assert said in page


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        ({"state": "complete", "landed": 30, "merged": 0}, None),
        ({"state": "complete", "landed": 30, "merged": 30}, "Revert: not possible: 30 rows are merged."),
        ({"state": "unknown", "landed": None, "merged": None}, "no staging table of the topic is known."),
        ({"state": "incomplete", "landed": 0, "merged": 0}, "Revert: nothing to revert."),
    ],
)
def test_a_revert_is_offered_only_where_it_is_possible(yard, browser, verdict, said):
    job = yard.backfill(JobState.SUCCEEDED, Progress(selected=30, published=30))
    missing = None if verdict["landed"] is None else 30 - verdict["landed"]
    found = {"selected": 30, "published": 30, "missing": missing, **verdict}
    yard.api.store.set_verification(
        job, found, actor="refeed", epoch=yard.api.store.get(job).epoch, again_seconds=None
    )
    page = browser.get(f"/jobs/{job}").text
    assert (f"/console/jobs/{job}/revert" in page) is (said is None)
    assert said is None or said in page
