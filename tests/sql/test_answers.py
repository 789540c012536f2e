"""The lake answers as Google's reference engine does, or refuses: the whole grid, against recorded answers.

``accepted_differences.txt`` holds the few cases in which the engine is not BigQuery, each kind with its reason.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sql.nulls import is_total
from tests.sql import grid
from tests.sql.answers import Lake, compare, compare_queries, is_same, read_answers, read_seeds
from tests.sql.differences import is_hidden, read_accepted
from tests.sql.questions import Questions

# Answers by the kinds of fault that outside reports led to.
LINES = (Path(__file__).parent / "googles_answers.txt").read_text().splitlines()
ANSWERS = [line.split(" ⇒ ") for line in LINES if line and not line.startswith("# ")]
ANY_ORDER = " in any order"


@pytest.fixture(scope="module")
def lake() -> Iterator[Lake]:
    lake = Lake()
    yield lake
    lake.close()


def assert_only_accepted(found: Iterator[tuple[str, str, str]], asked: set[str]) -> None:
    """Fail for a difference that is not accepted, and for an accepted one that is none."""
    accepted = read_accepted() & asked
    texts = {question: f"{question}\n  Google: {theirs}\n  lake:   {mine}" for question, theirs, mine in found}
    assert not [text for question, text in texts.items() if question not in accepted]
    assert not accepted - texts.keys()


def test_every_expression_is_answered_as_google_does(lake: Lake) -> None:
    cases = list(grid.cases())
    asked = {f"SELECT {case.literal}" for case in cases} | {case.by_columns for case in cases}
    assert_only_accepted(compare(lake, cases, read_answers(), literals_of=8), asked)


def test_every_query_over_rows_is_answered_as_google_does(lake: Lake) -> None:
    queries = list(grid.row_queries())
    assert_only_accepted(compare_queries(lake, queries, read_answers()), set(queries))


def test_most_of_the_grid_is_answered_and_not_refused(lake: Lake) -> None:
    cases = list(grid.cases())[::40]
    refused = [case.literal for case in cases if lake.query(f"SELECT {case.literal}").startswith("refused")]
    assert len(refused) < len(cases) / 5, refused


@pytest.mark.parametrize(("query", "answer"), ANSWERS)
def test_what_was_answered_wrong_is_answered_as_google_does_or_refused(lake, query, answer):
    found = lake.query(f"SELECT {query}")
    if answer.endswith(ANY_ORDER):
        found = ";".join(sorted(found.split(";")))
    if answer.endswith("…"):
        found = found[: len(answer) - 1] + "…"
    assert found == answer.removesuffix(ANY_ORDER)


def test_no_call_under_safe_breaks_the_engines_planning(lake: Lake) -> None:
    asked = [case.literal for case in Questions(1).cases(150) if case.literal.startswith("SAFE.")]
    assert not [text for text in asked if lake.query(f"SELECT {text}").startswith("broken")]


def test_no_call_that_google_failed_for_some_value_is_held_for_one_that_can_not(lake: Lake) -> None:
    recorded, answers = read_seeds()
    answers |= read_answers()
    failed = [c for c in [*recorded, *grid.cases()] if c.columns and answers[c.literal][-1] == "error"]
    # Patterns are looked at by themselves.
    asked = {case.by_columns for case in failed if not re.search("REGEXP_|LIKE", case.body)}
    texts = {sql: lake.translated(sql) for sql in asked}
    assert not [sql for sql, text in texts.items() if text is not None and is_total(text)]
    assert sum(text is not None for text in texts.values()) > 300


# The lake's engine computes no argument after one that is NULL in every row of a batch, as n and i are.
ROWS = "FROM (SELECT IF(x > 9, 'a', NULL) AS n, IF(x > 9, 9, NULL) AS i, -x AS a FROM UNNEST([1]) AS x)"


@pytest.mark.parametrize(
    ("expression", "theirs", "is_accepted"),
    [
        ("CONCAT(n, CHR(a))", "error", True),
        ("CONCAT(n, SUBSTR(CHR(a), 1), 'b')", "error", True),
        ("STARTS_WITH(n, CHR(a))", "error", True),
        ("TIMESTAMP_ADD(TIMESTAMP_MICROS(i), INTERVAL DIV(1, a + 1) DAY)", "error", True),
        # Google has a value, or refuses the question.
        ("CONCAT(n, CHR(a))", '""', False),
        ("CONCAT(n, CHR(a))", "invalid", False),
        # No argument is NULL, or none fails.
        ("CONCAT(CHR(a), 'n')", "error", False),
        ("CONCAT(n, UPPER('a'))", "error", False),
        ("CONCAT(n, SAFE.CHR(a))", "error", False),
        ("CONCAT(n, 'CHR(a)')", "error", False),
        # Under SAFE. the lake computes all arguments.
        ("SAFE.STARTS_WITH(n, CHR(a))", "error", False),
        # Only the call itself may have failed in Google's engine.
        ("SUBSTR(n, 1, a)", "error", False),
    ],
)
def test_only_a_failure_beside_a_null_argument_may_be_null(lake, expression, theirs, is_accepted):
    question = f"SELECT {expression} {ROWS}"
    assert is_hidden(question, theirs, lake.query(question), lake.query) == is_accepted


def test_null_is_accepted_where_a_column_hides_a_failure(lake: Lake) -> None:
    body = "DATE_DIFF(DATETIME_SUB(c0, INTERVAL c1 DAY), GREATEST(c2, c3), MINUTE)"
    day = "DATETIME '2024-01-01 00:00:00'"
    values = (day, "9007199254740993", day, "CAST(NULL AS DATETIME)")
    case = grid.Case(body, body, body, values, ("DATETIME", "INT64", "DATETIME", "DATETIME"), fails=True)
    [(_, mine)] = lake.columns([case])
    assert is_hidden(case.by_columns, "error", mine, lake.query)


def test_a_value_is_never_accepted_for_an_error(lake: Lake) -> None:
    question = f"SELECT CONCAT(n, CHR(a)) {ROWS}"
    assert lake.query(question) == "NULL"
    assert not is_hidden(question, "error", '""', lake.query)


def test_no_question_made_from_the_registry_breaks_the_gate(lake: Lake) -> None:
    questions = [case.literal for case in Questions(0).cases(200)]
    assert not [text for text in questions if lake.query(f"SELECT {text}").startswith("broken: the gate")]


def test_every_recorded_question_from_the_registry_is_answered_as_google_does(lake: Lake) -> None:
    cases, answers = read_seeds()
    accepted = read_accepted()
    assert not [found for found in compare(lake, cases, answers, literals_of=8) if found[0] not in accepted]


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("STDDEV(x)", "7.071067811865476e+159f"),
        ("STDDEV_POP(x)", "5e+159f"),
        ("CORR(x, n)", "1.0f"),
        ("CORR(x, x)", "1.0f"),
        ("CORR(1 / x, x)", "-1.0f"),
        ("COVAR_POP(x, n)", "2.5e+159f"),
        ("COVAR_POP(x, 1 / x)", "-0.125f"),
        ("STDDEV(1 / x)", "3.535533905932738e-161f"),
        ("VAR_POP(x)", "inff"),
    ],
)
def test_statistics_whose_squares_overflow_are_answered(lake: Lake, call: str, answer: str) -> None:
    rows = "(SELECT 1 AS n, 1e160 AS x UNION ALL SELECT 2, 2e160)"
    assert is_same(lake.query(f"SELECT {call} FROM {rows}"), answer, call)
    running = lake.query(f"SELECT {call} OVER () FROM {rows}").split(";")
    assert all(is_same(found, answer, call) for found in running)


def test_only_what_no_standard_rounds_may_differ_by_the_margin_of_googles_tests() -> None:
    near, far = "0.9200260381967906f", "0.9200260381967925f"
    assert is_same(near, "0.9200260381967907f", "SIN(64)")
    assert not is_same(near, far, "SIN(64)")
    assert not is_same("0.0f", "-0.0f", "SIN(x)")
    # 53 of the last digit, by a call within a call.
    near, far = "0.08322784734504018f", "0.0832278473450384f"
    assert is_same(near, far, "TAN(CBRT(2024))")
    assert not is_same(near, far, "TAN(12.6)")


def test_a_sum_of_floats_may_differ_by_the_last_digits_of_its_greatest_addend_and_no_more() -> None:
    rows = "SELECT 1 AS n, CAST(0.1 AS FLOAT64) AS x UNION ALL SELECT 2 AS n, CAST(-2.5 AS FLOAT64) AS x"
    assert is_same("-0.2999999999999998f", "-0.3f", f"SELECT SUM(x) FROM ({rows})")
    assert not is_same("-0.29999999999998f", "-0.3f", f"SELECT SUM(x) FROM ({rows})")
    assert not is_same("-0.2999999999999998f", "-0.3f", f"SELECT MAX(x) FROM ({rows})")
    assert not is_same("8n", "9n", f"SELECT SUM(x) FROM ({rows})")
    assert is_same("inff", "nanf", "SELECT AVG(x) FROM (SELECT 1 AS n, CAST('inf' AS FLOAT64) AS x)")
    assert not is_same("inff", "nanf", "SELECT AVG(x) FROM (SELECT 1 AS n, CAST('nan' AS FLOAT64) AS x)")
    assert not is_same("1.0f", "nanf", "SELECT AVG(x) FROM (SELECT 1 AS n, CAST('inf' AS FLOAT64) AS x)")


def test_a_correlation_may_differ_by_the_last_digits_of_one_and_no_more(lake: Lake) -> None:
    numbers = ["-64", "-78", "9223372036854775807", "-78", "3057006960"]
    rows = " UNION ALL ".join(f"SELECT {n} AS n, CAST({x} AS INT64) AS x" for n, x in enumerate(numbers, start=1))
    question = f"SELECT CORR(x, n) FROM ({rows})"
    assert is_same(lake.query(question), "2.343644372521212e-10f", question)
    assert not is_same("2.3437e-10f", "2.343644372521212e-10f", question)
    assert not is_same("0.50000000000001f", "0.5f", question)
    assert not is_same(
        "2.343644433852948e-10f", "2.343644372521212e-10f", question.replace("CORR(x, n)", "MAX(x)")
    )
