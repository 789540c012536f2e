import base64
import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.filter import (
    parse_list_query,
    parse_page_token,
    parse_row_token,
    render_page_token,
    render_row_token,
)
from jobs.store import Condition, SortOrder
from model.errors import RequestInvalidError

JANUARY = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "conditions"),
    [
        ("", []),
        ("  ", []),
        ("state = RUNNING", [("state", "=", "RUNNING")]),
        ('state=RUNNING AND topic="orders"', [("state", "=", "RUNNING"), ("topic", "=", "orders")]),
        ("topic = 'it\\'s' AND (created_by != ann)", [("topic", "=", "it's"), ("created_by", "!=", "ann")]),
        ('created_at >= "2026-01-01T00:00:00Z"', [("created_at", ">=", JANUARY)]),
        ("created_at >= 2026-01-01T00:00:00Z", [("created_at", ">=", JANUARY)]),
        ("created_at < 2026-01-01T01:00:00+01:00", [("created_at", "<", JANUARY)]),
        ("finished_at < 2026-01-01", [("finished_at", "<", JANUARY)]),
        ("NOT created_at >= 2026-01-01", [("created_at", "<", JANUARY)]),
        ("-state = FAILED", [("state", "!=", "FAILED")]),
        ("labels.ticket:*", [("labels.ticket", ":", "*")]),
        ('labels.ticket = ""', [("labels.ticket", "=", "")]),
        ("state = PENDING OR state = RUNNING", [("state", "=", ("PENDING", "RUNNING"))]),
        # AIP-160: OR binds tighter than AND.
        (
            "topic = a-1 AND state = PENDING OR state = RUNNING",
            [("topic", "=", "a-1"), ("state", "=", ("PENDING", "RUNNING"))],
        ),
        (
            "NOT (state = FAILED OR state = CANCELLED)",
            [("state", "!=", "FAILED"), ("state", "!=", "CANCELLED")],
        ),
        ('topic = "AND"', [("topic", "=", "AND")]),
    ],
)
def test_a_filter_becomes_conditions_that_hold_together(text: str, conditions: list[Any]):
    assert list(parse_list_query(text).conditions) == [Condition(*parts) for parts in conditions]


@pytest.mark.parametrize(
    ("text", "column", "part"),
    [
        ("state", 6, "sign"),
        ("state =", 8, "value"),
        ("= RUNNING", 1, "field"),
        ("AND state = RUNNING", 1, "field"),
        ("state = RUNNING AND", 20, "field"),
        ("state = RUNNING topic = orders", 17, "not expected"),
        ("state = running", 9, "no state"),
        ("state > RUNNING", 7, "state takes"),
        ("colour = red", 1, "no field"),
        ("labels.Team = x", 1, "no field"),
        ("labels.team < x", 13, "label takes"),
        ("labels.team : x", 15, "labels.team:*"),
        ("topic : x", 7, "is for labels"),
        ('topic = "orders', 9, "quote"),
        ("(state = RUNNING", 17, "missing"),
        ("created_at > yesterday", 14, "RFC 3339"),
        ("created_at > 0001-01-01T00:00:00+14:00", 14, "calendar"),
        ("state = RUNNING OR topic = orders", 1, "one field"),
        ("NOT (state = RUNNING AND topic = orders)", 1, "one condition"),
        ("NOT labels.team:*", 1, "NOT"),
        ("(" * 21 + "state = RUNNING" + ")" * 21, 21, "deep"),
        ("state = RUNNING AND " * 60 + "topic = x", 1, "conditions"),
    ],
)
def test_a_filter_that_is_none_is_refused_with_its_place(text: str, column: int, part: str):
    with pytest.raises(RequestInvalidError, match=f"(?s)column {column}: .*{part}") as caught:
        parse_list_query(text)

    (error,) = caught.value.details["errors"]
    assert (error["code"], error["pointer"], error["column"]) == ("filter_invalid", "/filter", column)


def test_a_filter_of_any_length_is_answered():
    with pytest.raises(RequestInvalidError, match="2000 characters"):
        parse_list_query("a" * 3000)


@given(st.text(alphabet=st.sampled_from(list("state=RUNING \"'()<>!:-\\labels.xANDOT*2026-01T"))))
def test_no_text_does_anything_but_parse_or_be_refused(text: str):
    with suppress(RequestInvalidError):
        assert parse_list_query(text, text).order


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("", [("id", True)]),
        ("created_at", [("created_at", False), ("id", True)]),
        ("topic desc, created_at asc", [("topic", True), ("created_at", False), ("id", True)]),
        ("id", [("id", False)]),
    ],
)
def test_an_order_is_complete_with_the_id(text: str, order: list[tuple[str, bool]]):
    assert list(parse_list_query("", text).order) == [SortOrder(*parts) for parts in order]


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("colour", 1),
        ("topic, ", 8),
        ("topic up", 1),
        ("topic desc desc", 1),
        ("topic,topic", 7),
        ("finished_at", 1),
    ],
)
def test_an_order_that_is_none_is_refused_with_its_place(text: str, column: int):
    with pytest.raises(RequestInvalidError) as caught:
        parse_list_query("", text)

    (error,) = caught.value.details["errors"]
    assert (error["code"], error["pointer"], error["column"]) == ("order_by_invalid", "/order_by", column)


def test_faults_of_filter_and_order_come_together():
    with pytest.raises(RequestInvalidError) as caught:
        parse_list_query("x", "y")
    assert [error["pointer"] for error in caught.value.details["errors"]] == ["/filter", "/order_by"]


def test_a_token_gives_back_where_its_page_ended():
    query = parse_list_query("state = RUNNING", "topic, created_at desc")
    last = ("örders", JANUARY, "bf_1")

    token = render_page_token(query, last)

    assert parse_page_token(token, query) == last
    assert "bf_1" not in token


def test_a_token_is_good_for_its_own_filter_and_order_only():
    query = parse_list_query("state = RUNNING")
    token = render_page_token(query, ("bf_1",))

    assert parse_page_token(token, parse_list_query("state=RUNNING")) == ("bf_1",)
    for other in (parse_list_query("state = FAILED"), parse_list_query("state = RUNNING", "id asc")):
        with pytest.raises(RequestInvalidError, match="another filter or order_by"):
            parse_page_token(token, other)


def encode(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


@pytest.mark.parametrize(
    "token",
    [
        "",
        "%%%",
        "\xff",
        "====",
        "a",
        "bnVsbA",
        encode(1),
        encode([1]),
        encode(["x", 5]),
        encode(["x", [5]]),
        encode({}),
    ],
)
def test_a_token_that_no_page_gave_is_refused(token: str):
    with pytest.raises(RequestInvalidError) as caught:
        parse_page_token(token, parse_list_query())
    assert caught.value.details["errors"][0]["code"] == "page_token_invalid"


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
