import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobs.listing import parse_order
from jobs.page_tokens import (
    parse_event_token,
    parse_page_token,
    parse_row_token,
    render_page_token,
    render_row_token,
)
from jobs.store import JobFilter
from model.errors import RequestInvalidError
from model.job import JobState

JANUARY = datetime(2026, 1, 1, tzinfo=UTC)
NEWEST = parse_order("")
RUNNING = JobFilter(states=(JobState.RUNNING,))


def test_a_token_gives_back_where_its_page_ended():
    order = parse_order("topic, created_at desc")
    last = ("örders", JANUARY, "bf_1")
    token = render_page_token(RUNNING, order, last)
    assert parse_page_token(token, RUNNING, order) == last
    assert "bf_1" not in token


@pytest.mark.parametrize(
    ("where", "order"),
    [
        (JobFilter(), ""),
        (JobFilter((JobState.FAILED,)), ""),
        (JobFilter((JobState.RUNNING, JobState.FAILED)), ""),
        (JobFilter((JobState.RUNNING,), "orders"), ""),
        (JobFilter((JobState.RUNNING,), labels=(("team", "shop"),)), ""),
        (JobFilter((JobState.RUNNING,), created_since=JANUARY), ""),
        (JobFilter((JobState.RUNNING,), kinds=("merge",)), ""),
        (RUNNING, "id asc"),
        (RUNNING, "topic"),
    ],
)
def test_a_token_is_good_for_its_own_filter_and_order_only(where: JobFilter, order: str):
    token = render_page_token(RUNNING, NEWEST, ("bf_1",))
    assert parse_page_token(token, JobFilter(states=(JobState.RUNNING,)), NEWEST) == ("bf_1",)
    with pytest.raises(RequestInvalidError, match="another filter or order_by"):
        parse_page_token(token, where, parse_order(order))


def test_a_token_is_not_good_for_another_time():
    where = JobFilter(created_since=JANUARY)
    token = render_page_token(where, NEWEST, ("bf_1",))
    assert parse_page_token(token, where, NEWEST) == ("bf_1",)
    with pytest.raises(RequestInvalidError, match="another filter or order_by"):
        parse_page_token(token, JobFilter(created_since=JANUARY + timedelta(microseconds=1)), NEWEST)


def encode(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


@pytest.mark.parametrize(
    "token",
    [
        *("", "%%%", "\xff", "====", "a", "bnVsbA", encode(1), encode([1]), encode(["x", 5])),
        *(encode(["x", [5]]), encode({}), base64.urlsafe_b64encode(b"[" * 5000).decode()),
    ],
)
def test_a_token_that_no_page_gave_is_refused(token: str):
    with pytest.raises(RequestInvalidError) as caught:
        parse_page_token(token, JobFilter(), NEWEST)
    assert caught.value.details["errors"][0]["code"] == "page_token_invalid"


@pytest.mark.parametrize(
    "content",
    [b"event 0001-01-01T00:00:00+10:00 1", b"event 2026-01-01T00:00:00+00:00 -1", b"event x 1", b"row 1", b"\xff"],
)
def test_an_event_s_token_that_no_page_gave_is_refused(content: bytes):
    with pytest.raises(RequestInvalidError):
        parse_event_token(base64.urlsafe_b64encode(content).decode())


def test_a_token_with_a_time_before_all_times_is_refused():
    order = parse_order("created_at")
    token = render_page_token(RUNNING, order, (datetime.fromisoformat("0001-01-01T00:00:00+10:00"), "bf_1"))
    with pytest.raises(RequestInvalidError):
        parse_page_token(token, RUNNING, order)


def test_a_row_s_token_tells_nobody_what_is_in_it():
    token = render_row_token(24_999)
    assert parse_row_token(token) == 24_999
    assert "24999" not in token


@pytest.mark.parametrize(
    "token", ["24999", "%%%", "\xff", "a", encode(1), render_row_token(10**18), encode("row -1")]
)
def test_a_row_s_token_that_no_page_gave_is_refused(token: str):
    with pytest.raises(RequestInvalidError):
        parse_row_token(token)
