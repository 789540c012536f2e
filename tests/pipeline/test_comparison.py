"""Cells of two releases: equal whatever a warehouse makes of their types, and different where a value is."""

import math
from datetime import time
from decimal import Decimal

import pyarrow as pa
import pytest

from model.schema import Field, RowSchema
from pipeline.comparison import compare_rows, joined_schema, plain_cell, shown_cell

CHILD = Field("sku", "STRING")
LINE = Field("line", "RECORD", fields=(CHILD,))
SAME = [
    (Field("f", "JSON"), '{"a": 1.0, "b": [null]}', '{"b":[null],"a":1}'),
    (Field("f", "JSON"), "18446744073709551617", "18446744073709551616"),
    (Field("f", "JSON"), "no JSON", "no JSON"),
    (Field("f", "TIME"), time(12, 30), "12:30:00.000000"),
    (Field("f", "GEOGRAPHY"), "POINT(1 2.5)", "Point (1.0  2.50)"),
    (Field("f", "FLOAT64"), math.nan, math.nan),
    (Field("f", "NUMERIC"), Decimal("3.1"), Decimal("3.100000000")),
    (Field("f", "STRING", "REPEATED"), None, []),
    (LINE, {"sku": "a"}, {"SKU": "a", "count": None}),
    (LINE, {"sku": "a"}, {"sku": "a", "tags": []}),
]
DIFFERENT = [
    (Field("f", "JSON"), "1", "true"),
    (Field("f", "JSON"), "1", '"1"'),
    (Field("f", "JSON"), "9007199254740993", "9007199254740992"),
    (Field("f", "TIME"), time(12, 30), "12:30:00.000001"),
    (Field("f", "GEOGRAPHY"), "POINT(1 2)", "POINT(2 1)"),
    (Field("f", "FLOAT64"), math.nan, None),
    (Field("f", "STRING"), "", None),
    (Field("f", "STRING", "REPEATED"), ["a", "b"], ["b", "a"]),
    (LINE, {"sku": "a"}, None),
    (LINE, {"sku": "a"}, {"sku": "a", "count": 0}),
]


@pytest.mark.parametrize(("field", "one", "other"), SAME)
def test_the_same_value_is_equal_however_it_is_written(field: Field, one: object, other: object) -> None:
    assert plain_cell(one, field) == plain_cell(other, field)


@pytest.mark.parametrize(("field", "one", "other"), DIFFERENT)
def test_other_values_differ(field: Field, one: object, other: object) -> None:
    assert plain_cell(one, field) != plain_cell(other, field)


def test_columns_are_compared_by_name_and_one_that_a_table_lacks_is_null() -> None:
    running = pa.table({"ID": [1, 2], "old": [None, "x"], "ingest_time": [1, 2]})
    new = pa.table({"id": [1, 3], "new": ["y", None], "ingest_time": [3, 4]})
    schema = joined_schema(
        RowSchema((Field("ID", "INT64"), Field("old", "STRING"), Field("ingest_time", "TIMESTAMP"))),
        RowSchema((Field("id", "INT64"), Field("new", "STRING"), Field("ingest_time", "TIMESTAMP"))),
    )
    found = {
        (one.place, one.column): (one.running, one.new)
        for one in compare_rows(running, new, schema, set().__contains__)
    }
    assert found == {(1, "id"): ("2", "3"), (0, "new"): (None, "y"), (1, "old"): ("x", None)}
    meant = {"id", "new", "old"}
    assert list(compare_rows(running, new, schema, meant.__contains__)) == []


def test_a_value_is_shown_as_at_most_a_kibibyte_of_text() -> None:
    assert shown_cell(None) is None
    assert shown_cell(b"\x00\xff") == "AP8="
    assert shown_cell([{"at": time(12, 30), "price": Decimal("3.10")}]) == '[{"at": "12:30:00", "price": "3.10"}]'
    assert shown_cell("ключ" * 500) == ("ключ" * 500).encode()[:1024].decode()
