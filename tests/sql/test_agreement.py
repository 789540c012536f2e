"""A dry run beside the gate's verdict: every difference stops the query, spelling does not."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from model.errors import QueryDisagreesError
from sql.agreement import DryRun, check_agreement, parse_dry_run
from sql.validate import Policy
from sql.verdict import judge_query

POLICY = Policy("backup.messages", "shop", datetime(2024, 1, 10, tzinfo=UTC), extra_tables=("other.ops.dead",))
WINDOW = "_PARTITIONDATE = '2024-01-02'"
QUERY = judge_query(
    "SELECT data, attributes, message_id AS Message_Id, 1.5 AS f, STRUCT(1, TRUE AS b) AS s, NULL AS nothing, "
    f"[DATE '2024-01-01'] AS days FROM backup.messages WHERE {WINDOW}",
    {},
    POLICY,
)
ANSWER: dict[str, Any] = {
    "statistics": {
        "query": {
            "statementType": "SELECT",
            "referencedTables": [{"projectId": "shop", "datasetId": "backup", "tableId": "messages"}],
            "schema": {
                "fields": [
                    {"name": "data", "type": "BYTES", "mode": "NULLABLE"},
                    {
                        "name": "attributes",
                        "type": "RECORD",
                        "mode": "REPEATED",
                        "fields": [{"name": "key", "type": "STRING"}, {"name": "value", "type": "STRING"}],
                    },
                    {"name": "message_id", "type": "STRING"},
                    {"name": "f", "type": "FLOAT"},
                    {
                        "name": "s",
                        "type": "RECORD",
                        "fields": [{"name": "_field_1", "type": "INTEGER"}, {"name": "b", "type": "BOOLEAN"}],
                    },
                    {"name": "nothing", "type": "INTEGER"},
                    {"name": "days", "type": "DATE", "mode": "REPEATED"},
                ]
            },
        }
    }
}
RUN = parse_dry_run(ANSWER)


def differences(answer: DryRun) -> list[str]:
    with pytest.raises(QueryDisagreesError) as refused:
        check_agreement(QUERY, answer, project="shop")
    assert refused.value.code == "query_disagrees"
    return refused.value.details["differences"]


def test_the_same_query_in_other_words_agrees():
    check_agreement(QUERY, RUN, project="shop")


@pytest.mark.parametrize("statement", ["SCRIPT", "INSERT", "CREATE_TABLE_AS_SELECT", ""])
def test_another_statement_disagrees(statement):
    assert len(differences(replace(RUN, statement_type=statement))) == 1


@pytest.mark.parametrize("table", ["shop.backup.secrets", "other.backup.messages", "shop.backup.MESSAGES"])
def test_a_table_that_the_gate_has_not_seen_disagrees(table):
    (found,) = differences(replace(RUN, tables=(*RUN.tables, table)))
    assert table in found


def test_a_table_that_bigquery_does_not_count_is_no_difference():
    check_agreement(QUERY, replace(RUN, tables=()), project="shop")


def test_a_table_of_another_project_agrees_by_its_full_name_only():
    query = judge_query("SELECT data, attributes, message_id FROM `other.ops.dead`", {}, POLICY)
    answer = replace(RUN, tables=("other.ops.dead",), columns=RUN.columns[:3])
    check_agreement(query, answer, project="shop")
    with pytest.raises(QueryDisagreesError):
        check_agreement(query, replace(answer, tables=("shop.ops.dead",)), project="shop")


def test_the_tables_behind_a_view_agree_and_no_others():
    both = replace(RUN, tables=(*RUN.tables, "shop.staging.orders"))
    check_agreement(QUERY, both, project="shop", behind={"shop.staging.orders"})
    with pytest.raises(QueryDisagreesError):
        check_agreement(QUERY, both, project="shop", behind={"shop.reporting.orders"})


@pytest.mark.parametrize(
    "change",
    [
        ("data", "STRING"),
        ("data", "ARRAY<BYTES>"),
        ("payload", "BYTES"),
        ("attributes", "ARRAY<STRUCT<key STRING, value BYTES>>"),
        ("attributes", "ARRAY<STRUCT<k STRING, value STRING>>"),
        ("attributes", "ARRAY<STRUCT<key STRING>>"),
        ("s", "STRUCT<_field_1 INT64, c BOOL>"),
        ("days", "DATE"),
    ],
)
def test_other_columns_disagree(change):
    name, _ = change
    place = {"data": 0, "payload": 0, "attributes": 1, "s": 4, "days": 6}[name]
    columns = (*RUN.columns[:place], change, *RUN.columns[place + 1 :])
    assert len(differences(replace(RUN, columns=columns))) == 1


def test_every_difference_is_told():
    answer = DryRun("SCRIPT", ("a.b.c", "a.b.d"), ())
    assert len(differences(answer)) == 4


def test_attributes_whose_fields_bigquery_spells_otherwise_are_no_attributes():
    spelt = ("attributes", "ARRAY<STRUCT<Key STRING, VALUE STRING>>")
    found = differences(replace(RUN, columns=(RUN.columns[0], spelt, *RUN.columns[2:])))
    assert len(found) == 1
    assert "attributes" in found[0]
