# ruff: noqa: E501 - questions and answers, each in one piece
"""``SAFE.`` on the lake: what Google's reference engine answered, with values in columns and said more than once.

DuckDB computes what a query says twice only once, and took it out of its TRY for that.
"""

from collections.abc import Iterator

import pytest

from tests.sql.answers import Lake
from tests.sql.questions import Questions


@pytest.fixture(scope="module")
def lake() -> Iterator[Lake]:
    lake = Lake()
    yield lake
    lake.close()


GOOGLES_ANSWERS = [
    # Numbers as moments.
    ("SAFE.TIMESTAMP_SECONDS(n) FROM UNNEST([1, 9223372036854775807, 253402300800, NULL]) AS n", "1000000us;NULL;NULL;NULL"),
    ("SAFE.TIMESTAMP_MILLIS(n) FROM UNNEST([1, 9223372036854775807, 253402300800000]) AS n", "1000us;NULL;NULL"),
    ("SAFE.TIMESTAMP_MICROS(n) FROM UNNEST([1, 9223372036854775807, -62135596800000001]) AS n", "1us;NULL;NULL"),
    ("SAFE.DATE_FROM_UNIX_DATE(n) FROM UNNEST([1, 9223372036854775807, 2932897, NULL]) AS n", "1970-01-02;NULL;NULL;NULL"),
    ("SAFE.TIMESTAMP_SECONDS(9223372036854775807), SAFE.TIMESTAMP_MILLIS(-9223372036854775807)", "NULL,NULL"),
    ("SAFE.DATE_FROM_UNIX_DATE(4294967296), SAFE.TIMESTAMP_MICROS(9223372036854775807)", "NULL,NULL"),
    # Dates and times of their parts.
    ("SAFE.DATE(n, 2, 29) FROM UNNEST([2024, 2023, 9223372036854775807, 0, NULL]) AS n", "2024-02-29;NULL;NULL;NULL;NULL"),
    ("SAFE.DATETIME(2024, 1, 1, n, 0, 0) FROM UNNEST([1, 24, -1, NULL, 9223372036854775807]) AS n", "2024-01-01 01:00:00.000000;NULL;NULL;NULL;NULL"),
    ("SAFE.DATETIME(2024, n, 1, 23, 59, n) FROM UNNEST([1, 60, 59, 12]) AS n", "2024-01-01 23:59:01.000000;NULL;NULL;2024-12-01 23:59:12.000000"),
    ("SAFE.TIME(n, n, n) FROM UNNEST([1, 24, -1, NULL, 9223372036854775807, 59, 60]) AS n", "01:01:01.000000;NULL;NULL;NULL;NULL;NULL;NULL"),
    ("SAFE.DATE(2024, 13, 1), SAFE.DATE(2024, 13, 1), SAFE.DATETIME(2024, 1, 1, 24, 0, 0), SAFE.TIME(24, 0, 0)", "NULL,NULL,NULL,NULL"),
    ("TIME(23, 59, 60), TIME(7, 7, 60)", "00:00:00.000000,07:08:00.000000"),
    ("TIME(24, 0, 0)", "error"),
    ("TIME(24, 0, NULL), DATETIME(10000, 2, 30, 24, NULL, NULL)", "NULL,NULL"),
    ("DATETIME(2024, 1, 1, 24, 0, 0)", "error"),
    ("TIME(7, 7, 9223372036854775807)", "error"),
    # Moments that are moved.
    ("SAFE.DATE_ADD(d, INTERVAL n DAY) FROM UNNEST([DATE '2024-10-10', NULL]) AS d, UNNEST([1, NULL, 9223372036854775807, 3000000]) AS n", "2024-10-11;NULL;NULL;NULL;NULL;NULL;NULL;NULL"),
    ("SAFE.DATE_SUB(d, INTERVAL n WEEK) FROM UNNEST([DATE '2024-10-10', NULL]) AS d, UNNEST([1, NULL, 9223372036854775807, 500000]) AS n", "2024-10-03;NULL;NULL;NULL;NULL;NULL;NULL;NULL"),
    ("SAFE.DATE_ADD(d, INTERVAL n QUARTER) FROM UNNEST([DATE '2024-10-10', NULL]) AS d, UNNEST([1, NULL, -9223372036854775808, 50000]) AS n", "2025-01-10;NULL;NULL;NULL;NULL;NULL;NULL;NULL"),
    ("SAFE.DATETIME_ADD(e, INTERVAL n HOUR) FROM UNNEST([DATETIME '2024-10-10 00:00:00', NULL]) AS e, UNNEST([1, NULL, 9223372036854775807, 300000000]) AS n", "2024-10-10 01:00:00.000000;NULL;NULL;NULL;NULL;NULL;NULL;NULL"),
    ("SAFE.DATETIME_SUB(e, INTERVAL n MONTH) FROM UNNEST([DATETIME '2024-03-31 00:00:00']) AS e, UNNEST([1, 9223372036854775807, 99999]) AS n", "2024-02-29 00:00:00.000000;NULL;NULL"),
    ("SAFE.TIMESTAMP_ADD(t, INTERVAL n DAY) FROM UNNEST([TIMESTAMP '2024-10-10 00:00:00+00']) AS t, UNNEST([1, 9223372036854775807, 9999999]) AS n", "1728604800000000us;NULL;NULL"),
    ("SAFE.TIMESTAMP_SUB(t, INTERVAL n MICROSECOND) FROM UNNEST([TIMESTAMP '2024-10-10 00:00:00+00']) AS t, UNNEST([1, 9223372036854775807, -9223372036854775808]) AS n", "1728518399999999us;NULL;NULL"),
    ("SAFE.TIME_ADD(c, INTERVAL n HOUR) FROM UNNEST([TIME '10:00:00']) AS c, UNNEST([1, 25, -11, 9223372036854775807]) AS n", "11:00:00.000000;11:00:00.000000;23:00:00.000000;17:00:00.000000"),
    ("SAFE.DATE_ADD(DATE '2024-01-01', INTERVAL 9223372036854775807 DAY)", "NULL"),
    # Texts that are read.
    ("SAFE.PARSE_TIMESTAMP('%Y-%m-%d', s) FROM UNNEST(['2024-01-01', 'x', NULL]) AS s", "1704067200000000us;NULL;NULL"),
    ("SAFE.PARSE_DATE('%Y-%m-%d', s) FROM UNNEST(['2024-01-01', '2024-02-30']) AS s", "2024-01-01;NULL"),
    ("SAFE.DATE('2024-01-01 00:30:00+01')", "2023-12-31"),
    ("LPAD('a', -1, CAST(NULL AS STRING))", "NULL"),
    # What fails in the dividend fails whatever the divisor is.
    ("SAFE_DIVIDE(POWER(1.5, 253402300799), 0.0)", "error"),
    # A blank stands before the name of a zone, and none before an offset.
    ("TIMESTAMP('2024-01-01 10:00:00 +02')", "error"),
    ("TIMESTAMP('2024-01-01 10:00:00 Europe/Stockholm')", "1704099600000000us"),
    ("FORMAT_TIMESTAMP('%F', t, 'Asia/Tokyo') FROM UNNEST([TIMESTAMP '9999-12-31 23:00:00Z', TIMESTAMP '2024-01-01 00:00:00Z']) AS t", '"+10000-01-01";"2024-01-01"'),
    # What a format does not name is that of 1970-01-01, also where all is constant.
    ("SAFE.PARSE_DATE('%m', '3')", "1970-03-01"),
    ("SAFE.PARSE_TIMESTAMP('x', 'x')", "0us"),
    ("SAFE.PARSE_DATE('%m', s) FROM UNNEST(['3', '\\u0000']) AS s", "1970-03-01;NULL"),
    # A NUL ends the text, if nothing follows it.
    (
        "SAFE.PARSE_DATE('%Y', s) FROM UNNEST(['2020\\u0000', '2020 \\u0000', '2020\\u0000 ', '2020\\u0000\\u0000']) AS s",
        "2020-01-01;2020-01-01;NULL;NULL",
    ),
    ("SAFE.PARSE_DATETIME('%Y-%m-%d %H', s) FROM UNNEST(['2024-01-01 10', 'x']) AS s", "2024-01-01 10:00:00.000000;NULL"),
    ("SAFE.TIMESTAMP(s) FROM UNNEST(['x', '2024-01-01']) AS s", "NULL;1704067200000000us"),
    ("SAFE.TIMESTAMP(s, 'Europe/Stockholm') FROM UNNEST(['x', '2024-01-01']) AS s", "NULL;1704063600000000us"),
    ('SAFE.PARSE_JSON(s) FROM UNNEST([\'{"a":1}\', \'{\']) AS s', 'json {"a":1};NULL'),
    # Regular expressions that are none.
    ("SAFE.REGEXP_CONTAINS('', '(')", "NULL"),
    ("SAFE.REGEXP_CONTAINS(s, '*'), SAFE.REGEXP_CONTAINS(s, 'a*') FROM UNNEST(['a', NULL]) AS s", "NULL,true;NULL,NULL"),
    ("SAFE.REGEXP_EXTRACT(s, '('), SAFE.REGEXP_EXTRACT(s, '(a)') FROM UNNEST(['a', 'b']) AS s", 'NULL,"a";NULL,NULL'),
    ("SAFE.REGEXP_REPLACE(s, '[', 'b'), SAFE.REGEXP_REPLACE(s, 'a', 'b') FROM UNNEST(['a']) AS s", 'NULL,"b"'),
    # The same call more than once, as what it is and as what it fails with.
    ("IF(SAFE.TIMESTAMP_SECONDS(n) IS NULL, NULL, TIMESTAMP_SECONDS(n)), UNIX_DATE(DATE(SAFE.TIMESTAMP_SECONDS(n))) FROM UNNEST([1, 9223372036854775807]) AS n", "1000000us,0;NULL,NULL"),
    ("n FROM UNNEST([1, 9223372036854775807]) AS n WHERE SAFE.TIMESTAMP_SECONDS(n) IS NULL AND SAFE.TIMESTAMP_MILLIS(n) IS NULL", "9223372036854775807"),
    ("IF(n < 5000, DATE(n, 1, 1), NULL), SAFE.DATE(n, 1, 1), EXTRACT(YEAR FROM SAFE.DATE(n, 1, 1)) FROM UNNEST([1, 10000, 2024]) AS n", "0001-01-01,0001-01-01,1;NULL,NULL,NULL;2024-01-01,2024-01-01,2024"),
    ("COUNT(*), MAX(SAFE.DATE(n, 1, 1)), MIN(SAFE.DATE(n, 1, 1)) FROM UNNEST([1, 0, 10000, 2024]) AS n GROUP BY SAFE.DATE(n, 1, 1) IS NULL ORDER BY 3", "2,NULL,NULL;2,2024-01-01,0001-01-01"),
    ("n FROM UNNEST([1, 0, 10000, 2024]) AS n ORDER BY SAFE.DATE(n, 1, 1), n", "0;10000;1;2024"),
    ("ROW_NUMBER() OVER (PARTITION BY SAFE.DATE(n, 1, 1) ORDER BY n), n FROM UNNEST([1, 0, 10000, 2024]) AS n ORDER BY n", "1,0;1,1;1,2024;2,10000"),
    ("ARRAY(SELECT SAFE.DATE(m, n, 1) FROM UNNEST([1, 2024]) AS m) FROM UNNEST([1, 13]) AS n", "[0001-01-01,2024-01-01];[NULL,NULL]"),
    ("SAFE.DATE((SELECT MAX(n) FROM UNNEST([1, 10000]) AS n), 1, 1)", "NULL"),
    ("SAFE.DATE(MAX(n), 1, 1), SAFE.DATE(MIN(n), 1, 1) FROM UNNEST([1, 10000]) AS n", "NULL,0001-01-01"),
    ("SAFE_ADD(n, 1), SAFE_ADD(n + 0, 1) * 2, IF(SAFE_ADD(n, 1) IS NULL, NULL, n + 1) FROM UNNEST([1, 9223372036854775807]) AS n", "2,4,2;NULL,NULL,NULL"),
    ("SAFE_NEGATE(n), SAFE_SUBTRACT(n, 1), SAFE_MULTIPLY(n, n) FROM UNNEST([1, -9223372036854775808]) AS n", "-1,0,1;NULL,NULL,NULL"),
    ("SAFE_ADD(n, NUMERIC '99999999999999999999999999999.999999999'), SAFE_NEGATE(NUMERIC '1.5') FROM UNNEST([1, 0]) AS n", "NULL,-1.5n;99999999999999999999999999999.999999999n,-1.5n"),
    ("IF(SAFE_CAST(b AS STRING) IS NULL, 'x', CAST(b AS STRING)), SAFE_CONVERT_BYTES_TO_STRING(b) FROM UNNEST([b'a', b'\\xff']) AS b", '"a","a";"x","�"'),
    ("SAFE.ERROR('a')", "NULL"),
    # SAFE is of the call, not of its arguments.
    ("SAFE.DATE(DATE_ADD(d, INTERVAL 1 DAY)) FROM UNNEST([DATE '9999-12-31']) AS d", "error"),
    ("SAFE.DATE(DATE_ADD(d, INTERVAL 1 DAY)) FROM UNNEST([DATE '2024-12-31']) AS d", "2025-01-01"),
    ("SAFE.DATE_ADD(DATE '2024-12-31', INTERVAL DIV(1, n) DAY) FROM UNNEST([0]) AS n", "error"),
    ("SAFE.TIMESTAMP_SECONDS(CAST(s AS INT64)) FROM UNNEST(['1', 'x']) AS s", "error"),
    ("SAFE.TIMESTAMP_SECONDS(SAFE_CAST(s AS INT64)) FROM UNNEST(['x', '9223372036854775807', '7']) AS s", "NULL;NULL;7000000us"),
    ("SAFE.SUBSTR(ERROR('a'), 1)", "error"),
    ("SAFE.COALESCE(n, DIV(1, 0)) FROM UNNEST([1]) AS n", "1"),
    ("SAFE.IF(n > 1, DIV(1, n - 2), 7) FROM UNNEST([1]) AS n", "7"),
    ("DATE('2024-10-27 02:30:00', 'Australia/Lord_Howe')", "2024-10-27"),
]  # fmt: skip


@pytest.mark.parametrize(("query", "answer"), GOOGLES_ANSWERS)
def test_a_call_that_fails_gives_null_whatever_else_the_query_says(lake: Lake, query: str, answer: str) -> None:
    assert lake.query(f"SELECT {query}") == answer


@pytest.mark.parametrize(
    "expression",
    [
        "SAFE.ERROR(z)",
        "SAFE.RAND()",
        "SAFE.DATE(TIMESTAMP '2024-01-01 00:00:00+00', z)",
        "SAFE.FORMAT_TIMESTAMP('%Y', TIMESTAMP '2024-01-01 00:00:00+00', z)",
    ],
)
def test_what_no_call_of_the_engine_gives_null_for_is_refused_with_a_sentence(lake: Lake, expression: str) -> None:
    answer = lake.query(f"SELECT {expression} FROM UNNEST(['UTC']) AS z")
    assert answer.startswith("refused: The lake's engine can't do this: SAFE.")


def test_no_call_under_safe_breaks_the_engines_planning(lake: Lake) -> None:
    asked = [case.literal for case in Questions(1).cases(150) if case.literal.startswith("SAFE.")]
    assert not [text for text in asked if lake.query(f"SELECT {text}").startswith("broken")]
