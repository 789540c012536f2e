"""Edits are offered only where they mend what was found, and all of them go together."""

import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from sql.check import check_query
from sql.edits import MAX_EDITS, Edit, apply_edits
from sql.validate import Policy, validate_query

POLICY = Policy("backup.messages", None, datetime(2026, 1, 3, 12, tzinfo=UTC))
WINDOW = "_PARTITIONTIME >= TIMESTAMP '2026-01-02' AND _PARTITIONTIME < TIMESTAMP '2026-01-04'"


def rewritten(query: str) -> str | None:
    report = check_query(query, {}, POLICY, with_edits=True)
    if report.rewritten is not None and report.is_mended:
        validate_query(report.rewritten, {}, POLICY)
    return report.rewritten if report.is_mended else None


def places(query: str) -> list[tuple[str, str]]:
    """The code and the text at the place of every finding."""
    report = check_query(query, {}, POLICY, with_edits=True)
    return [(finding.violation.code, query[finding.start : finding.end]) for finding in report.findings]


ALL = f"FROM backup.messages WHERE {WINDOW}"
OF_M = "WHERE m._PARTITIONTIME >= TIMESTAMP '2026-01-02' AND m._PARTITIONTIME < TIMESTAMP '2026-01-04'"
MENDED = {
    "SELECT data FROM backup.messages": f"SELECT data, attributes, message_id {ALL}",
    "SELECT * FROM backup.messages -- a\nWHERE topic = 'a' OR topic = 'b' -- c": (
        f"SELECT * FROM backup.messages -- a\nWHERE {WINDOW} AND (topic = 'a' OR topic = 'b') -- c"
    ),
    "SELECT * FROM backup.messages AS m LIMIT 3;": f"SELECT * FROM backup.messages AS m {OF_M} LIMIT 3;",
    f"SELECT TO_JSON_STRING(attributes) AS data, attributes, message_id {ALL}": (
        f"SELECT CAST(TO_JSON_STRING(attributes) AS BYTES) AS data, attributes, message_id {ALL}"
    ),
    f"SELECT * {ALL} AND topic != NULL AND (ordering_key = NULL)": (
        f"SELECT * {ALL} AND topic IS NOT NULL AND (ordering_key IS NULL)"
    ),
    f"SELECT data, attributes, message_id, _PARTITIONTIME {ALL}": (
        f"SELECT data, attributes, message_id, _PARTITIONTIME AS partition_time {ALL}"
    ),
    f"SELECT *\u00a0{ALL}": f"SELECT * {ALL}",
    f"SELECT * FROM shop.orders AS o WHERE {WINDOW}": f"SELECT * FROM `backup.messages` AS o WHERE {WINDOW}",
    f"SELECT * FROM `backup.messag\u0435s` WHERE {WINDOW}": f"SELECT * FROM `backup.messages` WHERE {WINDOW}",
    "SELECT": None,
    "DROP TABLE backup.messages": None,
    "SELECT data FROM backup.messages UNION ALL SELECT data FROM backup.messages": None,
    f"SELECT *, _PARTITIONDATE AS _partition {ALL}": None,
}


@pytest.mark.parametrize(("query", "mended"), list(MENDED.items()))
def test_all_edits_together_make_a_query_that_may_run_or_none_is_promised(query: str, mended: str | None) -> None:
    assert rewritten(query) == mended


def test_a_scan_in_a_subquery_gets_its_own_window() -> None:
    query = (
        "SELECT data, attributes, message_id FROM backup.messages AS m "
        "JOIN (SELECT message_id FROM backup.messages WHERE topic = 'x') AS n USING (message_id) "
        "ORDER BY publish_time"
    )
    mended = rewritten(query)
    assert mended.count("_PARTITIONTIME >=") == 2
    assert mended.endswith("ORDER BY publish_time")


def test_what_an_edit_does_not_mend_is_not_offered() -> None:
    # Both sides of a UNION lack the columns: adding them to one of them is no way out.
    report = check_query(" UNION ALL ".join([f"SELECT data {ALL}"] * 2), {}, POLICY, with_edits=True)
    assert [finding.violation.code for finding in report.findings] == ["column_missing", "column_missing"]
    assert [finding.edits for finding in report.findings] == [(), ()]
    assert report.rewritten is None


def test_a_place_holds_the_word_it_is_about_after_characters_beyond_the_basic_plane_too() -> None:
    query = "SELECT data, attributes, message_id /* \U0001f600 */\nFROM shop.orders WHERE nothing = '\U0001f600'"
    assert places(query) == [("table_not_allowed", "shop")]
    assert places("SELECT 'open") == [("string_open", "'")]
    assert places("SELECT ") == [("syntax", "")]
    assert places("") == [("query_empty", "")]
    assert places("SELECT \u00a0 1") == [("character_not_allowed", "\u00a0")]


def test_edits_at_one_place_stay_in_their_order_and_the_rest_of_the_text_as_it_was() -> None:
    text = "SELECT a FROM t"
    assert apply_edits(text, [Edit(8, 8, ", b"), Edit(14, 15, "u"), Edit(8, 8, ", c")]) == "SELECT a, b, c FROM u"
    assert apply_edits(text, []) == text


def test_the_longest_text_of_faults_is_read_again_a_bounded_number_of_times(monkeypatch):
    count = 0
    from sql import check

    def judge(text: str, *rest: object) -> object:
        nonlocal count
        count += 1
        return before(text, *rest)  # type: ignore[arg-type]

    before = check._judge
    monkeypatch.setattr(check, "_judge", judge)
    terms = " AND ".join(["topic = NULL"] * 60)
    query = f"SELECT * FROM backup.messages WHERE {WINDOW} AND {terms}"
    report = check_query(query, {}, POLICY, with_edits=True)
    assert len(report.findings) == 60
    assert sum(bool(finding.edits) for finding in report.findings) == MAX_EDITS
    assert count == 1 + MAX_EDITS + 1


@pytest.mark.parametrize(
    "text", ["(" * 65_000, "'" * 65_000, "a\u00a0" * 30_000, "x." * 32_000, "SELECT " * 9_000]
)
def test_hostile_texts_are_placed_within_a_second(text: str) -> None:
    began = time.perf_counter()
    report = check_query(text, {}, replace(POLICY, replay=True), with_edits=True)
    assert report.findings
    assert all(0 <= finding.start <= finding.end <= len(text) for finding in report.findings)
    # The gate's own bound is 0.15 s of CPU time for a reading, on a machine that others use as well.
    assert time.perf_counter() - began < 10
