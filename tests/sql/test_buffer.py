"""Rows without a partition: which queries leave them out, and what is written so that they come along."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from sql.tables import parse_table_schema
from sql.validate import Policy, QueryRefusedError, parse_parameters
from sql.verdict import judge_query

POLICY = Policy("backup.messages", "shop", datetime(2024, 3, 1, tzinfo=UTC), has_write_buffer=True)
PARAMETERS = parse_parameters(
    {
        "from": {"type": "TIMESTAMP", "value": "2024-01-01T00:00:00Z"},
        "to": {"type": "TIMESTAMP", "value": "2024-01-03T00:00:00Z"},
    }
)
WITH_BUFFER = (
    "(_PARTITIONTIME >= '2024-01-01' AND _PARTITIONTIME < '2024-01-03' "
    "OR _PARTITIONTIME IS NULL AND ingest_time >= '2024-01-01' AND ingest_time < '2024-01-03')"
)


def test_a_window_joined_with_the_write_buffer_is_accepted_as_it_is() -> None:
    query = judge_query(f"SELECT * FROM backup.messages WHERE {WITH_BUFFER} AND topic = 'x'", {}, POLICY)
    assert (query.window.start.day, query.window.end.day) == (1, 3)
    assert (query.leaves_out_buffer, query.buffered_text) == (False, None)


@pytest.mark.parametrize(
    "text",
    [
        (
            "FROM backup.messages WHERE (_PARTITIONTIME >= '2024-01-01' OR _PARTITIONTIME IS NULL) "
            "AND ingest_time >= '2024-01-01'"
        ),
        (
            "FROM backup.messages m WHERE (m._PARTITIONDATE = '2024-01-01' OR m._PARTITIONDATE IS NULL) "
            "AND DATE(m.ingest_time) = '2024-01-01'"
        ),
        f"FROM (SELECT * FROM backup.messages WHERE {WITH_BUFFER}) WHERE topic = 'x'",
        (
            "FROM backup.messages WHERE (_PARTITIONTIME >= '2024-01-01' OR _PARTITIONTIME IS NULL) "
            "AND (_PARTITIONTIME IS NOT NULL OR ingest_time >= '2024-01-01')"
        ),
        "FROM backup.messages WHERE _PARTITIONTIME IS NULL AND ingest_time BETWEEN '2024-01-01' AND '2024-01-02'",
    ],
)
def test_every_way_to_bound_the_write_buffer_by_ingest_time_counts(text: str) -> None:
    assert not judge_query(f"SELECT * {text}", {}, POLICY).leaves_out_buffer


@pytest.mark.parametrize(
    "condition",
    [
        "_PARTITIONTIME >= '2024-01-01' OR _PARTITIONTIME IS NULL",
        "_PARTITIONTIME >= '2024-01-01' OR _PARTITIONTIME IS NULL AND ingest_time < '2024-01-03'",
        "_PARTITIONTIME >= '2024-01-01' OR _PARTITIONTIME IS NULL AND publish_time >= '2024-01-01'",
        "_PARTITIONTIME IS NULL",
        "_PARTITIONTIME IS NOT NULL",
        "ingest_time >= '2024-01-01'",
    ],
)
def test_a_write_buffer_without_a_lower_bound_is_refused(condition: str) -> None:
    with pytest.raises(QueryRefusedError) as refused:
        judge_query(f"SELECT * FROM backup.messages WHERE {condition}", {}, POLICY)
    assert [violation.code for violation in refused.value.violations] == ["window_missing"]


def test_the_ingest_time_of_another_table_bounds_its_write_buffer_too() -> None:
    schema = parse_table_schema(
        "backup.letters(message_id STRING, ingest_time TIMESTAMP, _PARTITIONTIME TIMESTAMP)"
    )
    policy = replace(POLICY, extra_tables=(schema.table,), schemas=(schema,))
    text = (
        "SELECT m.* FROM backup.messages AS m JOIN backup.letters AS d USING (message_id) "
        f"WHERE m._PARTITIONDATE = '2024-01-01' AND {WITH_BUFFER.replace('_PART', 'd._PART')}"
    )
    with pytest.raises(QueryRefusedError, match="lower bound on ingest_time"):
        judge_query(text.replace("AND ingest_time", "AND m.ingest_time"), {}, policy)
    assert judge_query(text.replace("AND ingest_time", "AND d.ingest_time"), {}, policy).window is not None


def test_one_reading_s_ingest_time_bounds_no_other_reading() -> None:
    text = (
        "WITH c AS (SELECT *, _PARTITIONTIME AS p FROM backup.messages) "
        "SELECT a.* FROM c a JOIN c b ON a.message_id = b.message_id AND a.topic = b.topic "
        "WHERE a.p >= '2024-01-01' AND (b.p >= '2024-01-01' OR b.p IS NULL) AND a.ingest_time >= '2024-01-01'"
    )
    with pytest.raises(QueryRefusedError) as refused:
        judge_query(text, {}, POLICY)
    assert "window_missing" in {violation.code for violation in refused.value.violations}


def test_a_plain_window_is_written_with_the_buffer() -> None:
    query = judge_query("SELECT * FROM backup.messages WHERE _PARTITIONDATE >= '2024-01-01'", {}, POLICY)
    assert query.leaves_out_buffer
    assert query.buffered_text == (
        "SELECT * FROM backup.messages WHERE "
        "(_PARTITIONTIME IS NULL OR (_PARTITIONTIME >= TIMESTAMP '2024-01-01 00:00:00+00:00')) AND "
        "(_PARTITIONTIME IS NOT NULL OR (ingest_time >= TIMESTAMP '2024-01-01 00:00:00+00:00')) AND "
        "IFNULL(_PARTITIONDATE, DATE(TIMESTAMP_TRUNC(ingest_time, DAY))) >= '2024-01-01'"
    )


@pytest.mark.parametrize(
    "text",
    [
        "SELECT m.* FROM backup.messages AS m WHERE @from <= m._PARTITIONTIME AND m._PARTITIONTIME < @to",
        (
            "SELECT * FROM backup.messages WHERE (topic = 'a' AND _PARTITIONDATE = '2024-01-01') "
            "OR _PARTITIONDATE IN ('2024-01-02', '2024-01-05')"
        ),
        (
            "SELECT a.* FROM backup.messages a LEFT JOIN backup.messages b ON a.message_id = b.message_id "
            "AND b._PARTITIONDATE = '2024-01-05' WHERE DATE(a._PARTITIONTIME) = '2024-01-01' AND b.topic IS NULL"
        ),
        (
            "WITH m AS (SELECT * FROM `backup.messages` WHERE _PARTITIONTIME BETWEEN @from AND @to) "
            "SELECT * FROM m UNION ALL SELECT * FROM m"
        ),
        "FROM backup.messages |> WHERE _PARTITIONTIME >= @from",
    ],
)
def test_what_is_written_for_the_buffer_passes_the_gate_and_leaves_nothing_out(text: str) -> None:
    query = judge_query(text, PARAMETERS, POLICY)
    assert query.leaves_out_buffer
    again = judge_query(query.buffered_text, PARAMETERS, POLICY)
    assert not again.leaves_out_buffer
    assert again.window.start == query.window.start
    assert again.window.end >= query.window.end


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * EXCEPT (p) FROM (SELECT *, _PARTITIONTIME AS p FROM backup.messages) WHERE p >= '2024-01-01'",
        "SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND NOT _PARTITIONDATE = '2024-01-02'",
        "SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' AND _PARTITIONTIME IS NOT NULL",
    ],
)
def test_a_query_that_can_t_be_written_so_is_known_to_leave_rows_out(text: str) -> None:
    query = judge_query(text, {}, POLICY)
    assert (query.leaves_out_buffer, query.buffered_text) == (True, None)


def test_an_archive_without_a_buffer_needs_nothing_written() -> None:
    policy = Policy("backup.messages", "shop", POLICY.now)
    query = judge_query("SELECT * FROM backup.messages WHERE _PARTITIONDATE >= '2024-01-01'", {}, policy)
    assert (query.leaves_out_buffer, query.buffered_text) == (False, None)


@pytest.mark.parametrize(
    ("condition", "until"),
    [
        ("_PARTITIONDATE = '2024-01-01'", datetime(2024, 1, 2, tzinfo=UTC)),
        ("_PARTITIONTIME >= '2024-01-01'", POLICY.now),
        ("_PARTITIONDATE < '2124-01-01'", POLICY.now),
        ("_PARTITIONDATE = '2024-01-01' AND _PARTITIONDATE = '2024-01-02'", None),
        ("topic = 'x'", None),
    ],
)
def test_a_query_that_is_no_replay_is_written_with_the_buffer_too(condition: str, until: datetime | None) -> None:
    policy = replace(POLICY, replay=False)
    query = judge_query(f"SELECT COUNT(*) AS n FROM backup.messages WHERE {condition}", {}, policy)
    assert query.unbuffered_until == until
    assert (query.buffered_text is None) is (until is None)
