import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from console.guard import own_path
from console.topic import draw_histogram, find_range
from console.view import (
    UNKNOWN,
    _environment,
    make_url,
    parse_zone,
    render_number,
    render_seconds,
    show_age,
    show_time,
)
from model.errors import RequestRefusedError
from tests.console.past import run_backfill


@pytest.mark.parametrize("render", [render_number, render_seconds])
def test_what_nobody_knows_is_never_zero(render):
    assert render(None) == UNKNOWN
    assert render(0) in ("0", "0.0 s")


def test_a_time_has_its_offset_and_holds_utc():
    found = str(show_time("2026-07-01T03:00:00.5Z", ZoneInfo("Europe/Stockholm")))
    assert found == '<time datetime="2026-07-01T03:00:00.500000Z">2026-07-01 05:00:00 +02:00</time>'


def test_an_age_has_the_exact_time_as_its_title_and_an_old_one_is_a_date():
    now, zone = datetime(2026, 7, 1, 3, 10, tzinfo=UTC), ZoneInfo("Europe/Stockholm")
    said = {at: str(show_age(at, zone, now)) for at in ("2026-07-01T03:00:00Z", "2026-01-01T00:00:00Z")}
    exact = '<time datetime="2026-07-01T03:00:00Z" title="2026-07-01 05:00:00 +02:00">10 min ago</time>'
    assert said["2026-07-01T03:00:00Z"] == exact
    assert said["2026-01-01T00:00:00Z"].endswith('title="2026-01-01 01:00:00 +01:00">2026-01-01</time>')
    assert show_age(None, zone, now) == UNKNOWN


def test_of_many_attributes_the_first_are_shown_and_the_rest_is_folded() -> None:
    payload = _environment().get_template("parts.html").module.payload
    letter = {"data": "x", "data_bytes": 1, "is_cut": False, "encoding": "text"}
    pairs = {f"consent_{number}": "yes" for number in range(7)}
    shown, _, folded = str(payload({**letter, "attributes": pairs}, "m1", "/m1")).partition("<details>")
    assert "consent_4=yes" in shown
    assert "consent_5" not in shown
    assert "<summary>2 more</summary>consent_5=yes, consent_6=yes</details>" in folded
    assert 'data-label="Attributes" class="wide">-</td>' in str(payload({**letter, "attributes": {}}, "m1", "/"))


def test_a_page_that_is_not_kept_up_to_date_has_the_times_themselves(yard, browser):
    listed = browser.get("/console/jobs").text
    assert re.search(r'data-label="Created"><time datetime="\S+" title="[^"]+">just now</time>', listed), listed
    letters = browser.get(f"/console/jobs/{run_backfill(yard)}/dead-letters").text
    assert re.search(r'data-label="Failed"><time datetime="\S+">\d{4}-', letters), letters


@pytest.mark.parametrize("name", ["Nowhere/Atlantis", "../../etc/passwd", "Europe", "a" * 300])
def test_an_unknown_zone_is_refused_by_its_name(name):
    with pytest.raises(RequestRefusedError, match="There is no time zone '"):
        parse_zone(name)


def test_without_a_zone_it_is_utc_and_a_link_keeps_the_others():
    assert parse_zone(None).key == parse_zone("").key == "UTC"
    assert (
        make_url("/streams", parse_zone("Asia/Tokyo"), state="x y")
        == "/console/streams?state=x+y&zone=Asia%2FTokyo"
    )


@pytest.mark.parametrize(
    "path",
    [
        "https://evil.example/console",
        "//evil.example/console",
        "/\\evil.example",
        "/console\\evil",
        "/consolex",
        "javascript:alert(1)",
        "/console/sign-out",
        "/console/../backfills",
        "/console/%2E%2e/other-app?x=1",
        "/console/x/.%2e/../docs",
        "/console\r\nSet-Cookie: a=b",
        None,
    ],
)
def test_a_sign_in_goes_back_to_own_paths_only(path):
    assert own_path(path) == "/console"
    assert own_path("/console/topics/a?zone=UTC") == "/console/topics/a?zone=UTC"


def test_a_range_of_the_url_is_absolute_and_one_without_offset_is_of_the_zone():
    now = datetime(2026, 1, 10, 9, 30, tzinfo=ZoneInfo("Asia/Tokyo"))
    start, end = find_range({"from": "2026-01-01T00:00", "to": "2026-01-01T02:00:00Z"}, "hour", now)
    assert start.astimezone(UTC) == datetime(2025, 12, 31, 15, tzinfo=UTC)
    assert end == datetime(2026, 1, 1, 2, tzinfo=UTC)
    with pytest.raises(RequestRefusedError, match="from is not a time: 'yesterday'"):
        find_range({"from": "yesterday", "to": ""}, "hour", now)


def test_a_minute_without_messages_is_no_gap():
    buckets = [{"start": f"2026-01-01T00:0{n}:00Z", "messages": count} for n, count in enumerate((5, 0, 1))]
    assert draw_histogram(buckets, timedelta(minutes=1))["gaps"] == []


def test_a_gap_is_a_step_without_messages_between_others():
    buckets = [{"start": f"2026-01-01T0{n}:00:00Z", "messages": count} for n, count in enumerate((0, 5, 0, 1, 0))]
    drawn = draw_histogram(buckets, timedelta(hours=1))
    assert [bar["start"] for bar in drawn["gaps"]] == ["2026-01-01T02:00:00Z"]
    assert drawn["bars"][1]["height"] == 100.0
