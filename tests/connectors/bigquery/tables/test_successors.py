"""Columns that became wider, each type in a column of its own."""

import pyarrow as pa
import pytest

from connectors.bigquery.tables.cells import read_columns
from connectors.bigquery.tables.successors import read_schema, spread, successor_paths, to_successors
from model.schema import Field, RowSchema

NARROW = (
    Field("n", "INT64", description="N"),
    Field("r", "RECORD", "REPEATED", fields=(Field("a", "INT64"), Field("b", "BOOL"))),
)
WIDER = (
    Field("n", "STRING", description="N"),
    Field("r", "RECORD", "REPEATED", fields=(Field("a", "STRING"), Field("b", "BOOL"), Field("c", "BOOL"))),
)
WIDEST = (Field("n", "JSON", description="N"), Field("r", "JSON"))


def test_every_wider_type_is_one_column_more_and_all_of_a_name_are_read_as_one() -> None:
    once = spread(NARROW, WIDER, may_widen=True)
    assert [field.name for field in once] == ["n", "_refeed_string_n", "r"]
    assert [field.name for field in once[2].fields] == ["a", "_refeed_string_a", "b", "c"]
    assert spread(once, WIDER, may_widen=True) == once
    assert read_schema(RowSchema(tuple(once))).fields == WIDER
    twice = spread(once, WIDEST, may_widen=True)
    assert [field.name for field in twice] == ["n", "_refeed_string_n", "_refeed_json_n", "r", "_refeed_json_r"]
    assert spread(twice, WIDEST, may_widen=True) == twice
    assert read_schema(RowSchema(tuple(twice))).fields == WIDEST


def test_without_leave_or_where_it_is_narrower_a_type_stands_under_its_column_s_name_to_be_refused() -> None:
    assert spread(NARROW[:1], WIDER[:1], may_widen=False) == [Field("n", "STRING", description="N")]
    once = spread(NARROW, WIDER, may_widen=True)
    assert [(field.name, field.type) for field in spread(once, NARROW[:1], may_widen=True)] == [
        ("n", "INT64"),
        ("_refeed_string_n", "INT64"),
    ]


def test_a_policy_tag_is_on_every_column_of_a_name_and_none_must_be_there() -> None:
    old = Field("n", "INT64", "REQUIRED", policy_tags=("t",))
    found = spread([old], [Field("n", "STRING", policy_tags=("t",))], may_widen=True)
    assert [(field.mode, field.policy_tags) for field in found] == [("NULLABLE", ("t",))] * 2


def test_a_writer_of_the_older_type_goes_on_with_the_column_of_its_own() -> None:
    columns = spread(NARROW, WIDEST, may_widen=True)
    assert successor_paths(columns, NARROW) == []
    assert successor_paths(columns, WIDEST) == [("n", "_refeed_json_n"), ("r", "_refeed_json_r")]


@pytest.mark.parametrize("start", [0, 1])
def test_rows_go_to_the_newest_columns_however_deep_and_keep_every_cell(start: int) -> None:
    columns = spread(NARROW, WIDER, may_widen=True)
    paths = successor_paths(columns, WIDER)
    assert paths == [("n", "_refeed_string_n"), ("r.a", "_refeed_string_a")]
    rows = [
        {"n": "1", "r": [{"a": "x", "b": True}, {"a": None, "b": None}]},
        {"n": None, "r": []},
        {"n": "ü", "r": [{"a": "y", "b": False}]},
    ]
    (batch,) = to_successors([pa.RecordBatch.from_pylist(rows).slice(start)], paths)
    assert batch.to_pylist() == [
        {
            "_refeed_string_n": row["n"],
            "r": [{"_refeed_string_a": one["a"], "b": one["b"]} for one in row["r"] or ()],
        }
        for row in rows[start:]
    ]


def test_a_column_whose_type_never_changed_is_read_as_it_is() -> None:
    columns = RowSchema((Field("n", "INT64"), Field("_refeed_json_other", "JSON"), *NARROW[1:]))
    found = read_columns(columns, "s")
    assert found == {name: f"s.`{name}`" for name in ("n", "_refeed_json_other", "r")}
