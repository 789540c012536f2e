"""An hour that strayed to another topic is named on the topic's page and beside a plan that finds nothing."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape

import httpx
import pytest

from console.elsewhere import find_elsewhere
from tests.console.past import archive_past
from tests.console.yard import make_yard

DAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
HOLE = DAY.replace(hour=14)
HOURS = {12: 30, 13: 40, 14: 60, 15: 50, 16: 20}
DAYTIME = {"from": DAY.replace(hour=12).isoformat(), "to": DAY.replace(hour=17).isoformat()}
HOUR = {"from": HOLE.isoformat(), "to": (HOLE + timedelta(hours=1)).isoformat()}


@pytest.fixture(scope="module")
def yard(start_api):
    """A deployment with an hour of sales that came in as sales-next."""
    yard = make_yard(start_api, with_key=False)
    archived = [
        ("sales-next" if hour == 14 else "sales", DAY.replace(hour=hour), count) for hour, count in HOURS.items()
    ]
    archive_past(yard, archived)
    return yard


@pytest.fixture
def browser(yard):
    with httpx.Client(base_url=yard.api.url) as client:
        yield client


def elsewhere(page):
    """Return the cells of what a page names, without the links' addresses."""
    found = re.search(r'<div class="warning" id="elsewhere">.*?</div>', page, re.DOTALL)
    return (
        []
        if found is None
        else re.findall(r'data-label="(?:Topic|Then|Usually)"[^>]*>(?:<a[^>]*>)?([^<]+)', found[0])
    )


@pytest.mark.parametrize("bounds", [DAYTIME, HOUR], ids=["day", "hour"])
def test_a_topic_s_page_names_where_the_messages_of_its_hole_may_have_gone(browser, bounds):
    page = browser.get("/console/topics/sales", params=bounds).text
    assert elsewhere(page) == ["sales-next", "60", "0"]
    link = unescape(re.search(r'href="(/console/backfills/new[^"]+)">sales-next to sales', page)[1])
    editor = browser.get(link).text
    assert "topic = &#39;sales-next&#39;" in editor
    assert re.search(r'id="topic" name="topic" value="sales"', editor)
    assert [unescape(found) for found in re.findall(r'id="(?:from|to)" name="\w+" value="([^"]+)"', editor)] == [
        HOUR[name].replace("+00:00", "Z") for name in ("from", "to")
    ]


def test_the_other_topic_and_one_without_a_hole_name_none(browser):
    assert elsewhere(browser.get("/console/topics/sales-next", params=HOUR).text) == []
    whole = {"from": DAY.replace(hour=12).isoformat(), "to": DAY.replace(hour=14).isoformat()}
    assert elsewhere(browser.get("/console/topics/sales", params=whole).text) == []


def test_a_plan_that_finds_nothing_names_it_with_the_same_query(browser):
    path = "/console/backfills/new"
    editor = browser.get(path, params={"source": "sales", **HOUR}).text
    query = unescape(re.search(r"<textarea[^>]*>(.*?)</textarea>", editor, re.DOTALL)[1])
    query = query.replace("message_id,", "message_id, ordering_key,")
    token = re.search(r'name="form_token" value="([^"]+)"', editor)[1]
    fields = {"form_token": token, "do": "plan", "topic": "replay", "source": "sales", **HOUR}
    planned = browser.post(path, data={**fields, "query": query}).text
    assert "The backfill would publish 0 messages to replay" in planned
    assert elsewhere(planned) == ["sales-next", "60", "0"]
    # The partitions that are read are no window.
    window = re.search(r'Window <span class="over">ingest_time</span></dt><dd>(.*?)</dd>', planned)[1]
    assert re.findall(r"> *(\d{4}-\d\d-\d\d \d\d:\d\d)", window) == [
        f"{DAY:%Y-%m-%d} 14:00",
        f"{DAY:%Y-%m-%d} 15:00",
    ]
    assert "<dt>Partitions read</dt>" in planned
    link = unescape(re.search(r'href="(/console/backfills/new[^"]+)">sales-next', planned)[1])
    editor = browser.get(link).text
    asked = unescape(re.search(r"<textarea[^>]*>(.*?)</textarea>", editor, re.DOTALL)[1]).strip()
    assert asked == query.replace("'sales'", "'sales-next'").strip()
    found = browser.post(path, data={**fields, "source": "sales-next", "query": asked}).text
    assert "The backfill would publish 60 messages to replay" in found
    assert elsewhere(found) == []


def series(topic, *messages, usual=None, gaps=()):
    surges = [] if usual is None else [{"start": STARTS[1], "usual": usual}]
    return {"topic": topic, "messages": list(messages), "gaps": list(gaps), "surges": surges}


STARTS = [f"2026-01-01T0{hour}:00:00Z" for hour in range(3)]


def named(*topics, **options):
    volumes = {"starts": STARTS, "step": "hour", "topics": list(topics)}
    return [each["topic"] for each in find_elsewhere(volumes, "orders", **options)]


def test_the_largest_surplus_comes_first_and_what_is_replayed_already_is_left_out():
    orders = series("orders", 9, 0, 9)
    more, most = series("more", 5, 30, 5, usual=5), series("most", 100, 300, 100, usual=100)
    assert named(orders, more, most, series("steady", 9, 9, 9)) == ["most", "more"]
    assert named(orders, more, most, excluded=["most"]) == ["more"]
    many = [series(f"t{number}", 0, 10 + number, 0, usual=0) for number in range(8)]
    assert named(orders, *many) == ["t7", "t6", "t5", "t4", "t3"]


def test_a_hole_is_a_gap_or_a_silence_and_never_what_nobody_has_counted():
    other = series("other", 0, 30, 0, usual=0)
    assert named(series("orders", 9, 1, 9), other) == []
    assert named(series("orders", 9, 1, 9, gaps=(STARTS[1],)), other) == ["other"]
    assert named(series("orders", 9, 0, 0), other) == []
    assert named(series("orders", 0, 0, 0), other) == named(other) == ["other"]
    assert named(series("orders", 9, None, 9), other) == named(series("orders", 0, None, 0), other) == []
