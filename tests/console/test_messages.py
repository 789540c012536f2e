"""The message browser over a real API: one message whole, its payload bit for bit, and the search for it."""

import asyncio
import base64
import json
import os
import re
import signal
from datetime import UTC, datetime, timedelta
from html import unescape
from types import SimpleNamespace
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

import pytest

from connectors.lake.archive import LakeArchive
from console.messages import find_scan_range, scan_messages
from console.payloads import compare_sides, lay_out_json, render_hex
from tests.archive import entries, messages, write_commits
from tests.console.yard import BIG, EVIL, make_yard, open_client, sign_in, token_of
from tests.query_processes import find_query_processes, hold_query_processes
from tests.waiting import wait_until

NUMBERS = b'\n{"id":9007199254740993,"price": 1.10,\r\n "big": 1e400}'
LARGE = b'{"a": "' + b"x" * 10_000_000 + b'"}'
BINARY = bytes(range(256))
RANGE = {
    name: (datetime.now(UTC) + days * timedelta(days=1)).isoformat() for name, days in (("from", -1), ("to", 1))
}


@pytest.fixture(scope="module")
def yard(start_api):
    yard = make_yard(start_api)
    _archive(yard, "kinds", ["101", "102", "103"], [NUMBERS, BINARY, LARGE])
    return yard


def _archive(yard, topic, message_ids, payloads):
    count = len(payloads)
    rows = messages(
        count,
        data=payloads,
        attributes=[entries({"n": EVIL})] * count,
        message_id=message_ids,
        publish_time=[datetime.now(UTC)] * count,
        ordering_key=["k"] * count,
    )
    write_commits(LakeArchive(str(yard.api.home / "lake"), "backup.messages"), {topic: rows})


def address(yard, message_id, part=""):
    with yard.api.client(yard.key) as client:
        client.timeout = 60
        asked = {"topic": "kinds", "message_id": message_id, "preview_bytes": 1, **RANGE}
        (found,) = client.get("/messages", params=asked).json()["messages"]
    return f"/console/topics/kinds/message{part}?{urlencode({'id': message_id, 'at': found['ingest_time']})}"


def test_a_message_is_shown_whole_with_its_own_numbers(yard, browser):
    text = browser.get(address(yard, "101")).text
    shown = [unescape(each) for each in re.findall(r"<pre[^>]*>(.*?)</pre>", text, re.DOTALL)]
    assert shown[0] == '{\n  "id": 9007199254740993,\n  "price": 1.10,\n  "big": 1e400\n}'
    assert "00000000  0a 7b 22 69 64 22 3a 39" in shown[2]
    assert "k</dd>" in text
    assert EVIL not in text


def test_a_download_is_the_archive_s_bytes(yard, browser):
    for message_id, payload in (("101", NUMBERS), ("102", BINARY)):
        answer = browser.get(address(yard, message_id, "/data"))
        assert answer.content == payload
        assert answer.headers["content-disposition"] == f'attachment; filename="{message_id}"'
        assert answer.headers["content-type"] == "application/octet-stream"


def test_ten_megabytes_are_metadata_and_a_download(yard, browser):
    browser.timeout = 60
    page = browser.get(address(yard, "103"))
    assert len(page.content) < 20_000
    assert f"{len(LARGE):,} bytes" in page.text
    assert "The payload is too large for a page" in page.text
    assert browser.get(address(yard, "103", "/data")).content == LARGE


def test_only_this_one_is_what_the_plan_of_its_query_has(yard, browser):
    text = browser.get(address(yard, "101")).text
    path = unescape(re.search(r'href="(/console/backfills/new[^"]+)"', text)[1])
    form = browser.get(path).text
    fields = {name: unescape(re.search(rf'name="{name}" value="([^"]*)"', form)[1]) for name in ("from", "to")}
    query = unescape(re.search(r"<textarea id=\"query\"[^>]*>(.*?)</textarea>", form, re.DOTALL)[1])
    fields |= {"form_token": token_of(browser.get(path)), "topic": "replay", "query": query, "do": "plan"}
    planned = browser.post("/console/backfills/new", data={**fields, "compare": "yes"}).text
    assert "The backfill would publish 1 message to replay" in planned
    assert "This message is the same as in the archive." in planned
    saved = re.search(r'data-copy="([^"]+)"', planned)[1]
    assert base64.b64decode(saved) == NUMBERS


def test_a_brushed_hour_is_replayed_and_nothing_beside_it(yard, browser):
    with yard.api.client(yard.key) as client:
        ((found, *_),) = (client.get("/messages", params={"topic": "kinds", **RANGE}).json()["messages"],)
    ingested = datetime.fromisoformat(found["ingest_time"])
    # The day's partition begins before it: at midnight.
    for start, rows in ((ingested, 3), (ingested + timedelta(microseconds=1), 0)):
        bounds = {"from": start.isoformat(), "to": (start + timedelta(seconds=1)).isoformat()}
        page = browser.get("/console/backfills/new", params={"source": "kinds", **bounds})
        query = unescape(re.search(r'<textarea id="query"[^>]*>(.*?)</textarea>', page.text, re.DOTALL)[1])
        fields = {"form_token": token_of(page), "topic": "replay", "query": query, "do": "plan", **bounds}
        assert (
            f"The backfill would publish {rows} messages"
            in browser.post("/console/backfills/new", data=fields).text
        )


def test_a_change_of_the_query_is_shown_line_by_line(yard, browser):
    page = browser.get("/console/backfills/new")
    query = (
        "SELECT CAST(REPLACE(SAFE_CONVERT_BYTES_TO_STRING(data), '1.10', '2.20') AS BYTES) AS data, attributes, "
        "message_id, topic, publish_time FROM backup.messages WHERE _PARTITIONTIME >= TIMESTAMP_TRUNC(@from, DAY) "
        "AND _PARTITIONTIME < @to AND topic = 'kinds' AND message_id = @id"
    )
    fields = {"form_token": token_of(page), "topic": "replay", "query": query, "parameters": "id:STRING:101"}
    planned = browser.post("/console/backfills/new", data={**fields, **RANGE, "do": "plan", "compare": "yes"}).text
    lines = re.findall(r'<span class="(went|came|stays)">(.*?)</span>', planned)
    assert ("went", "-   &#34;price&#34;: 1.10,") in lines
    assert ("came", "+   &#34;price&#34;: 2.20,") in lines
    assert ("stays", "    &#34;id&#34;: 9007199254740993,") in lines
    wrong = browser.post("/console/backfills/new", data={**fields, "parameters": "id", "do": "plan"}).text
    assert "is not NAME:TYPE:VALUE" in wrong


def test_a_brush_writes_times_of_the_page_s_zone(browser):
    text = browser.get("/console/topics/orders?step=hour&zone=Asia/Kolkata").text
    starts = re.findall(r'data-start="([^"]+)"', text)
    assert len(starts) == 24
    assert all(each.endswith("+05:30") for each in starts)
    assert 'name="from" value="' + starts[0] in text


def test_tables_and_recipes_stand_beside_the_editor(browser):
    text = browser.get("/console/backfills/new?topic=replay").text
    assert "<code>backup.messages</code>" in text.split('id="tables"')[1]
    assert "<code>ordering_key</code>" in text
    recipes = text.split('id="recipes"')[1]
    # Those that need no SQL are the form's other fields.
    assert recipes.count("Use this recipe") == 3
    begun = browser.get(unescape(re.findall(r'href="(/console/backfills/new\?[^"]+)"', recipes)[2])).text
    assert ">\nfrom:TIMESTAMP:2026-01-10T00:00:00Z</textarea>" in begun


def scan(browser, address):
    events = []
    with browser.stream("GET", address) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("event: "):
                events.append((line.removeprefix("event: "), {}))
            elif line.startswith("data: "):
                events[-1] = (events[-1][0], json.loads(line.removeprefix("data: ")))
    return events


def test_a_search_ends_at_a_page_and_reads_on_where_it_ended(yard, browser):
    _archive(yard, "many", [f"m{n}" for n in range(60)], [b"1"] * 60)
    address = f"/console/scan/many?{urlencode(RANGE)}"
    seen, rounds = [], 0
    while address is not None:
        events = scan(browser, address)
        seen += [name for _, data in events for name in re.findall(r"<h3><a [^>]*>(m\d+)</a>", data["html"])]
        assert events[-1][0] == "end"
        address, rounds = events[-1][1]["more"], rounds + 1
    assert (sorted(seen), rounds) == (sorted(f"m{n}" for n in range(60)), 2)


def test_a_search_that_nobody_follows_any_more_reads_nothing_more():
    async def follow():
        calls = 0

        async def search(_, **__):
            nonlocal calls
            calls += 1
            return {"messages": [], "next_page_token": None}

        params = {"from": "2026-01-01T00:00:00Z", "to": "2026-02-01T00:00:00Z"}
        api = SimpleNamespace(search_messages=search)
        visit = SimpleNamespace(params=params, zone=ZoneInfo("UTC"), api=api)
        events = scan_messages(visit, "orders", *find_scan_range(visit), is_stopping=lambda: False)
        seen = [await anext(events) for _ in range(4)]
        await events.aclose()
        assert [each.split("\n")[0] for each in seen] == ["event: progress", "event: found"] * 2
        return calls

    assert asyncio.run(follow()) == 2


@pytest.mark.usefixtures("own_spares")
def test_a_search_that_is_stopped_ends_the_query_under_way(browser):
    address = f"/console/scan/orders?{urlencode(RANGE)}"
    # It takes the process that was there before, which is no child of this one.
    scan(browser, address)
    for spare in find_query_processes():
        os.kill(spare, signal.SIGKILL)
    with hold_query_processes() as held:
        with browser.stream("GET", address):
            wait_until(lambda: held, "a query begins")
            query = set(held)
        wait_until(lambda: not query & find_query_processes(), "the query ends when nobody follows the search")


def test_a_search_says_what_it_has_read_and_ends(browser):
    events = scan(browser, f"/console/scan/orders?{urlencode({**RANGE, 'text': '9007199254740993'})}")
    assert [name for name, _ in events][:2] == ["progress", "found"]
    assert "Reading" in events[0][1]["html"]
    name, last = events[-1]
    assert (name, last["more"]) == ("end", None)
    assert "1 message found. The search has read all messages" in last["html"]
    found = "".join(data["html"] for name, data in events if name == "found")
    assert "9007199254740993" in found
    assert "<script>document" not in found
    assert len(BIG) < 1024


def test_samples_of_a_plan_are_hidden_without_the_scope(yard):
    with open_client(yard) as client:
        sign_in(client, yard.api.make_key("backfills.read", "backfills.plan", "backfills.run", name="planner"))
        page = client.get("/console/backfills/new", params={"source": "orders", "topic": "replay", **RANGE})
        query = unescape(re.search(r'<textarea[^>]*id="query"[^>]*>(.*?)</textarea>', page.text, re.DOTALL)[1])
        fields = {"form_token": token_of(page), "query": query, "topic": "replay", **RANGE, "do": "plan"}
        planned = client.post("/console/backfills/new", data=fields).text
    assert "The backfill would publish" in planned, planned[-3000:]
    assert "To see the payload, you need the scope <code>messages.read</code>" in planned
    assert "9007199254740993" not in planned


def test_a_search_that_is_refused_says_so_and_reads_on_for_nobody(yard):
    with open_client(yard) as client:
        sign_in(client, yard.api.make_key("backfills.read", name="blind"))
        text = client.get(f"/console/scan/orders?{urlencode(RANGE)}").text
        assert "messages.read" in text
        assert text.count("event: failed") == 1
        assert client.get(address(yard, "101", "/data")).status_code == 403


@pytest.mark.parametrize("text", ["{", "[1,]", "NaN", '"a" "b"', "01", ""])
def test_what_is_no_json_is_not_laid_out(text):
    assert lay_out_json(text) is None


def test_laying_out_keeps_every_value_s_own_text():
    text = r'{"a\"{,":[-0,1E400,"\u00e9\\"],"a\"{,":{"":[]}}'
    found = lay_out_json(text)
    assert found is not None
    assert "".join(line.strip() for line in found.splitlines()).replace(": ", ":") == text


def test_payloads_that_differ_in_blanks_alone_differ():
    def side(data, **attributes):
        return {"data": data, "encoding": "text", "is_cut": False, "attributes": attributes}

    found = compare_sides(side('{"a":1}', k="v"), side('{"a": 1}', k="v", added="x"))
    assert found["data"] == [("-", '{"a":1}'), ("+", '{"a": 1}')]
    assert (found["is_data_same"], found["are_attributes_same"]) == (False, False)
    assert found["attributes"] == [("+", "added=x"), (" ", "k=v")]
    assert render_hex(b"") == ""
