"""A backfill's page and those of its dead letters and missing messages, over a real API."""

import re
from html import unescape

import pytest
from markupsafe import escape

from backfill.run.folder import BackfillFolder
from backfill.steer.reader import BackfillReader
from backfill.steer.verification import MissingMessageOut
from model.job import JobState
from model.principal import READ
from tests.console.past import run_backfill
from tests.console.yard import BIG, EVIL, open_client, sign_in, token_of


@pytest.fixture(scope="module")
def past(yard):
    return run_backfill(yard)


def test_the_page_shows_rates_slices_and_reasons_as_the_api_has_them(yard, past, browser):
    text = browser.get(f"/console/jobs/{past}").text
    with yard.api.client(yard.key) as client:
        intervals = client.get(f"/jobs/{past}/figures").json()["intervals"]
    chart = text.split('class="chart rates"')[1].split("</svg>")[0]
    assert chart.count("<rect") == len(intervals) == 9
    assert len(re.findall(r"M[\d.]+ [\d.]+H", chart.split('class="limit"')[1])) == 8
    assert "1 done, 0 begun, 0 waiting" in text
    for code, messages in (("gave_up", 2), ("refused_by_pubsub", 1)):
        assert re.search(
            rf'<strong>{code}</strong></td><td data-label="Messages" class="figure">{messages}</td>', text
        )
    assert "line 199 " in text
    assert EVIL not in text


def test_the_verdict_names_each_step_and_does_not_guess_one(past, browser):
    text = browser.get(f"/console/jobs/{past}").text
    steps = text.split('class="verdicts"')[1].split("</ol>")[0]
    assert [sign.strip() for sign in re.findall(r'class="sign[^"]*">([^<]+)<', steps)] == ["&ne;", "?", "?"]
    assert steps.count("unknown") >= 2


def test_dead_letters_are_chosen_one_by_one_and_only_those_go_out_again(yard, past, browser):
    page = browser.get(f"/console/jobs/{past}/dead-letters").text
    assert re.findall(r'name="rows" value="(\d+)"', page) == ["0", "2", "5"]
    assert f'<form method="get" action="/console/jobs/{past}/retry">\n' in page
    assert '<input type="hidden" name="only" value="failed">' in page
    assert EVIL not in page
    chosen = browser.get(f"/console/jobs/{past}/retry?only=failed&rows=0&rows=5")
    assert 'name="rows" value="0,5"' in chosen.text
    assert '<option value="failed" selected>' in chosen.text
    fields = {"form_token": token_of(chosen), "do": "perform", "only": "failed", "rows": "zero"}
    assert "Write the numbers of rows" in browser.post(f"/console/jobs/{past}/retry", data=fields).text
    # Another one to the same topic would be in its way.
    yard.api.store.move(yard.running, JobState.CANCELLED, actor="test")
    etag = unescape(re.search(r'name="etag" value="([^"]+)"', chosen.text)[1])
    fields |= {"rows": "0,5", "etag": etag}
    answer = browser.post(f"/console/jobs/{past}/retry", data=fields)
    assert answer.headers.get("location") == f"/console/jobs/{past}", answer.text[-3000:]
    run = BackfillFolder(yard.api.home / "backfills" / past).read_specification()["run"]
    assert run == {"only": "failed", "rows": [0, 5]}


def test_payloads_of_dead_letters_are_previewed_downloaded_and_hidden_without_the_scope(yard, browser, past):
    path = f"/console/jobs/{past}/dead-letters"
    page = browser.get(path).text
    assert "9007199254740993" in page
    assert (BIG.decode() in page, str(escape(BIG.decode())) in page) == (False, True)
    (whole,) = re.findall(rf'href="({path}/2/data[^"]*)"', page)
    saved = browser.get(whole)
    assert (saved.content, saved.headers["content-disposition"]) == (BIG, 'attachment; filename="m2"')
    with open_client(yard) as client:
        sign_in(client, yard.api.make_key(READ, name="reader"))
        hidden = client.get(path).text
        assert ("9007199254740993" in hidden, "messages.read" in hidden) == (False, True)
        assert "hidden, 75 B" in hidden, hidden
        assert client.get(whole).status_code == 403


def test_what_is_missing_is_refused_in_words_where_nobody_knows_it(past, browser):
    assert "staging_unknown" in browser.get(f"/console/jobs/{past}/missing").text


def test_what_is_missing_has_the_reason_of_its_dead_letter(past, browser, monkeypatch):
    plain = {"row": 0, "message_id": "m0", "topic": "orders", "publish_time": None, "code": None, "reason": None}
    letter = {**plain, "row": 1, "message_id": "m1", "code": "not_json", "reason": EVIL}
    found = [MissingMessageOut(**each) for each in (plain, letter)]
    monkeypatch.setattr(BackfillReader, "list_missing", lambda *_, **__: found)
    page = browser.get(f"/console/jobs/{past}/missing").text
    reasons = re.findall(r'<td data-label="Dead letter"[^>]*>(.*?)</td>', page)
    assert reasons == ["none", f"<strong>not_json</strong> {escape(EVIL)}"]
