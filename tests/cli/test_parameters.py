import pytest

from cli.parameters import parse_parameters
from model.errors import InputError


def test_values_keep_their_colons_and_no_type_is_a_string() -> None:
    assert parse_parameters(["at:TIMESTAMP:2026-01-01T00:00:00Z", "topic::a:b", "n:int64:5"]) == {
        "at": {"type": "TIMESTAMP", "value": "2026-01-01T00:00:00Z"},
        "topic": {"type": "STRING", "value": "a:b"},
        "n": {"type": "INT64", "value": "5"},
    }


def test_a_name_and_a_value_are_a_string_as_the_help_says() -> None:
    assert parse_parameters(["t:orders", "empty:"]) == {
        "t": {"type": "STRING", "value": "orders"},
        "empty": {"type": "STRING", "value": ""},
    }


def test_a_misspelt_type_is_not_taken_for_a_part_of_the_value() -> None:
    with pytest.raises(InputError, match="write at::TIMESTAMPS:2026-01-01"):
        parse_parameters(["at:TIMESTAMPS:2026-01-01"])


def test_an_array_is_json_and_a_bool_is_one() -> None:
    assert parse_parameters(['topics:ARRAY<STRING>:["a", "b"]', "flag:BOOL:true"]) == {
        "topics": {"type": "ARRAY<STRING>", "value": ["a", "b"]},
        "flag": {"type": "BOOL", "value": True},
    }


@pytest.mark.parametrize(
    "texts",
    [["day"], ["1day:DATE:x"], ["a::1", "a::2"], ["a:ARRAY<STRING>:[1"], ["a:ARRAY<STRING>:" + "[" * 100_000]],
    ids=["no type", "no name", "twice", "no array", "too deep"],
)
def test_what_is_no_parameter_is_refused(texts: list[str]) -> None:
    with pytest.raises(InputError, match="--param"):
        parse_parameters(texts)
