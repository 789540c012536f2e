"""Comparisons of a partition's time with a moment within a day: what they select, and what was meant."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sql.check import check_query
from sql.tables import parse_table_schema
from sql.validate import Policy, parse_parameters
from sql.verdict import judge_query

POLICY = Policy("backup.messages", "shop", datetime(2026, 3, 1, 12, tzinfo=UTC))
TIMES: dict[str, Any] = {
    "from": {"type": "TIMESTAMP", "value": "2026-01-01T14:00:00Z"},
    "to": {"type": "TIMESTAMP", "value": "2026-01-02T15:30:00Z"},
    "midnight": {"type": "TIMESTAMP", "value": "2026-01-01T00:00:00Z"},
}
SELECT = "SELECT data, attributes, message_id FROM backup.messages AS m WHERE "


def warnings(condition: str, policy: Policy = POLICY) -> list[tuple[str, str | None]]:
    """Return what is said of a condition, and the condition that is offered in place of a comparison."""
    query = judge_query(SELECT + condition, parse_parameters(TIMES), policy)
    assert {each.violation.code for each in query.warnings} <= {"partition_cut"}
    return [(each.violation.message.partition(": ")[2], each.violation.rewrite) for each in query.warnings]


@pytest.mark.parametrize(
    ("condition", "rewrite"),
    [
        ("_PARTITIONTIME >= @from", "_PARTITIONTIME >= TIMESTAMP_TRUNC(@from, DAY) AND ingest_time >= @from"),
        ("m._PARTITIONTIME > @from", "m._PARTITIONTIME >= TIMESTAMP_TRUNC(@from, DAY) AND m.ingest_time > @from"),
        ("@from <= _partitiontime", "_partitiontime >= TIMESTAMP_TRUNC(@from, DAY) AND ingest_time >= @from"),
        ("_PARTITIONTIME >= @midnight AND _PARTITIONTIME < @to", "_PARTITIONTIME <= @to AND ingest_time < @to"),
        (
            "_PARTITIONTIME BETWEEN TIMESTAMP '2026-01-01 14:00:00' AND @to",
            (
                "_PARTITIONTIME BETWEEN TIMESTAMP_TRUNC(TIMESTAMP '2026-01-01 14:00:00', DAY) AND @to "
                "AND ingest_time BETWEEN TIMESTAMP '2026-01-01 14:00:00' AND @to"
            ),
        ),
        (
            "_PARTITIONTIME >= TIMESTAMP_SUB(@to, INTERVAL 1 DAY) AND topic = 'x'",
            (
                "_PARTITIONTIME >= TIMESTAMP_TRUNC(TIMESTAMP_SUB(@to, INTERVAL 1 DAY), DAY) "
                "AND ingest_time >= TIMESTAMP_SUB(@to, INTERVAL 1 DAY)"
            ),
        ),
        # No text that can be cut out with certainty, or nothing that would be meant.
        ("_PARTITIONTIME >= (@from)", None),
        ("TIMESTAMP_TRUNC(_PARTITIONTIME, DAY) >= @from", None),
        ("_PARTITIONTIME IN (@midnight, @to)", None),
    ],
)
def test_a_moment_within_a_day_is_warned_of_and_rewritten(condition: str, rewrite: str | None) -> None:
    [(_, found)] = warnings(condition)
    assert found == rewrite


def test_both_ends_say_what_they_do() -> None:
    low, high = warnings("_PARTITIONTIME >= @from AND _PARTITIONTIME < @to")
    assert low[0] == ">= 2026-01-01T14:00:00Z leaves out all of that day."
    assert high[0] == "< 2026-01-02T15:30:00Z includes all of that day."


@pytest.mark.parametrize(
    "condition",
    [
        "_PARTITIONTIME >= @midnight AND _PARTITIONTIME < TIMESTAMP_ADD(@midnight, INTERVAL 1 DAY)",
        "_PARTITIONDATE BETWEEN '2026-01-01' AND '2026-01-02'",
        "DATE(_PARTITIONTIME) >= DATE(@from)",
        "_PARTITIONTIME >= TIMESTAMP_TRUNC(@from, DAY) AND _PARTITIONTIME < @to AND ingest_time < @to",
        "_PARTITIONTIME >= @midnight AND _PARTITIONTIME < @to AND publish_time < @to",
        # Until now.
        "_PARTITIONTIME >= @midnight AND _PARTITIONTIME < CURRENT_TIMESTAMP()",
    ],
)
def test_what_is_meant_so_is_not_warned_of(condition: str) -> None:
    assert warnings(condition) == []


def test_a_lower_end_within_a_day_is_wrong_whatever_else_is_filtered() -> None:
    [(said, _)] = warnings("_PARTITIONTIME >= @from AND ingest_time >= @from AND publish_time >= @from")
    assert "leaves out" in said


def test_partitions_of_an_hour_begin_every_hour() -> None:
    policy = replace(POLICY, partitioning="hour")
    [(said, rewrite)] = warnings("_PARTITIONTIME >= @from AND _PARTITIONTIME < @to", policy)
    assert said == "< 2026-01-02T15:30:00Z includes all of that hour."
    assert rewrite == "_PARTITIONTIME <= @to AND ingest_time < @to"


def test_another_table_without_ingest_time_is_warned_of_without_a_rewrite() -> None:
    letters = parse_table_schema(
        "ops.letters(data BYTES, attributes ARRAY<STRUCT<key STRING, value STRING>>, "
        "message_id STRING, _PARTITIONTIME TIMESTAMP)"
    )
    policy = replace(POLICY, extra_tables=("ops.letters",), schemas=(letters,))
    text = "SELECT data, attributes, message_id FROM ops.letters WHERE _PARTITIONTIME >= @from"
    [found] = judge_query(text, parse_parameters(TIMES), policy).warnings
    assert (found.edits, found.violation.rewrite) == ((), None)


def test_a_check_offers_the_text_with_every_rewrite_and_still_accepts_the_query() -> None:
    text = SELECT + "_PARTITIONTIME >= @from\n  AND _PARTITIONTIME < @to AND topic = 'x'"
    report = check_query(text, TIMES, POLICY, with_edits=True)
    assert (report.exit_code, report.is_mended) == (0, True)
    assert report.rewritten == (
        SELECT + "_PARTITIONTIME >= TIMESTAMP_TRUNC(@from, DAY) AND ingest_time >= @from\n"
        "  AND _PARTITIONTIME <= @to AND ingest_time < @to AND topic = 'x'"
    )
    assert [each["line"] for each in report.to_json()["warnings"]] == [1, 2]
    assert report.to_text().count("[partition_cut]") == 2
    again = check_query(report.rewritten, TIMES, POLICY)
    assert (again.exit_code, again.warnings) == (0, ())
    assert again.query.window.start == datetime(2026, 1, 1, tzinfo=UTC)
    assert again.query.window.width < timedelta(days=3)
