"""Functions that the lake's engine lacks; tests/sql/test_answers.py compares their answers with Google's."""

import duckdb
import pytest

from connectors.lake.udfs import register_functions


@pytest.fixture(scope="module")
def connection():
    with duckdb.connect(config={"threads": 1}) as connection:
        register_functions(connection)
        yield connection


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "1" * 100_000, '{"a":' * 50_000, "1e999999999", "0x" + "f" * 100_000]
)
def test_hostile_texts_end_as_null_or_an_error_of_the_query(connection, text):
    for call in (
        "json_value(?, '[]')",
        "json(?)",
        "int64(?)",
        "float64(?)",
        "numeric(?)",
        "json_query_array(?, '[]')",
    ):
        connection.execute(f"SELECT length(CAST(refeed_safe_{call} AS VARCHAR))", [text]).fetchall()
