"""The texts of sql/queries as they are filled: names quoted, days as constants, no placeholder left."""

from dataclasses import replace
from datetime import UTC, date, datetime

import pytest
import sqlglot

from model.entity import EntityRules, version_order
from sql.merge import MergeQueries, MergeTables
from sql.template import fill

TABLES = MergeTables(
    *(f"my-shop.orders.{name}" for name in ("staging", "reporting", "changes", "audits", "watermark", "view"))
)
RULES = EntityRules(
    ("shop", "number"), version_order(("revision",), "changed_at"), "ordered_on", has_operation=True
)
COLUMNS = (
    "shop", "number", "revision", "changed_at", "ordered_on", "note", "_message_id", "_publish_time",
    "ingest_time",
)  # fmt: skip
QUERIES = MergeQueries(TABLES, (*COLUMNS, "_operation"), RULES, "DATE")
REPLAYED = replace(
    QUERIES,
    tables=replace(TABLES, replays="my-shop.orders.replays", displaced="my-shop.orders.displaced"),
    columns=(*QUERIES.columns, "_topic", "_backfill_id", "_backfill_row"),
)
DAYS = (None, date(2026, 2, 28), date(2026, 3, 1), date(2026, 3, 9))


@pytest.mark.parametrize(
    "text",
    [
        text
        for queries in (QUERIES, REPLAYED)
        for text in (
            queries.changes(),
            queries.days(),
            queries.compare(DAYS),
            queries.merge(DAYS),
            queries.view(None),
        )
    ]
    + [replace(queries, may_lack_key=False).days() for queries in (QUERIES, REPLAYED)]
    + [REPLAYED.without_key(), REPLAYED.replays(), REPLAYED.displaced(), REPLAYED.orphans(), REPLAYED.heirs()],
)
def test_every_text_is_filled_and_is_googlesql(text: str) -> None:
    assert "__" not in text
    assert all(tree is not None for tree in sqlglot.parse(text.rstrip(";"), read="bigquery"))


def test_days_are_ranges_of_constants_that_prune_partitions() -> None:
    text = QUERIES.compare(DAYS)
    assert (
        "WHERE ((r.`ordered_on` >= CAST('2026-02-28' AS DATE) AND r.`ordered_on` < CAST('2026-03-02' AS DATE)) "
        "OR (r.`ordered_on` >= CAST('2026-03-09' AS DATE) AND r.`ordered_on` < CAST('2026-03-10' AS DATE)) "
        "OR r.`ordered_on` IS NULL)"
    ) in text
    assert "WHERE FALSE" in QUERIES.compare(())
    moments = replace(QUERIES, partition_type="TIMESTAMP").compare((date(2026, 3, 1),))
    assert "r.`ordered_on` < CAST('2026-03-02 00:00:00.000000+00:00' AS TIMESTAMP)" in moments
    clocks = replace(QUERIES, partition_type="DATETIME").compare((date(2026, 3, 1),))
    assert "r.`ordered_on` >= CAST('2026-03-01 00:00:00' AS DATETIME)" in clocks
    endless = QUERIES.compare((date(9999, 12, 30), date.max))
    assert "WHERE (r.`ordered_on` >= CAST('9999-12-30' AS DATE))" in endless
    whole = replace(QUERIES, partition_type=None)
    assert "AND TRUE WHEN MATCHED" in whole.merge((None,))
    assert "AND FALSE WHEN MATCHED" in whole.merge(())


def test_a_merge_reads_and_writes_reporting_under_that_condition_alone() -> None:
    text = QUERIES.merge((date(2026, 3, 1),))
    condition = "r.`ordered_on` >= CAST('2026-03-01' AS DATE) AND r.`ordered_on` < CAST('2026-03-02' AS DATE)"
    assert text.count("`reporting`") == text.count(condition) == 3


def test_what_tells_rows_without_a_key_apart_is_read_where_there_are_some_alone() -> None:
    plain = replace(REPLAYED, tables=TABLES)
    assert "r.`_message_id`" in plain.days()
    assert "_message_id" not in replace(plain, may_lack_key=False).days()
    # A row that a replay takes away may be one.
    assert "r.`_message_id`" in replace(REPLAYED, may_lack_key=False).days()


def test_names_are_names_whatever_is_in_them() -> None:
    odd = replace(QUERIES, columns=("a` b; DROP TABLE x", "__columns__"))
    tree = sqlglot.parse(odd.merge((None,)).rstrip(";"), read="bigquery")
    names = [column.name for column in tree[2].find_all(sqlglot.exp.Column)]
    assert {"a` b; DROP TABLE x", "__columns__"} <= set(names)
    assert len([found for found in tree if found is not None]) == len(
        [found for found in sqlglot.parse(QUERIES.merge((None,)), read="bigquery") if found is not None]
    )


def test_a_removed_entity_keeps_its_key_its_order_and_its_day() -> None:
    text = QUERIES.changes()
    wiped = "IF(COALESCE(s.`_operation` = 'REMOVE', FALSE), NULL, s.`note`) AS `note`"
    assert wiped in text
    assert text.count("IF(COALESCE") == 1
    assert wiped not in replace(QUERIES, rules=replace(RULES, is_soft_delete=True)).changes()
    plain = replace(QUERIES, rules=replace(RULES, has_operation=False)).changes()
    assert "_operation` =" not in plain
    assert "FALSE AS _deleted" in plain


def test_the_view_reads_staging_since_the_last_merge_and_two_days_at_least() -> None:
    text = QUERIES.view(datetime(2026, 3, 1, 12, tzinfo=UTC))
    since = (
        "LEAST(CAST('2026-03-01 12:00:00.000000+00:00' AS TIMESTAMP), "
        "TIMESTAMP_SUB(CURRENT_TIMESTAMP(), INTERVAL '2' DAY))"
    )
    assert f"s._PARTITIONTIME >= TIMESTAMP_TRUNC({since}, DAY) OR s._PARTITIONTIME IS NULL" in text
    assert "NOT COALESCE(b.`_deleted`, FALSE)" in text


def test_what_is_new_in_staging_is_asked_of_bigquerys_clock_and_not_of_what_workers_wrote() -> None:
    changes = QUERIES.changes()
    assert "AS s FOR SYSTEM_TIME AS OF @until" in changes
    assert "s._PARTITIONTIME >= @partitions_from OR s._PARTITIONTIME IS NULL" in changes
    view = QUERIES.view(datetime(2026, 3, 1, 12, tzinfo=UTC))
    scan, rest = changes.split("WHERE")[1:]
    assert "ingest_time" not in scan.split(" SELECT ")[0] + rest.split("QUALIFY")[0]
    assert "ingest_time" not in view.split("WHERE")[1].split(" SELECT ")[0]


def test_a_staged_column_that_is_several_is_read_by_its_expression_once_and_by_its_name_after_that() -> None:
    sql = "COALESCE(s.`_refeed_string_number`, IF(s.`number` IS NULL, NULL, TO_JSON_STRING(s.`number`)))"
    queries = replace(REPLAYED, staged={"number": sql})
    for text in (queries.changes(), queries.heirs(), queries.view(None)):
        assert text.count(f"{sql} AS `number`") == 1
        assert "s.`number`" in text.replace(sql, "")


def test_a_replay_is_looked_for_where_there_are_replays_alone() -> None:
    texts = (QUERIES.changes(), QUERIES.days(), QUERIES.compare(DAYS), QUERIES.merge(DAYS), QUERIES.view(None))
    assert not any("DELETE" in text or "_backfill_id" in text for text in texts)
    delete = REPLAYED.merge((None,)).split(";")[2]
    assert delete.startswith("\nDELETE FROM `my-shop`.`orders`.`reporting` AS r WHERE (r.`ordered_on` IS NULL) ")
    assert "IN (SELECT d._refeed_key FROM `my-shop`.`orders`.`displaced` AS d)" in delete
    # Staging is read as it was at one moment, and never without a filter on its partitions.
    for text in (REPLAYED.replays(), REPLAYED.changes(), REPLAYED.heirs()):
        scans = text.count("`staging`")
        assert scans == text.count("FOR SYSTEM_TIME AS OF @until") == text.count("_PARTITIONTIME IS NULL")


def test_a_name_that_is_not_given_is_a_fault_and_no_text() -> None:
    with pytest.raises(KeyError, match="reporting_day"):
        fill("days", {"reporting": "a.b.c", "changes": "a.b.d", "displaced": None}, {})
    with pytest.raises(KeyError, match="changes"):
        fill("displaced", {"reporting": "a.b.c", "changes": None, "replays": None}, {})
