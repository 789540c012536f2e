"""Sources over a real API: what goes from topic to reporting, and dead letters that are sent again."""

import re
from html import unescape

import httpx
import pytest
from markupsafe import escape

from model.principal import READ
from tests.console.works import fill_sources, make_works
from tests.console.yard import BIG, EVIL, open_client, sign_in, token_of


@pytest.fixture(scope="module")
def works(start_api):
    works = make_works(start_api)
    works.api.pubsub.create_topic("hooks")
    fill_sources(works)
    return works


def card_of(page: httpx.Response, name: str) -> str:
    found = re.search(rf'<article class="card" id="source-{name}">.*?</article>', page.text, re.DOTALL)
    assert found is not None, page.text[-3000:]
    return found[0]


def words_of(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


def test_the_list_has_each_source_s_counts_and_says_what_nobody_knows(ann):
    page = ann.get("/console/sources")
    hooks, odd, quiet = (words_of(card_of(page, name)) for name in ("hooks", "odd", "quiet"))
    for wanted in (
        "1,234,567 rows since",
        "900 of 1,200 keys",
        "4 messages since",
        "Unknown fields: 25 .",
        "1 of 2",
    ):
        assert wanted in hooks.replace("25.", "25 ."), wanted
    assert "Topic unknown unknown messages archived" in odd
    assert "fault" in odd
    # No stream has counted it: that is not 0.
    assert "unknown no stream of this home has counted the rows" in quiet
    assert "no merge of the last 14 days included this source" in quiet
    assert "hooks" not in ann.get("/console/sources", params={"text": "QUI"}).text.partition("<main")[2]


def test_one_source_has_its_findings_versions_letters_and_nights_escaped(ann):
    page = ann.get("/console/sources/hooks", params={"type": "push"})
    assert page.status_code == 200
    assert EVIL not in page.text
    assert "a.&lt;img" in page.text
    text = words_of(page.text.partition("<main")[2])
    assert "From version 1 to 2 of push" in text
    assert "+ at INT64 added" in text
    assert "Last type change id INT64 to STRING, in version 2 of staging.hooks_push, " in text
    assert "~ id INT64 to STRING wider: every old value fits" in text
    assert "wrong_type lines[].count 3 unknown" in text
    assert "keys_unique: expected 90, found 91" in text
    assert "audit_failed" in text
    assert "History" in text
    back = words_of(ann.get("/console/sources/hooks?type=push&before=2&after=1").text)
    assert "not wider: some old values may not fit" in back
    wrong = ann.get("/console/sources/hooks?type=push&before=7")
    assert "There is no version 7." in words_of(wrong.text)
    assert "registry_invalid" in ann.get("/console/sources/odd").text
    assert "source_not_found" in ann.get("/console/sources/nothing").text


def test_all_of_a_reason_are_redriven_as_planned_once_the_topic_is_typed(works, ann):
    page = ann.get("/console/sources/hooks")
    path = unescape(re.search(r'href="(/console/sources/hooks/redrive\?code=wrong_type[^"]+)"', page.text)[1])
    asked = ann.get(path)
    text = words_of(asked.text)
    assert "All dead letters of hooks with the code wrong_type at lines[].count since" in text
    assert "A backfill publishes 3 messages to hooks." in text
    assert ("nobody would receive them" in text, text.count("No subscription")) == (True, 1)
    fields = {
        name: unescape(value)
        for name, value in re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', asked.text)
    }
    sent = {**fields, "form_token": token_of(asked), "do": "perform", "canary": "2"}
    refused = ann.post(path, data={**sent, "typed": "hook"})
    assert (refused.status_code, "Nothing was done" in refused.text) == (422, True)
    other = {**sent, "typed": "hooks", "request": sent["request"].replace("wrong_type", "not_json")}
    assert (ann.post(path, data=other).status_code, works.api.store.list_active("backfill")[2:]) == (409, [])
    made = ann.post(path, data={**sent, "typed": "hooks"})
    assert made.headers.get("location", "").startswith("/console/jobs/bf_"), made.text[-3000:]
    job = works.api.store.get(made.headers["location"].rpartition("/")[2])
    assert job.request["plan_id"] == fields["plan_id"]
    assert job.request["parameters"]["codes"]["value"] == ["wrong_type"]
    assert job.request["description"] == "Dead letters of hooks."


def test_some_are_chosen_by_their_ids_and_none_is_never_all(ann):
    page = ann.get("/console/sources/hooks")
    link = r'href="(/console/sources/hooks/dead-letters\?code=wrong_type[^"]+)"'
    listed = ann.get(unescape(re.search(link, page.text)[1]))
    assert re.findall(r'<input type="checkbox" name="([^"]+)"', listed.text) == ["id-1", "id-2", "id-3"]
    assert '<form method="get" action="/console/sources/hooks/redrive">' in listed.text
    assert '<input type="hidden" name="chosen" value="yes">' in listed.text
    assert EVIL not in listed.text
    since = unescape(re.search(r'name="since" value="([^"]+)"', listed.text)[1])
    chosen = {"since": since, "chosen": "yes"}
    some = words_of(ann.get("/console/sources/hooks/redrive", params={**chosen, "id-1": "m0", "id-3": "m2"}).text)
    assert "These 2 dead letters of hooks." in some
    assert "A backfill publishes 2 messages to hooks." in some
    none = ann.get("/console/sources/hooks/redrive", params=chosen)
    assert (none.status_code, "No dead letter was chosen." in none.text) == (422, True)


def test_a_redrive_of_nothing_has_no_button(ann):
    page = ann.get("/console/sources/hooks/redrive", params={"chosen": "yes", "id-1": "gone"})
    assert (page.status_code, "there is nothing to send" in words_of(page.text)) == (200, True), page.text[-3000:]
    assert 'name="do"' not in page.text


def test_payloads_are_previewed_downloaded_and_hidden_without_the_scope(works, ann):
    path = "/console/sources/hooks/dead-letters?code=wrong_type"
    page = ann.get(path).text
    assert "<code>messages.read</code>" not in page
    assert (BIG.decode() in page, page.count(str(escape(BIG.decode())))) == (False, 3)
    whole = [
        unescape(each) for each in re.findall(r'href="(/console/sources/hooks/dead-letters/data[^"]*)"', page)
    ]
    saved = ann.get(whole[0])
    assert (len(whole), saved.content) == (3, BIG)
    assert re.fullmatch(r'attachment; filename="m\d"', saved.headers["content-disposition"])
    with open_client(works) as client:
        sign_in(client, works.api.make_key(READ, name="blind"))
        hidden = client.get(path).text
        assert ("9007199254740993" in hidden, "<code>messages.read</code>" in hidden) == (False, True)
        assert words_of(hidden).count("hidden hidden") == 3
        assert client.get(whole[0]).status_code == 403


def test_a_reader_sees_dead_letters_and_which_scope_sends_them(works):
    with open_client(works) as client:
        sign_in(client, works.api.make_key(READ, name="reader"))
        text = client.get("/console/sources/hooks").text
        assert "To send dead letters again, you need the scope <code>backfills.run</code>" in text
        refused = client.get("/console/sources/hooks/redrive")
    assert (refused.status_code, "backfills.plan" in refused.text) == (403, True)
