"""The lake answers as Google's reference engine does, or refuses: the whole grid, against recorded answers.

``accepted_differences.txt`` holds the few cases in which the engine is not BigQuery, each kind with its reason.
"""

import re
from collections.abc import Iterator

import pytest

from sql.nulls import is_total
from tests.sql import grid
from tests.sql.answers import Lake, compare, compare_queries, is_same, read_answers, read_seeds
from tests.sql.differences import is_hidden, read_accepted
from tests.sql.questions import Questions


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


def test_chr_of_zero_is_empty_as_bigquerys_documentation_says(lake: Lake) -> None:
    # The engine gives U+0000: https://cloud.google.com/bigquery/docs/reference/standard-sql/string_functions#chr
    assert lake.query("SELECT CHR(0)") == '""'


# What Google's engine answered, by the kinds of fault that outside reports led to.
GOOGLES_ANSWERS = [
    # Rounding is of the exact value of a FLOAT64.
    ("ROUND(2.675, 2)", "2.67f"),
    ("ROUND(1.15, 1)", "1.1f"),
    ("ROUND(4.35, 1)", "4.3f"),
    ("ROUND(-2.675, 2)", "-2.67f"),
    ("ROUND(1.45, 1)", "1.4f"),
    ("ROUND(15.0, -1)", "20.0f"),
    ("ROUND(1.5, NULL)", "NULL"),
    ("ROUND(25, -1)", "30.0f"),
    ("ROUND(1.7e308, -308)", "error"),
    ("ROUND(5e-324, 323)", "0.0f"),
    ("ROUND(1.5, 9223372036854775807)", "1.5f"),
    ("ROUND(1.5, -9223372036854775808)", "0.0f"),
    ("ROUND(CAST('inf' AS FLOAT64), 1)", "inff"),
    ("TRUNC(2.29, 2)", "2.29f"),
    ("TRUNC(0.29, 2)", "0.28f"),
    ("TRUNC(-1.99, 1)", "-1.9f"),
    ("TRUNC(4.35, 2)", "4.34f"),
    # JSON as a STRING escapes U+2028 and U+2029, JSON as JSON does not; escapes have small letters.
    (r"TO_JSON_STRING('\u2028x\u2029\u001f')", r'"\"\\u2028x\\u2029\\u001f\""'),
    ('JSON_QUERY(\'{"a":"\\\\u001F\\\\u2028"}\', \'$.a\')', r'"\"\\u001f\\u2028\""'),
    (r"TO_JSON('\u001f')", r'json "\u001f"'),
    ('JSON_KEYS(JSON \'{"\\u2028":1}\')', r'["\"\\u2028\""]'),
    (r"JSON_OBJECT('a', '\u0001')", r'json {"a":"\u0001"}'),
    # A number of JSON has an exponent of two digits with a sign.
    ("TO_JSON_STRING(JSON_SET(JSON '{}', '$.b', 1e-7, '$.c', 1e16))", r'"{\"b\":1e-07,\"c\":1e+16}"'),
    ('JSON_VALUE(JSON \'{"a":1e16}\', \'$.a\')', '"1e+16"'),
    ('(JSON \'{"a":1e16}\').a', "json 1e+16"),
    ("JSON_QUERY_ARRAY(JSON '[1e-7]')", "[json 1e-07]"),
    ("JSON_VALUE_ARRAY(JSON '[1e16,1.0]')", '["1e+16","1.0"]'),
    ('JSON_QUERY(JSON \'{"b":[1e15]}\', \'$.b\')', "json [1e+15]"),
    ("DATETIME_TRUNC(DATETIME '2024-02-03 10:11:12', DAYOFWEEK)", "refused: date_part"),
    ("TIME_ADD(TIME '10:00:00', INTERVAL 1 YEAR)", "refused: date_part"),
    ("STARTS_WITH(1.15, 1e16)", "refused: type_mismatch"),
    ("ROUND(-0.0, -400)", "0.0f"), ("JSON_VALUE_ARRAY(JSON '1.0')", "NULL"),
    ("JSON_QUERY_ARRAY(CAST(NULL AS JSON))", "NULL"),
    # NaN equals nothing.
    ("NULLIF(CAST('nan' AS FLOAT64), CAST('nan' AS FLOAT64))", "nanf"),
    # A number in a path is an element or a member.
    ('JSON_VALUE(\'{"0":5}\', \'$[0]\')', '"5"'),
    ("JSON_VALUE('[5]', '$.0')", '"5"'),
    ("JSON_QUERY(JSON '[5]', '$.0')", "json 5"),
    ('JSON_VALUE(JSON \'{"0":5}\', \'$[0]\')', '"5"'),
    ('JSON_QUERY(\'{"0":{"a":1}}\', \'$[0]\')', r'"{\"a\":1}"'),
    # What stands behind the wanted value is not read.
    ('JSON_VALUE(\'{"a":1,"b":\', \'$.a\')', '"1"'),
    ('JSON_VALUE(\'{"a":[1,2\', \'$.a[1]\')', '"2"'),
    ('JSON_VALUE(\'{"a":tru\', \'$.a\')', "NULL"),
    ('JSON_VALUE(\'{"a":"x\', \'$.a\')', "NULL"),
    ('JSON_VALUE(\'{"a":1.\', \'$.a\')', "NULL"),
    ('JSON_VALUE(\'{"a":1x\', \'$.a\')', '"1"'),
    ('JSON_QUERY(\'{"a":{"x":1},"b":\', \'$.a\')', r'"{\"x\":1}"'),
    ('JSON_QUERY(\'{"a":[1,2\', \'$.a\')', "NULL"),
    ('JSON_VALUE_ARRAY(\'{"a":[1],"b":\', \'$.a\')', '["1"]'),
    ('JSON_VALUE(\'{"a":nope,"b":1}\', \'$.b\')', "NULL"),
    ('JSON_VALUE(\'{"a":"\\\\x41\\\\q"\', \'$.a\')', '"Aq"'),
    ("JSON_VALUE('[1,,2', '$[2]')", '"2"'),
    # Arguments that Google refuses are refused, those that it takes are taken.
    ("LAST_DAY(TIMESTAMP '2024-02-03 00:00:00+00')", "refused: type_mismatch"),
    ("DATE_DIFF(TIMESTAMP '2024-02-03 00:00:00+00', DATE '2024-02-03', DAY)", "refused: type_mismatch"),
    ("DATE_DIFF(TIMESTAMP '2024-02-03 10:00:00+00', TIMESTAMP '2024-02-02 23:00:00+00', DAY)", "0"),
    ("DATE_DIFF(TIMESTAMP '2024-02-03 10:00:00+00', NULL, MONTH)", "refused: date_part"),
    ("TIMESTAMP_TRUNC(DATETIME '2024-02-03 00:00:00', DAY, 'UTC')", "refused: type_mismatch"),
    ("TIMESTAMP_TRUNC('2024-02-03 10:11:12', HOUR)", "1706954400000000us"),
    ("TIMESTAMP_TRUNC(NULL, DAY)", "NULL"),
    ("TIMESTAMP_TRUNC(NULL, DAY, 'Europe/Stockholm')", "NULL"),
    ("DATE_TRUNC(NULL, MONTH)", "NULL"),
    ("CONCAT('a', b'b')", 'b"6162"'),
    ("CONCAT(b'a', NULL)", "NULL"),
    ("STARTS_WITH(b'abc', 'a')", "true"), ("ENDS_WITH(b'abc', 'é')", "refused: type_mismatch"),
    ("DATE_DIFF('2024-01-01', '2024-01-02', DAY)", "-1"),
    ("LAST_DAY(DATE '2024-01-01', HOUR)", "refused: date_part"),
    ("LAST_DAY(DATE '2024-01-01', DAY)", "refused: date_part"),
    ("GENERATE_DATE_ARRAY(DATE '2024-01-01', DATE '2024-01-02', INTERVAL 1 HOUR)", "refused: date_part"),
    ("LAST_DAY(DATE '2024-01-01', WEEK(MONDAY))", "2024-01-07"),
    ("TIMESTAMP_TRUNC(TIMESTAMP '2024-01-01 00:00:00+00', NANOSECOND)", "refused: date_part"),
    ("DATETIME_SUB(DATE '2024-01-01', INTERVAL 1 HOUR)", "refused: date_part"),
    ("DATETIME_SUB(DATE '2024-01-01', INTERVAL 1 DAY)", "2023-12-31 00:00:00.000000"),
    # A literal of JSON rounds its numbers, PARSE_JSON does not.
    ("JSON '9007199254740993.0'", "json 9.007199254740992e+15"),
    ("PARSE_JSON('9007199254740993.0')", "error"),
    ("SAFE.REGEXP_CONTAINS('a', '(a)')", "true"),
    # Of a length of BYTES and of the parts of a moment, the last 32 bits count.
    ("SUBSTRING(b'abc', 2, 4294967296)", 'b""'),
    ("SUBSTR(b'abc', 1, 4294967298)", 'b"6162"'),
    ("SUBSTR(b'abc', 1, 9223372036854775807)", 'b"616263"'),
    ("SUBSTR('abc', 1, 4294967297)", '"abc"'),
    ("TIME(7, 7, 4294967297)", "07:07:01.000000"),
    ("DATE(2024, 1, -9223372036854775807)", "2024-01-01"),
    ("DATETIME(2024, 1, 1, 1, 1, 4294967297)", "2024-01-01 01:01:01.000000"),
    ("TIME(-1, 1, 1)", "error"),
    ("TIME(4294967320, 1, 1)", "error"),
    ("ARRAY_SLICE(CAST(NULL AS ARRAY<INT64>), 9223372036854775807, 1)", "NULL"),
    ("ARRAY_SLICE([1], 9223372036854775807, 1)", "[]"),
    ("ARRAY_SLICE([1, 2], 1, 9223372036854775807)", "[2]"),
    # A literal of STRING beside a DATETIME is no DATETIME.
    ("DATE_DIFF(DATETIME '2024-01-01 00:00:00', '2024-01-01', DAY)", "refused: type_mismatch"),
    # What stands beside NULL is computed where it can't fail.
    ("ATAN2(0.5, NULL)", "NULL"),
    ("CONCAT('a', CAST(NULL AS STRING))", "NULL"),
    ("b'a' = 'a'", "refused: type_mismatch"),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "answer"), GOOGLES_ANSWERS)
def test_what_was_answered_wrong_is_answered_as_google_does(lake: Lake, expression: str, answer: str) -> None:
    assert lake.query(f"SELECT {expression}") == answer


@pytest.mark.parametrize(
    "expression",
    [
        "TIMESTAMP_TRUNC(DATE '2024-02-03', DAY)",
        "LPAD('a', 3, b'b')",
        "LPAD(NULL, 3, b'b')",
        "REGEXP_REPLACE('a', 'a', b'b')",
        "TRIM('a', b'a')",
        "SPLIT('a', b'a')",
        "TRANSLATE('a', b'a', 'b')",
    ],
)
def test_bytes_beside_text_and_dates_as_moments_are_refused_with_a_sentence(lake: Lake, expression: str) -> None:
    assert lake.query(f"SELECT {expression}").startswith("refused: The lake's engine can't do this: ")


@pytest.mark.parametrize(
    "expression",
    [
        "ATAN2(ATANH(2), NULL)",
        "CONCAT(CAST(NULL AS STRING), CHR(-5))",
        "SUBSTR(CHR(-5), NULL)",
        "NULLIF(NULL, ATANH(2))",
        "DATE(NULL, CAST(ATANH(2) AS INT64), 1)",
        "LEAST(ACOSH(NUMERIC '-9'), SAFE_SUBTRACT(CAST(NULL AS INT64), 0))",
        "ATANH(2) * CAST(NULL AS FLOAT64)",
        "ATANH(2) = CAST(NULL AS FLOAT64)",
        "DATE_ADD(DATE(0, 1, 1), INTERVAL CAST(NULL AS INT64) DAY)",
        "ATAN2(ATANH(2), COALESCE(NULL, CAST(NULL AS FLOAT64)))",
    ],
)
def test_a_call_that_may_fail_beside_null_is_refused_with_a_sentence(lake: Lake, expression: str) -> None:
    sentence = "refused: The lake's engine can't do this: a NULL next to a call that may fail"
    assert lake.query(f"SELECT {expression}").startswith(sentence)


@pytest.mark.parametrize(
    "expression",
    [
        "CONCAT(UPPER(x), CAST(NULL AS STRING))",
        "MD5(x) = CAST(NULL AS BYTES)",
        "JSON_VALUE(x, '$.a') = CAST(NULL AS STRING)",
        "CAST(LENGTH(x) AS STRING) = CAST(NULL AS STRING)",
        "SAFE_CAST(x AS INT64) = CAST(NULL AS INT64)",
        "SAFE.CHR(LENGTH(x)) = CAST(NULL AS STRING)",
        "STARTS_WITH(LOWER(x), CAST(NULL AS STRING))",
        "IF(x IS NULL, 'a', 'b') = CAST(NULL AS STRING)",
        "CASE x WHEN 'a' THEN 'a' ELSE 'b' END = CAST(NULL AS STRING)",
        "(x LIKE 'a%') = CAST(NULL AS BOOL)",
        "ARRAY_LENGTH(SPLIT(x, ',')) = CAST(NULL AS INT64)",
    ],
)
def test_a_call_that_can_not_fail_is_answered_beside_null(lake: Lake, expression: str) -> None:
    assert lake.query(f"SELECT {expression} FROM UNNEST(['a']) AS x") == "NULL"


@pytest.mark.parametrize(
    "expression",
    [
        "SAFE.CHR(CAST(x AS INT64)) = CAST(NULL AS STRING)",
        "SAFE_CAST(CHR(-LENGTH(x)) AS INT64) = CAST(NULL AS INT64)",
        "UPPER(REGEXP_EXTRACT(x, '(')) = CAST(NULL AS STRING)",
        "(x LIKE x) = CAST(NULL AS BOOL)",
        "IF(x = 'a', CHR(-5), x) = CAST(NULL AS STRING)",
        "(SELECT y FROM UNNEST(['a', 'b']) AS y) = CAST(NULL AS STRING)",
        "LENGTH(x) + 1 = CAST(NULL AS INT64)",
    ],
)
def test_what_may_fail_inside_of_a_harmless_call_is_refused_beside_null(lake: Lake, expression: str) -> None:
    found = lake.query(f"SELECT {expression} FROM UNNEST(['a']) AS x")
    assert found.startswith("refused: The lake's engine can't do this: a NULL next to a call that may fail")


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


def test_a_null_that_depends_on_the_row_is_taken_beside_any_call(lake: Lake) -> None:
    query = "SELECT CONCAT(UPPER(x), IF(x = 'a', NULL, 'x')) FROM UNNEST(['a', 'b']) AS x"
    assert lake.query(query) == 'NULL;"Bx"'


@pytest.mark.parametrize(
    "expression",
    [
        "DIV(DATE '2024-01-01', DATE '2024-01-01')",
        "SAFE_MULTIPLY(b'a', b'b')",
        "ARRAY_CONCAT(DATE '2024-01-01')",
        "CODE_POINTS_TO_STRING(['a'])",
        "GREATEST(JSON '1', JSON '2')",
    ],
)
def test_types_that_a_function_has_no_answer_for_are_refused(lake: Lake, expression: str) -> None:
    assert lake.query(f"SELECT {expression}").startswith("refused: The lake's engine can't do this: ")


def test_no_question_made_from_the_registry_breaks_the_gate(lake: Lake) -> None:
    questions = [case.literal for case in Questions(0).cases(200)]
    assert not [text for text in questions if lake.query(f"SELECT {text}").startswith("broken: the gate")]


def test_every_recorded_question_from_the_registry_is_answered_as_google_does(lake: Lake) -> None:
    cases, answers = read_seeds()
    accepted = read_accepted()
    assert not [found for found in compare(lake, cases, answers, literals_of=8) if found[0] not in accepted]


def test_text_of_a_column_beside_bytes_is_refused(lake: Lake) -> None:
    assert lake.query("SELECT CONCAT(x, b'b') FROM UNNEST(['a']) AS x") == "refused: type_mismatch"


@pytest.mark.parametrize(
    ("call", "answer"), [("SUM", "1e+308f"), ("AVG", "3.333333333333333e+307f"), ("SUM(DISTINCT", "0.0f")]
)
def test_a_sum_that_overflows_on_the_way_is_none_that_overflows(lake: Lake, call: str, answer: str) -> None:
    opened = call if "(" in call else f"{call}("
    assert lake.query(f"SELECT {opened} x) FROM UNNEST([1e308, 1e308, -1e308]) AS x") == answer


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


@pytest.mark.parametrize(
    "expression",
    [
        "DATE_ADD(DATE '2024-01-01', INTERVAL 9007199254740993 YEAR)",
        "DATE_ADD(DATE '2024-01-01', INTERVAL 9007199254740993 WEEK)",
        "DATE_FROM_UNIX_DATE(9007199254740993)",
        "DATE '2024-01-01' + 9007199254740993",
        "DATE(TIMESTAMP_SECONDS(9007199254740993))",
        "DATE(TIMESTAMP_MILLIS(9223372036854775807))",
    ],
)
def test_a_constant_that_fails_fails_only_where_it_is_looked_at(lake: Lake, expression: str) -> None:
    assert lake.query(f"SELECT COALESCE(DATE '2024-01-01', {expression})") == "2024-01-01"
    assert lake.query(f"SELECT {expression}") == "error"


@pytest.mark.parametrize(
    ("condition", "answer"),
    [
        ("FALSE AND CHR(-5) = 'a'", "false"),
        ("TRUE OR CHR(-5) = 'a'", "true"),
        ("FALSE AND 1 / 0 > 1", "false"),
        ("TRUE AND CHR(-5) = 'a'", "error"),
        ("IF(FALSE, CHR(-5) = 'a', FALSE)", "false"),
    ],
)
def test_an_operand_that_decides_nothing_is_skipped(lake: Lake, condition: str, answer: str) -> None:
    # Google's engine computes it. "The order of evaluation of operands to AND and OR can vary, and evaluation can
    # be skipped if unnecessary": https://cloud.google.com/bigquery/docs/reference/standard-sql/operators
    assert lake.query(f"SELECT {condition}") == answer


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
