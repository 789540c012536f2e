from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.listing import parse_order
from jobs.store import SortOrder
from model.errors import RequestInvalidError


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
    assert list(parse_order(text)) == [SortOrder(*parts) for parts in order]


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
        parse_order(text)
    (error,) = caught.value.details["errors"]
    assert (error["code"], error["pointer"], error["column"]) == ("order_by_invalid", "/order_by", column)


@given(st.text(alphabet=st.sampled_from(list("idtopcreas_ ,\t"))))
def test_no_text_does_anything_but_become_an_order_or_be_refused(text: str):
    with suppress(RequestInvalidError):
        assert parse_order(text)
