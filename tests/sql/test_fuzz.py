import os
import random
import re

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sql.dialect import render_lake_query
from sql.validate import Parameter, Policy, QueryRefusedError, ValidatedQuery, validate_query
from sql.worker import GATE
from tests.sql.mutants import mutate, pieces

# `make fuzz` asks for 20,000.
MUTANTS = int(os.environ.get("REFEED_FUZZ_MUTANTS", "400"))
CHANCE = re.compile(
    r"RAND|TABLESAMPLE|LIMIT|ANY_VALUE|UUID|ROW_NUMBER|ARRAY_AGG|OVER|HAVING|CURRENT", re.IGNORECASE
)
# What rows can make go wrong while a query runs; a query that can't even be planned is a fault of the translation.
BAD_DATA = (duckdb.ConversionException, duckdb.InvalidInputException, duckdb.OutOfRangeException)


class Seeds(list[list[str]]):
    """The queries that mutants are made of; too many to be printed with a failure."""

    def __repr__(self) -> str:
        return f"<{len(self)} queries>"


@pytest.fixture(scope="module")
def seeds(all_cases):
    GATE.warm()
    return Seeds(words for cases in all_cases.values() for case in cases if (words := pieces(case.text)))


@pytest.fixture(scope="module")
def windowed(lake):
    """Run a query over the whole archive, and over no more of it than the query's window."""

    def run(query):
        rendered = render_lake_query(query)
        low, high = (f"TIMESTAMPTZ '{end.isoformat()}'" for end in (query.window.start, query.window.end))
        view = f"(SELECT * FROM refeed_archive WHERE _PARTITIONTIME >= {low} AND _PARTITIONTIME < {high})"
        narrow = re.sub(r"\brefeed_archive AS", f"{view} AS", rendered.sql)
        results = [
            lake.execute(sql, dict(rendered.parameters) or None).fetchall() for sql in (rendered.sql, narrow)
        ]
        return results[0], results[1]

    return run


def judge(text: str, policy: Policy) -> tuple[ValidatedQuery | None, set[str]]:
    try:
        return validate_query(text, {"x": Parameter("STRING", "x")}, policy), set()
    except QueryRefusedError as refused:
        return None, {violation.code for violation in refused.violations}


@settings(max_examples=MUTANTS, deadline=None, database=None)
@given(seed=st.integers(0, 2**48))
def test_no_mutant_gets_past_the_gate_that_should_not(seed, seeds, policy, windowed):
    text = mutate(seeds, random.Random(seed))
    kills = GATE.kills
    query, codes = judge(text, policy)
    assert kills == GATE.kills, text
    assert not codes & {"query_unreadable", "query_too_slow"}, text
    if query is None:
        return
    assert set(query.tables) <= {"backup.messages", "ops.wanted"}, text
    assert {"data", "attributes", "message_id"} <= {column.name.lower() for column in query.output}, text
    if query.lake_violations:
        return
    try:
        whole, narrow = windowed(query)
    except BAD_DATA:
        return
    except duckdb.Error as exc:
        if "Unknown TimeZone" in str(exc):
            # A zone that comes from a column is data as well, but DuckDB's word for it is a general one.
            return
        pytest.fail(f"{exc}\n{text}\n{query.lake_sql}")
    if not CHANCE.search(text):
        assert sorted(map(repr, whole)) == sorted(map(repr, narrow)), text
