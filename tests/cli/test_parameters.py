import pytest

from cli.parameters import parse_parameters
from model.errors import InputError


def test_values_have_their_types_and_keep_their_colons() -> None:
    given = ["at:TIMESTAMP:2026-01-01T00:00:00Z", "topic::a:b", "n:int64:5", "t:orders", "empty:"]
    assert parse_parameters([*given, 'topics:ARRAY<STRING>:["a", "b"]', "flag:BOOL:true"]) == {
        "at": {"type": "TIMESTAMP", "value": "2026-01-01T00:00:00Z"},
        "topic": {"type": "STRING", "value": "a:b"},
        "n": {"type": "INT64", "value": "5"},
        "t": {"type": "STRING", "value": "orders"},
        "empty": {"type": "STRING", "value": ""},
        "topics": {"type": "ARRAY<STRING>", "value": ["a", "b"]},
        "flag": {"type": "BOOL", "value": True},
    }


def test_a_misspelt_type_is_not_taken_for_a_part_of_the_value() -> None:
    with pytest.raises(InputError, match="write at::TIMESTAMPS:2026-01-01"):
        parse_parameters(["at:TIMESTAMPS:2026-01-01"])


@pytest.mark.parametrize(
    "texts",
    [["day"], ["1day:DATE:x"], ["a::1", "a::2"], ["a:ARRAY<STRING>:[1"], ["a:ARRAY<STRING>:" + "[" * 100_000]],
    ids=["no type", "no name", "twice", "no array", "too deep"],
)
def test_what_is_no_parameter_is_refused(texts: list[str]) -> None:
    with pytest.raises(InputError, match="--param"):
        parse_parameters(texts)
