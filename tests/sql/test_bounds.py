from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sql.validate import Policy, QueryRefusedError
from sql.verdict import judge_query

POLICY = Policy("backup.messages", None, datetime(2024, 3, 1, tzinfo=UTC))
FIRST = date(2024, 1, 1)
days = st.integers(0, 40).map(lambda n: FIRST + timedelta(days=n))


def comparison() -> st.SearchStrategy[tuple[str, frozenset[int]]]:
    """A condition on _PARTITIONDATE and the days, counted from the first one, for which it is true."""

    def build(column: str, operator: str, day: date) -> tuple[str, frozenset[int]]:
        literal = f"'{day}'"
        offset = (day - FIRST).days
        true = {
            "=": lambda n: n == offset,
            "<": lambda n: n < offset,
            "<=": lambda n: n <= offset,
            ">": lambda n: n > offset,
            ">=": lambda n: n >= offset,
            "!=": lambda n: n != offset,
        }[operator]
        return f"{column} {operator} {literal}", frozenset(n for n in range(-5, 60) if true(n))

    columns = st.sampled_from(["_PARTITIONDATE", "_PARTITIONTIME", "DATE(_PARTITIONTIME)"])
    return st.builds(build, columns, st.sampled_from(["=", "<", "<=", ">", ">=", "!="]), days)


conditions = st.recursive(
    comparison(),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: (f"({p[0][0]} AND {p[1][0]})", p[0][1] & p[1][1])),
        st.tuples(inner, inner).map(lambda p: (f"({p[0][0]} OR {p[1][0]})", p[0][1] | p[1][1])),
        inner.map(lambda p: (f"(NOT {p[0]})", frozenset(range(-5, 60)) - p[1])),
        inner.map(lambda p: (f"({p[0]} AND topic = 'x')", p[1])),
    ),
    max_leaves=8,
)


@given(conditions)
def test_the_window_holds_every_day_that_can_pass(condition: tuple[str, frozenset[int]]) -> None:
    text, true = condition
    try:
        query = judge_query(f"SELECT * FROM backup.messages WHERE {text}", {}, POLICY)
    except QueryRefusedError as refused:
        codes = {violation.code for violation in refused.violations}
        assert codes <= {"window_missing", "window_empty"}
        if "window_empty" in codes:
            assert not true
        return
    assert query.window is not None
    for offset in true:
        moment = datetime.combine(FIRST + timedelta(days=offset), datetime.min.time(), UTC)
        assert moment >= query.window.start
        assert moment < query.window.end or moment >= POLICY.now


@pytest.mark.parametrize(
    ("condition", "start", "end"),
    [
        ("TIMESTAMP_TRUNC(_PARTITIONTIME, HOUR) = '2024-01-01 05:00:00'", "2024-01-01T05", "2024-01-01T06"),
        ("DATE_TRUNC(_PARTITIONDATE, WEEK) = '2024-01-07'", "2024-01-07", "2024-01-14"),
        ("DATE_TRUNC(_PARTITIONDATE, WEEK(MONDAY)) = '2024-01-08'", "2024-01-08", "2024-01-15"),
        ("DATE_TRUNC(_PARTITIONDATE, QUARTER) = '2024-01-01'", "2024-01-01", "2024-04-01"),
        ("DATE_TRUNC(_PARTITIONDATE, YEAR) = '2024-01-01'", "2024-01-01", "2025-01-01"),
        ("DATE_TRUNC(_PARTITIONDATE, MONTH) BETWEEN '2024-01-15' AND '2024-02-15'", "2024-02-01", "2024-03-01"),
        ("_PARTITIONTIME IN (TIMESTAMP '2024-01-02', '2024-01-01')", "2024-01-01", "2024-01-02T00:00:00.000001"),
        ("_PARTITIONDATE >= '2024-01-05' AND _PARTITIONDATE >= '2024-01-02'", "2024-01-05", "2024-03-01"),
    ],
)
def test_windows_are_as_narrow_as_what_is_written(condition: str, start: str, end: str) -> None:
    query = judge_query(f"SELECT * FROM backup.messages WHERE {condition}", {}, POLICY)
    assert query.window.start == datetime.fromisoformat(start).replace(tzinfo=UTC)
    assert query.window.end == datetime.fromisoformat(end).replace(tzinfo=UTC)


HOUR = "ingest_time >= '2024-01-05 02:00:00' AND ingest_time < '2024-01-05 03:00:00'"
DAY = "_PARTITIONTIME >= '2024-01-05' AND _PARTITIONTIME < '2024-01-07'"
COLUMNS = "data, attributes, message_id"


@pytest.mark.parametrize(
    ("query", "column", "start", "end"),
    [
        (f"SELECT * FROM backup.messages WHERE {DAY} AND {HOUR}", "ingest_time", "02:00", "03:00"),
        (
            (
                f"SELECT * FROM backup.messages WHERE {DAY} AND '2024-01-05 04:00:00' > publish_time "
                "AND publish_time BETWEEN '2024-01-05 01:00:00' AND '2024-01-06'"
            ),
            *("publish_time", "01:00", "04:00"),
        ),
        # The narrower of two; both of an OR, and of two readings.
        (
            (
                f"SELECT * FROM backup.messages WHERE {DAY} AND {HOUR} AND publish_time > '2024-01-01' "
                "AND publish_time < '2024-01-06'"
            ),
            *("ingest_time", "02:00", "03:00"),
        ),
        (
            f"SELECT * FROM backup.messages WHERE {DAY} AND (({HOUR}) OR ingest_time = '2024-01-05 05:00:00')",
            *("ingest_time", "02:00", "05:00:00.000001"),
        ),
        (
            (
                f"SELECT {COLUMNS} FROM (SELECT * FROM backup.messages WHERE {DAY} "
                "AND ingest_time < '2024-01-05 03:00:00') "
                "WHERE ingest_time >= '2024-01-05 02:00:00' UNION ALL "
                f"SELECT {COLUMNS} FROM backup.messages WHERE {DAY} AND ingest_time >= '2024-01-05 06:00:00' "
                "AND ingest_time < '2024-01-05 07:00:00'"
            ),
            *("ingest_time", "02:00", "07:00"),
        ),
        # What bounds one side, or not every row, bounds nothing.
        (f"SELECT * FROM backup.messages WHERE {DAY} AND ingest_time >= '2024-01-05'", "", "", ""),
        (f"SELECT * FROM backup.messages WHERE {DAY} AND NOT ({HOUR})", "", "", ""),
        (f"SELECT * FROM backup.messages WHERE {DAY} AND ({HOUR} OR topic = 'orders')", "", "", ""),
        (
            (
                f"SELECT {COLUMNS} FROM backup.messages WHERE {DAY} AND {HOUR} UNION ALL "
                f"SELECT {COLUMNS} FROM backup.messages WHERE {DAY}"
            ),
            *("", "", ""),
        ),
    ],
)
def test_the_times_that_a_query_lets_through_are_no_narrower_than_it_says(query, column, start, end):
    found = judge_query(query, {}, POLICY).replayed_times
    if not column:
        assert found is None
        return
    wanted = [datetime.fromisoformat(f"2024-01-05T{moment}+00:00") for moment in (start, end)]
    assert (found[0], [found[1].start, found[1].end]) == (column, wanted)
