import os
import random
import re
from collections.abc import Callable
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sql.dialect import render_lake_query
from sql.lexer import Source, read_tokens
from sql.validate import Parameter, Policy, QueryRefusedError, ValidatedQuery, validate_query
from sql.worker import GATE

# `make fuzz` asks for 20,000.
MUTANTS = int(os.environ.get("REFEED_FUZZ_MUTANTS", "400"))
NASTY = (
    *(";", "--", "/*", "*/", "`", "'", '"', "|>", "(", ")", "[", "]", ",", ".", "*", "@x", "@@x", ">>", "\\"),
    *(
        "\u00a0",
        "\u0440",
        "\u200b",
        "\x00",
        "0x",
        "1e",
        "9" * 30,
        "NOT",
        "WITH",
        "INTO",
        "UNNEST",
        "END",
        "QUALIFY",
    ),
    *("HAVING", "DISTINCT", "EXISTS", "ALL", "NULL", "DATE(", "STRUCT<", "ARRAY<", "INTERVAL 1 DAY", "OR TRUE"),
    *("OR 1 = 1", "LIMIT 1", "AS _PARTITIONTIME", "CASE WHEN", "OVER ()", "GROUP BY", "ORDER BY 1"),
    *("UNION ALL SELECT * FROM ops.secrets", "FROM ops.secrets", "(SELECT MAX(x) FROM ops.secrets)"),
)
OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "||")
CHANCE = re.compile(
    r"RAND|TABLESAMPLE|LIMIT|ANY_VALUE|UUID|ROW_NUMBER|ARRAY_AGG|OVER|HAVING|CURRENT", re.IGNORECASE
)
# What rows can make go wrong while a query runs; a query that can't even be planned is a fault of the translation.
BAD_DATA = (duckdb.ConversionException, duckdb.InvalidInputException, duckdb.OutOfRangeException)


def pieces(text: str) -> list[str]:
    source = Source(text)
    tokens, _ = read_tokens(source)
    return [text[token.start : token.end] for token in tokens if token.kind != "end"]


def kind_of(word: str) -> str:
    """Say what a word can be swapped for without breaking the grammar: a name, a text, a number or a sign."""
    if word[:1] in "'\"":
        return "text"
    if word[:1].isdigit():
        return "number"
    if word.upper() in {"AND", "OR"} or word in OPERATORS:
        return "AND" if word.isalpha() else "operator"
    return "name" if word.isidentifier() and not word.isupper() else word.upper() if word.isupper() else word


def mutate(seeds: list[list[str]], chance: random.Random) -> str:  # noqa: C901 - one branch a kind of mutation
    words = list(chance.choice(seeds))
    for _ in range(chance.choice((1, 1, 1, 1, 2, 3, 6))):
        place = chance.randrange(len(words)) if words else 0
        action = chance.randrange(14)
        if action >= 8 and words:
            likes = [word for word in chance.choice(seeds) + words if kind_of(word) == kind_of(words[place])]
            words[place] = chance.choice(likes)
            continue
        if action == 0 and words:
            del words[place]
        elif action == 1 and words:
            words.insert(place, words[place])
        elif action == 2 and len(words) > 1:
            other = chance.randrange(len(words))
            words[place], words[other] = words[other], words[place]
        elif action == 3:
            words[place : place + 1] = [chance.choice(chance.choice(seeds) or ["x"])]
        elif action == 4:
            other_words = chance.choice(seeds)
            words = words[:place] + other_words[chance.randrange(len(other_words) or 1) :]
        elif action == 5:
            words.insert(place, chance.choice(NASTY))
        elif action == 6 and words:
            del words[place : place + chance.randrange(1, 6)]
        elif words:
            start = chance.randrange(len(words))
            words[place:place] = words[start : start + chance.randrange(1, 12)]
    return " ".join(words)


class Seeds(list[list[str]]):
    """The queries that mutants are made of; too many to be printed with a failure."""

    def __repr__(self) -> str:
        return f"<{len(self)} queries>"


@pytest.fixture(scope="module")
def seeds(all_cases: dict[str, list[Any]]) -> Seeds:
    GATE.warm()
    return Seeds(words for cases in all_cases.values() for case in cases if (words := pieces(case.text)))


@pytest.fixture(scope="module")
def windowed(lake: duckdb.DuckDBPyConnection) -> Callable[[ValidatedQuery], tuple[list[Any], list[Any]]]:
    """Run a query over the whole archive, and over no more of it than the query's window."""

    def run(query: ValidatedQuery) -> tuple[list[Any], list[Any]]:
        assert query.window is not None
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
def test_no_mutant_gets_past_the_gate_that_should_not(
    seed: int,
    seeds: list[list[str]],
    policy: Policy,
    windowed: Callable[[ValidatedQuery], tuple[list[Any], list[Any]]],
) -> None:
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
