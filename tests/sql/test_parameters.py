from datetime import UTC, date, datetime

import pytest

from sql.validate import QueryRefusedError, parse_parameters


@pytest.mark.parametrize(
    ("kind", "value", "meant"),
    [
        ("STRING", "å", "å"),
        ("INT64", 5, 5),
        ("INT64", "-9223372036854775808", -(2**63)),
        ("FLOAT64", 1, 1.0),
        ("BOOL", False, False),
        ("BYTES", "AP8=", b"\x00\xff"),
        ("DATE", "2024-2-29", date(2024, 2, 29)),
        ("TIMESTAMP", "2024-01-01T00:00:00.123456Z", datetime(2024, 1, 1, 0, 0, 0, 123456, UTC)),
        ("TIMESTAMP", "2024-01-01 02:00:00+02:00", datetime(2024, 1, 1, tzinfo=UTC)),
        ("array<int64>", [1, 2], (1, 2)),
        ("STRING", None, None),
    ],
)
def test_values_are_read_by_their_type(kind, value, meant):
    assert parse_parameters({"p": {"type": kind, "value": value}})["p"].value == meant


@pytest.mark.parametrize(
    "body",
    [
        {"type": "INT64", "value": True},
        {"type": "INT64", "value": 2**63},
        {"type": "INT64", "value": "1.5"},
        {"type": "BOOL", "value": "true"},
        {"type": "FLOAT64", "value": float("nan")},
        {"type": "STRING", "value": 1},
        {"type": "STRING", "value": "\ud800"},
        {"type": "BYTES", "value": "not base64!"},
        {"type": "DATE", "value": "2024-02-30"},
        {"type": "TIMESTAMP", "value": "yesterday"},
        {"type": "ARRAY<STRING>", "value": "x"},
        {"type": "ARRAY<STRING>", "value": [None]},
        {"type": "ARRAY<ARRAY<STRING>>", "value": []},
        {"type": "STRUCT<a INT64>", "value": {}},
        {"type": "STRING"},
        {"type": "STRING", "value": "x", "more": 1},
        "x",
        None,
    ],
)
def test_a_wrong_value_is_refused_with_the_parameters_name(body):
    with pytest.raises(QueryRefusedError, match="'wrong'") as refused:
        parse_parameters({"wrong": body, "right": {"type": "INT64", "value": 1}})
    assert [violation.code for violation in refused.value.violations] == ["parameter_value"]


def test_names_are_plain_and_there_once():
    value = {"type": "INT64", "value": 1}
    with pytest.raises(QueryRefusedError) as refused:
        parse_parameters({"a": value, "A": value, "b c": value, "": value})
    assert len(refused.value.violations) == 3
