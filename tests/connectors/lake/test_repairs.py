"""Functions of our own in the lake's engine: they run in a locked query, and their errors hold no message."""

import pytest

from connectors.lake.query import ArchiveSnapshot, QueryLimits
from connectors.lake.repairs import json_array, json_float, json_keys, json_set, literal_text
from model.errors import QueryError
from tests.connectors.conftest import run_query

EMPTY = ArchiveSnapshot((), "day")


def answer(sql, folder):
    (row,) = run_query(EMPTY, f"SELECT {sql} AS x", {}, QueryLimits("200MB", folder)).to_pylist()
    return row["x"]


def test_a_locked_query_may_call_them(tmp_path):
    assert answer("refeed_farm_fingerprint(encode('abc'))", tmp_path) == 2640714258260161385
    assert answer("refeed_json_set('{\"a\":1}', ['[\"b\"]'], ['2'], true)", tmp_path) == '{"a":1,"b":2}'
    assert answer("refeed_json_set(NULL, ['[\"b\"]'], ['2'], true)", tmp_path) is None
    assert answer("TRY(refeed_text_of_points([-1]))", tmp_path) is None


def test_an_error_of_theirs_holds_nothing_of_the_message(tmp_path):
    with pytest.raises(QueryError) as caught:
        answer("refeed_lax_int64('{secret')", tmp_path)
    assert "secret" not in caught.value.message.replace("refeed_lax_int64('{secret')", "")


def test_json_that_nests_too_deep_is_an_error_not_a_crash():
    with pytest.raises(ValueError, match="too deep"):
        json_array(["[" * 100_000 + "]" * 100_000])


def test_a_value_that_is_set_twice_is_there_once():
    assert json_set('{"a":1,"a":2}', ['["a"]'], ["3"], creates=True) == '{"a":3}'


@pytest.mark.parametrize(
    ("number", "written"), [(1e14, "100000000000000.0"), (1e15, "1e+15"), (-1.5e-7, "-1.5e-07"), (-0.0, "0.0")]
)
def test_numbers_of_json_are_written_as_google_writes_them(number, written):
    assert json_float(number) == written


def test_a_digit_after_an_escaped_character_is_no_part_of_its_number():
    assert literal_text("a\0bg") == '"a\\x00\\x62g"'


def test_a_depth_that_is_none_is_an_error_whatever_the_json():
    assert json_keys(None, 1, "strict") is None
    for text in (None, "{}"):
        with pytest.raises(ValueError, match="max_depth"):
            json_keys(text, 0, "strict")
