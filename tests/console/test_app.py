"""The console's pages over a real API, without a browser."""

import re
import socket
import time
from datetime import UTC, datetime, timedelta
from html import unescape

import httpx
import pytest

from connectors.lake.archive import LakeArchive
from console.guard import POLICY
from console.visit import Visit
from jobs.keys import Keyring
from model.errors import ForbiddenError
from model.job import JobState
from model.principal import SCOPES
from tests.archive import messages, write_commits
from tests.console.yard import BIG, EVIL, make_yard, open_client, sign_in, token_of

PAGES = (
    *("", "/topics", "/topics/orders?show=page&step=minute", "/streams", "/streams/backup", "/jobs"),
    "/schedules",
)
SECONDS = 20.0


@pytest.fixture
def browser(yard):
    with open_client(yard) as client:
        yield client


@pytest.fixture
def signed_in(yard, browser):
    assert sign_in(browser, yard.key).headers["location"] == "/console"
    return browser


def test_nobody_sees_a_page_before_they_sign_in_and_then_comes_back_to_it(yard, browser):
    asked = "/console/topics/orders?step=day&zone=Asia/Tokyo"
    refused = browser.get(asked)
    assert (refused.status_code, "orders" in refused.text) == (303, False)
    page = browser.get(refused.headers["location"])
    back = re.search(r'name="return" value="([^"]+)"', page.text)[1].replace("&amp;", "&")
    answer = sign_in(browser, yard.key, back)
    assert answer.headers["location"] == back
    assert browser.get(back).status_code == 200


def test_the_session_is_a_cookie_that_no_script_reads_and_the_key_is_nowhere(yard, browser):
    cookie = sign_in(browser, yard.key).headers["set-cookie"]
    assert re.match(r"refeed_session=rs_[\w-]{43}; HttpOnly; Path=/console; SameSite=lax$", cookie)
    for page in PAGES:
        assert yard.key not in browser.get(f"/console{page}").text
        assert browser.cookies["refeed_session"] not in browser.get(f"/console{page}").text


def test_off_this_machine_cookies_travel_over_tls_alone(yard):
    with open_client(yard, Host="refeed.shop.example") as client:
        assert "; Secure" in client.get("/console/sign-in").headers["set-cookie"]


@pytest.mark.parametrize("key", ["rf_wrong", "rf_ä"])
def test_a_wrong_key_is_refused_in_words(browser, key):
    answer = sign_in(browser, key)
    assert (answer.status_code, "The API does not accept this key" in answer.text) == (403, True)
    assert "refeed_session" not in browser.cookies


def test_every_answer_has_the_policy(yard, signed_in):
    for path in ("/console/sign-in", "/console", "/console/nowhere", "/console/assets/console.js"):
        headers = signed_in.get(path).headers
        assert headers["content-security-policy"] == POLICY
        assert headers["x-content-type-options"] == "nosniff"
    assert signed_in.get("/console").headers["cache-control"] == "no-store"
    assert "content-security-policy" not in signed_in.get("/healthz").headers


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_one_heading_and_it_is_in_its_content(signed_in, page):
    text = signed_in.get(f"/console{page}").text
    assert text.count("<h1") == 1
    assert text.index("<main") < text.index("<h1") < text.index("</main>")


def test_a_job_s_page_has_all_there_is_to_know_escaped(yard, signed_in):
    text = signed_in.get(f"/console/jobs/{yard.failed}").text
    for wanted in ("driver_died", "OPS-17", "_PARTITIONDATE = @day", "2026-01-01", "key:ann", "Retry ..."):
        assert wanted in text
    assert EVIL not in text
    assert "&lt;img src=x" in text


def test_a_payload_is_shown_as_the_archive_has_its_numbers(yard, signed_in):
    assert b"9007199254740993" in BIG
    assert "9007199254740993" in signed_in.get("/console/topics/orders?show=page").text


def test_a_key_without_the_scope_is_told_which_one(yard, browser):
    sign_in(browser, yard.api.make_key("backfills.read", name="reader"))
    page = browser.get("/console/topics/orders?show=messages").text
    assert "This call needs the scope messages.read. key:reader does not have this scope." in page
    assert "To change a backfill, you need the scope" in browser.get(f"/console/jobs/{yard.running}").text
    answer = _act(browser, f"/console/jobs/{yard.running}/resume")
    assert (answer.status_code, "backfills.run" in answer.text) == (403, True)
    assert yard.api.store.get(yard.running).state is JobState.PAUSED


def _act(client: httpx.Client, path: str, **fields: str) -> httpx.Response:
    page = client.get(path)
    return client.post(path, data={"form_token": token_of(page), "do": "perform", **fields})


def test_a_revoked_key_ends_the_session_with_the_next_page(yard, browser):
    keyring = Keyring(yard.api.store)
    made, key = keyring.create("leaver", ["backfills.admin"])
    sign_in(browser, key)
    assert browser.get("/console").status_code == 200
    keyring.revoke(made.id)
    assert browser.get("/console").headers["location"].startswith("/console/sign-in?return=")
    live = browser.get("/console/live")
    assert live.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert live.text == "event: signed-out\ndata: {}\n\n"


@pytest.mark.usefixtures("refreshed_often")
def test_an_open_page_ends_with_its_own_key_while_another_with_the_same_rights_goes_on(yard, signed_in):
    keyring = Keyring(yard.api.store)
    made, key = keyring.create("leaver", list(SCOPES))
    with open_client(yard) as leaving:
        sign_in(leaving, key)
        with signed_in.stream("GET", "/console/live") as staying, leaving.stream("GET", "/console/live") as ending:
            goes_on = (line for line in staying.iter_lines() if line.startswith("event: "))
            ends = (line for line in ending.iter_lines() if line.startswith("event: "))
            assert (next(goes_on), next(ends)) == ("event: page", "event: page")
            keyring.revoke(made.id)
            assert "event: signed-out" in list(ends)
            assert next(goes_on) != "event: signed-out"


def test_what_is_shared_is_shared_among_equal_rights_alone(yard, signed_in):
    _, key = Keyring(yard.api.store).create("nobody", ["streams.read"])
    with open_client(yard) as other:
        sign_in(other, key)
        pages = []
        for client in (signed_in, other):
            with client.stream("GET", "/console/live/jobs") as live:
                pages.append(next(line for line in live.iter_lines() if line.startswith("data: ")))
    assert [yard.done in page for page in pages] == [True, False]


def test_a_form_of_another_page_or_browser_does_nothing(yard, signed_in):
    path = f"/console/jobs/{yard.running}/resume"
    fields = {"form_token": token_of(signed_in.get(path)), "do": "perform"}
    foreign = (
        *({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}, {"Origin": "null"}),
        {"Origin": "http://["},
    )
    for headers in foreign:
        assert signed_in.post(path, data=fields, headers=headers).status_code == 403
    assert signed_in.post(path, data={"do": "perform"}).status_code == 403
    with open_client(yard) as other:
        sign_in(other, yard.key)
        assert other.post(path, data=fields).status_code == 403
    assert yard.api.store.get(yard.running).state is JobState.PAUSED


def test_a_form_that_does_not_arrive_is_answered_and_no_error_of_the_service(yard, monkeypatch, caplog):
    monkeypatch.setattr("console.guard._FORM_SECONDS", 0.5)
    head = f"POST /console/sign-in HTTP/1.1\r\nHost: 127.0.0.1:{yard.api.port}\r\nConnection: close\r\n"
    part = f"{head}Content-Length: 9\r\n\r\nkey="
    # Until the other side closes the connection.
    answer = yard.api.send_raw(part.encode())
    assert answer.startswith(b"HTTP/1.1 408 "), answer[:100]
    with socket.create_connection(("127.0.0.1", yard.api.port), timeout=SECONDS) as connection:
        connection.sendall(part.encode())
        time.sleep(0.1)
    time.sleep(0.2)
    assert "Exception in ASGI application" not in caplog.text


def test_what_is_dangerous_needs_the_name_typed_and_what_was_seen_to_be_true_still(yard, signed_in):
    path = f"/console/jobs/{yard.running}/cancel"
    page = signed_in.get(path).text
    assert "250 of 1,000 messages are published. 750 are not published yet." in page
    etag = re.search(r'name="etag" value="([^"]+)"', page)[1].replace("&#34;", '"')
    answer = _act(signed_in, path, typed="order", etag=etag)
    assert (answer.status_code, "Nothing was done" in answer.text) == (422, True)
    answer = _act(signed_in, path, typed="orders", etag='"999"')
    assert (answer.status_code, "job_changed" in answer.text) == (412, True)
    assert yard.api.store.get(yard.running).state is JobState.PAUSED


def test_a_problem_of_the_api_is_shown_with_every_reason(yard, signed_in):
    page = signed_in.get("/console/backfills/new?topic=orders")
    query = "SELECT data FROM elsewhere.table"
    fields = {"form_token": token_of(page), "do": "plan", "topic": "orders", "query": query}
    answer = signed_in.post("/console/backfills/new", data=fields)
    assert "query_refused" in answer.text
    assert query in answer.text
    assert answer.text.count("<li>") >= 1


def test_a_rate_is_changed_as_its_page_showed_it_or_not_at_all(yard, signed_in):
    path, field = f"/console/jobs/{yard.running}/rate", "rate_limit_messages_per_second"
    with yard.api.client(yard.key) as client:
        client.patch(f"/jobs/{yard.running}", json={field: 1_234_567}).raise_for_status()
        page = signed_in.get(path)
        assert 'value="1234567"' in page.text
        client.patch(f"/jobs/{yard.running}", json={field: 5}).raise_for_status()
        etag = unescape(re.search(r'name="etag" value="([^"]+)"', page.text)[1])
        stale = {"form_token": token_of(page), "do": "perform", "rate": "900", "etag": etag}
        answer = signed_in.post(path, data=stale)
        assert (answer.status_code, "job_changed" in answer.text) == (412, True)
        assert client.get(f"/jobs/{yard.running}").json()[field] == 5
        fresh = unescape(re.search(r'name="etag" value="([^"]+)"', answer.text)[1])
        assert signed_in.post(path, data={**stale, "etag": fresh}).status_code == 303
        assert client.get(f"/jobs/{yard.running}").json()[field] == 900


@pytest.mark.parametrize("text", ["nan", "inf", "1e999", "many"])
def test_a_rate_that_is_no_number_is_refused_in_words(yard, signed_in, text):
    answer = _act(signed_in, f"/console/jobs/{yard.running}/rate", rate=text)
    assert (answer.status_code, 'class="problem"' in answer.text) == (422, True)
    page = signed_in.get("/console/backfills/new?topic=orders")
    fields = {"form_token": token_of(page), "topic": "orders", "query": "SELECT 1", "canary": text}
    planned = signed_in.post("/console/backfills/new", data={**fields, "do": "plan"})
    assert (planned.status_code, "canary is not a number" in planned.text) == (200, True)


def test_a_brushed_range_becomes_a_plan_and_a_plan_a_backfill(yard, signed_in):
    path = "/console/backfills/new"
    day = timedelta(days=1)
    brushed = {"from": (datetime.now(UTC) - day).isoformat(), "to": (datetime.now(UTC) + day).isoformat()}
    page = signed_in.get(path, params={"source": "orders", **brushed})
    query = unescape(re.search(r"<textarea[^>]*>(.*?)</textarea>", page.text, re.DOTALL)[1])
    fields = {"form_token": token_of(page), "topic": "replay", "query": query, "canary": "5"}
    fields |= brushed
    planned = signed_in.post(path, data={**fields, "do": "plan"})
    assert "The backfill would publish 30 messages to replay" in planned.text, planned.text[-3000:]
    plan = re.search(r'name="plan_id" value="([^"]+)"', planned.text)[1]
    made = signed_in.post(path, data={**fields, "do": "perform", "plan_id": plan})
    assert re.fullmatch(r"/console/jobs/bf_[0-9A-Z]{26}", made.headers["location"]), made.text[-3000:]
    job = yard.api.store.get(made.headers["location"].rpartition("/")[2])
    assert (job.request["topic"], job.request["plan_id"]) == ("replay", plan)


def test_a_plan_has_an_address_and_shows_what_it_is_of(yard, signed_in):
    path = "/console/backfills/new"
    day = timedelta(days=1)
    bounds = {"from": (datetime.now(UTC) - day).isoformat(), "to": (datetime.now(UTC) + day).isoformat()}
    page = signed_in.get(path, params={"source": "orders", **bounds})
    query = unescape(re.search(r"<textarea[^>]*>(.*?)</textarea>", page.text, re.DOTALL)[1]).strip()
    written = {
        "topic": "replay",
        "query": f"{query} AND message_id != @not",
        "parameters": "not:STRING:m0",
        **bounds,
    }
    written |= {"rate": "7.5", "canary": "5", "description": "why", "labels": "a=b, c=d"}
    planned = signed_in.post(path, data={"form_token": token_of(page), "do": "plan", **written}).text
    plan = re.search(r'data-plan="([^"]+)"', planned)[1]
    opened = signed_in.get(path, params={"plan": plan}).text
    assert "The backfill would publish 29 messages to replay" in opened
    assert f'name="plan_id" value="{plan}"' in opened
    found = {
        name: unescape(value)
        for name, value in re.findall(r'<input id="\w+" name="(\w+)" value="([^"]*)"', opened)
    }
    areas = re.findall(r'<textarea[^>]* name="(\w+)"[^>]*>(.*?)</textarea>', opened, re.DOTALL)
    found |= {name: unescape(value).strip() for name, value in areas}
    assert found == {**written, "source": "", "source_attributes": "", "where": "", "options": ""}
    gone = signed_in.get(path, params={"plan": "pl_none"}).text
    assert "plan_expired" in gone
    assert 'id="plan"' not in gone
    with yard.api.client(yard.api.make_key("backfills.read", name="reader")) as client:
        assert client.get(f"/plans/{plan}").status_code == 403
    with yard.api.client(yard.api.make_key("backfills.plan", name="other", topics=["else"])) as client:
        assert client.get(f"/plans/{plan}").status_code == 403


def test_a_topic_and_a_range_are_planned_and_launched_without_sql(yard, signed_in):
    path = "/console/backfills/new"
    start = datetime.now(UTC) - timedelta(hours=2)
    rows = messages(3, publish_time=[start - timedelta(microseconds=1), start, start + timedelta(minutes=1)])
    write_commits(LakeArchive(str(yard.api.home / "lake"), "backup.messages"), {"ranges": rows})
    page = signed_in.get(path)
    assert '<details id="sql"><summary>' in page.text
    empty = dict.fromkeys(re.findall(r'<(?:input|textarea) id="\w+" name="(\w+)"', page.text), "")
    assert {"source", "from", "to", "source_attributes", "where", "query"} <= empty.keys()
    fields = {
        **empty,
        "form_token": token_of(page),
        "source": "ranges",
        "from": start.isoformat(),
        "topic": "replay",
    }
    planned = signed_in.post(path, data={**fields, "do": "plan"}).text
    assert "The backfill would publish 2 messages to replay" in planned
    assert "AND topic = &#39;ranges&#39;" in planned
    # What was left out, or written in short, is launched as it was planned.
    plan = re.search(r'name="plan_id" value="([^"]+)"', planned)[1]
    fields["to"] = unescape(re.search(r'name="to" value="([^"]+)"', planned)[1])
    made = signed_in.post(path, data={**fields, "do": "perform", "plan_id": plan})
    assert re.fullmatch(r"/console/jobs/bf_[0-9A-Z]{26}", made.headers["location"]), made.text[-3000:]
    narrow = {**fields, "source_attributes": "n=1", "where": "message_id = 'm1' OR message_id = 'm0'"}
    assert "would publish 1 message to replay" in signed_in.post(path, data={**narrow, "do": "plan"}).text
    for wrong, said in (
        ({"from": ""}, "from: &#39;&#39; is not a time."),
        ({"source": ""}, "source_topic is missing."),
        ({"where": "TRUE) OR (TRUE"}, "In where, line 1, column 5"),
        ({"to": "9999-01-01T00:00:00Z"}, "is in the future"),
        ({"source_attributes": "n"}, "The attribute &#39;n&#39; is not NAME=VALUE."),
    ):
        assert said in signed_in.post(path, data={**fields, **wrong, "do": "plan"}).text


def test_a_plan_of_nothing_is_not_launched(yard, signed_in):
    path = "/console/backfills/new"
    empty = {"from": "2026-01-01T02:00:00Z", "to": "2026-01-01T03:00:00Z"}
    page = signed_in.get(path, params={"source": "orders", **empty})
    query = unescape(re.search(r"<textarea[^>]*>(.*?)</textarea>", page.text, re.DOTALL)[1])
    fields = {"form_token": token_of(page), "topic": "replay", "query": query, **empty}
    planned = signed_in.post(path, data={**fields, "do": "plan"}).text
    assert "The backfill would publish 0 messages to replay" in planned
    assert "The query selects nothing, so there is nothing to launch." in planned
    assert re.search(r'<button name="do" value="perform" disabled[^>]*>Launch: publish 0 messages', planned)
    plan = re.search(r'name="plan_id" value="([^"]+)"', planned)[1]
    # What the browser would not send is refused all the same.
    refused = signed_in.post(path, data={**fields, "do": "perform", "plan_id": plan})
    assert (refused.status_code, "The plan selects nothing." in refused.text) == (422, True)


@pytest.mark.parametrize(
    ("address", "status"), [("/nothing", 404), ("/streams/nobody", 404), ("/streams", 403), ("/topics", 500)]
)
def test_a_page_of_an_error_has_the_header_of_any_other_page(signed_in, monkeypatch, address, status):
    def fail(*_, **__):
        raise ForbiddenError("not you") if status == 403 else AssertionError("a bug")

    if status in {403, 500}:
        monkeypatch.setattr(Visit, "read", fail)
    page = signed_in.get(f"/console{address}?zone=Asia/Tokyo")
    assert page.status_code == status
    assert "<option selected>Asia/Tokyo</option>" in page.text
    assert 'action="/console/sign-out"' in page.text
    assert "Content-Security-Policy" in page.headers
    ended = signed_in.post("/console/sign-out", data={"form_token": token_of(page)})
    assert ended.headers["location"].endswith("/console/sign-in")


def test_a_page_that_does_not_exist_says_so_to_a_stranger(browser):
    page = browser.get("/console/nothing")
    assert (page.status_code, "There is no such page." in page.text, "Sign out" in page.text) == (404, True, False)


@pytest.mark.parametrize(
    "address",
    [
        "/topics/orders?to=0001-01-01",
        "/topics/orders?from=0001-01-01T00:00:00%2B14:00&to=2026-01-01",
        "/topics/orders?to=9999-12-31T23:59:59&zone=Asia/Tokyo",
        "/topics/orders?step=hour&from=9999-12-30&to=9999-12-31T12:00",
        "/topics/orders/message?id=1&at=9999-12-31T23:59:59.999999Z",
        "/topics/orders/message?id=1&at=0001-01-01T00:00:00%2B14:00",
        "/sources/orders?since=0001-01-01T00:00:00%2B14:00",
        "/scan/orders",
        "/scan/orders?from=never&to=2026-01-01",
    ],
)
def test_an_address_with_a_time_at_the_calendar_s_end_or_none_is_answered(signed_in, address):
    assert signed_in.get(f"/console{address}").status_code < 500


def test_live_updates_send_the_part_first_and_then_only_what_has_changed(yard, signed_in, monkeypatch):
    with signed_in.stream("GET", f"/console/live/jobs/{yard.done}") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines, kinds = answer.iter_lines(), []
        for line in lines:
            if line.startswith("event: "):
                kinds.append(line)
            if len(kinds) == 2:
                break
    assert kinds == ["event: page", "event: tick"]


def test_an_open_api_needs_no_sign_in_and_answers_to_this_machine_alone(start_api):
    yard = make_yard(start_api, with_key=False)
    with open_client(yard) as client:
        page = client.get("/console")
        assert (page.status_code, "Sign out" in page.text) == (200, False)
        for headers in (
            {"Host": "rebound.evil.example"},
            {"X-Forwarded-For": "203.0.113.7"},
            {"Origin": "https://evil.example"},
        ):
            assert client.get("/console", headers=headers).status_code == 403
            assert client.get("/console/live", headers=headers).status_code == 403
