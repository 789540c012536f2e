"""Tables beside the archive, and an archive that is named with its project."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from model.errors import InputError
from model.table import TableRead, TableSchema
from model.window import Window
from sql.dialect import render_lake_query
from sql.parameters import parse_parameters
from sql.tables import parse_table_schema, read_type
from sql.validate import Policy, QueryRefusedError, ValidatedQuery
from sql.verdict import judge_query

NOW = datetime(2024, 1, 10, 12, tzinfo=UTC)
MESSAGE = (("data", "BYTES"), ("attributes", "ARRAY<STRUCT<key STRING, value STRING>>"), ("message_id", "STRING"))
DEAD = TableSchema("ops.dead", (*MESSAGE, ("reason", "STRING")))
STAGED = TableSchema("ops.staged", (*MESSAGE, ("topic", "STRING")), "day")
POLICY = Policy(
    "backup.messages",
    "shop",
    NOW,
    extra_tables=("ops.dead", "ops.staged", "other.ops.unknown", "ops.gone"),
    schemas=(DEAD, STAGED),
    missing_tables=("ops.gone",),
)
WINDOW = "_PARTITIONTIME >= '2024-01-02' AND _PARTITIONTIME < '2024-01-04'"
JAN_2, JAN_4 = datetime(2024, 1, 2, tzinfo=UTC), datetime(2024, 1, 4, tzinfo=UTC)


def judge(text: str, policy: Policy = POLICY, **parameters: object) -> ValidatedQuery:
    return judge_query(text, parse_parameters(parameters), policy)


def codes(text: str, policy: Policy = POLICY) -> list[str]:
    with pytest.raises(QueryRefusedError) as refused:
        judge(text, policy)
    return [violation.code for violation in refused.value.violations]


def test_a_table_without_partitions_is_read_whole_until_the_plan() -> None:
    query = judge("SELECT data, attributes, message_id FROM `shop.ops.dead` AS d WHERE d.reason = 'late'")
    assert query.window == Window(datetime(1970, 1, 1, tzinfo=UTC), NOW)
    assert (query.tables, query.reads_archive, query.missing_columns) == (("ops.dead",), False, ())
    assert (query.rewrites_data, query.looks_up_columns) == (False, False)
    assert render_lake_query(query).extra_reads == (TableRead("ops.dead", "refeed_table_1", None),)
    assert "refeed_table_1" in query.lake_sql
    assert "refeed_archive" not in query.lake_sql


def test_a_table_partitioned_by_ingestion_needs_a_window_of_its_own() -> None:
    query = judge(f"SELECT * EXCEPT (topic) FROM ops.staged WHERE {WINDOW}")
    assert query.window == Window(JAN_2, JAN_4)
    assert render_lake_query(query).extra_reads == (TableRead("ops.staged", "refeed_table_2", query.window),)
    assert codes("SELECT data, attributes, message_id FROM ops.staged") == ["window_missing"]
    assert codes(f"SELECT m.* FROM backup.messages m JOIN ops.staged s USING (message_id) WHERE m.{WINDOW}") == [
        "window_missing",
        "name_ambiguous",
    ]


def test_beside_the_archive_the_window_is_the_archive_s() -> None:
    text = (
        "SELECT m.* FROM backup.messages AS m JOIN ops.staged AS s ON m.message_id = s.message_id "
        "WHERE m._PARTITIONDATE = '2024-01-05' AND s._PARTITIONDATE BETWEEN '2024-01-02' AND '2024-01-03'"
    )
    query = judge(text)
    assert query.window == Window(datetime(2024, 1, 5, tzinfo=UTC), datetime(2024, 1, 6, tzinfo=UTC))
    assert query.extra_reads == (TableRead("ops.staged", "refeed_table_2", Window(JAN_2, JAN_4)),)
    assert (query.tables, query.reads_archive) == (("backup.messages", "ops.staged"), True)


def test_joins_with_other_tables_must_be_linked_too() -> None:
    assert codes(f"SELECT m.* FROM backup.messages m, ops.dead WHERE m.{WINDOW}") == ["join_unlinked"]
    assert codes("SELECT a.* EXCEPT (reason) FROM ops.dead a CROSS JOIN ops.dead b") == ["join_unlinked"]


def test_a_column_that_a_table_does_not_have_is_refused() -> None:
    assert codes("SELECT data, attributes, message_id FROM ops.dead WHERE publish_time > '2024-01-01'") == [
        "column_unknown"
    ]
    assert codes("SELECT data, attributes, message_id FROM ops.dead WHERE _PARTITIONTIME > '2024-01-01'") == [
        "column_unknown"
    ]


def test_a_table_nobody_knows_the_columns_of_is_for_bigquery() -> None:
    text = "SELECT data, attributes, message_id FROM other.ops.unknown"
    query = judge(text)
    assert query.tables == ("other.ops.unknown",)
    with pytest.raises(QueryRefusedError) as refused:
        render_lake_query(query)
    assert [v.code for v in refused.value.violations] == ["lake_unsupported"]
    assert codes("SELECT * FROM other.ops.unknown") == ["output_unprovable"]


def test_a_listed_table_that_is_not_there_has_a_code_of_its_own() -> None:
    assert codes("SELECT data, attributes, message_id FROM ops.gone") == ["table_missing"]


@pytest.mark.parametrize(
    "name", ["unknown", "ops.unknown", "shop.ops.unknown", "other.ops.dead", "ops.Dead", "dead"]
)
def test_other_spellings_are_other_tables(name: str) -> None:
    assert "table_not_allowed" in codes(f"SELECT data, attributes, message_id FROM {name}")


def test_a_table_can_be_sampled_and_its_union_with_the_archive_is_rewritten() -> None:
    assert "TABLESAMPLE" in judge("SELECT * FROM ops.dead TABLESAMPLE SYSTEM (10 PERCENT)").lake_sql
    mixed = judge(
        f"SELECT data, attributes, message_id FROM backup.messages WHERE {WINDOW} "
        "UNION ALL SELECT data, attributes, message_id FROM ops.dead"
    )
    assert (mixed.rewrites_data, mixed.looks_up_columns, mixed.reads_archive) == (True, True, True)


THREE = replace(POLICY, archive_table="my-shop.backup.messages", extra_tables=(), schemas=(), missing_tables=())


@pytest.mark.parametrize(
    "name",
    [
        *("my-shop.backup.messages", "`my-shop.backup.messages`", "`my-shop`.backup.messages"),
        *("`my-shop`.`backup`.`messages`", "`my-shop.backup`.messages", "`my-shop`.`backup.messages`"),
        *("my-shop.backup.`messages`", "my-shop . backup . messages"),
    ],
)
def test_an_archive_named_with_its_project_is_known_in_every_quoting(name: str) -> None:
    query = judge(f"SELECT data, attributes, message_id FROM {name} WHERE {WINDOW}", THREE)
    assert query.tables == ("my-shop.backup.messages",)


@pytest.mark.parametrize(
    "name",
    [
        *("messages", "backup.messages", "`backup.messages`", "shop.backup.messages"),
        *("`shop`.backup.messages", "my-shop.messages", "my-shop.backup.Messages"),
        *("MY-SHOP.backup.messages", "my-shop.backup.messages.x", "my.shop.backup.messages"),
    ],
)
def test_an_archive_named_with_its_project_has_no_default_project_or_dataset(name: str) -> None:
    found = codes(f"SELECT data, attributes, message_id FROM {name} WHERE {WINDOW}", THREE)
    assert found[0] in {"table_not_allowed", "syntax"}


def test_a_declaration_says_columns_and_partitions() -> None:
    schema = parse_table_schema(
        "`shop.ops.dead` (data bytes, attributes array<struct<key string, value string>>, Name STRING, "
        "_PARTITIONTIME TIMESTAMP)"
    )
    assert schema == TableSchema(
        "shop.ops.dead",
        (("data", "BYTES"), ("attributes", "ARRAY<STRUCT<key STRING, value STRING>>"), ("Name", "STRING")),
        "day",
    )


@pytest.mark.parametrize(
    "text", ["", "ops.dead", "ops.dead()", "ops.dead(data)", "ops.dead(data MONEY)", "x(a ARRAY<)"]
)
def test_a_declaration_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_table_schema(text)


@pytest.mark.parametrize(
    "text", ["", "ARRAY", "ARRAY<", "ARRAY<STRING", "STRUCT<a>", "STRUCT<a STRING", "STRING>", "<"]
)
def test_a_type_that_is_none_is_unknown(text: str) -> None:
    assert not read_type(text).is_known
