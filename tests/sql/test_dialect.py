import json
from dataclasses import replace
from datetime import UTC, datetime

import duckdb
import pytest

from sql.dialect import render_lake_query
from sql.validate import Policy, QueryRefusedError, parse_parameters, validate_query

WINDOW = "_PARTITIONTIME >= '2024-01-01'"


def test_columns_that_a_replay_keeps_are_added_after_the_others(lake, policy):
    query = validate_query(f"SELECT message_id, data, attributes FROM backup.messages WHERE {WINDOW}", {}, policy)
    assert query.missing_columns == ("topic", "publish_time", "ordering_key")
    cursor = lake.execute(render_lake_query(query).sql)
    names = [column[0] for column in cursor.description or ()]
    assert names == ["message_id", "data", "attributes", "topic", "publish_time", "ordering_key"]
    row = next(row for row in cursor.fetchall() if row[0] == "m8")
    assert row[3] == "orders"
    assert row[5] == "k1"


def test_after_a_group_they_are_looked_up_by_message_id_and_the_order_stays(lake, policy):
    text = (
        "SELECT message_id, ANY_VALUE(data) AS data, ANY_VALUE(attributes) AS attributes FROM backup.messages "
        f"WHERE {WINDOW} GROUP BY message_id ORDER BY message_id DESC"
    )
    rows = lake.execute(render_lake_query(validate_query(text, {}, policy)).sql).fetchall()
    assert [row[0] for row in rows] == ["m8", "m7", "m6", "m5", "m4", "m3", "m2", "m1"]
    assert [row[3] for row in rows[:3]] == ["orders", "products", "members"]
    assert rows[0][5] == "k1"
    assert rows[0][4].isoformat().startswith("2024-01-05T10:07")


def test_a_message_id_of_two_topics_is_an_error_until_topic_is_selected(policy: Policy) -> None:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(
        """CREATE VIEW refeed_archive AS SELECT 'x'::BLOB AS data,
        []::STRUCT(key VARCHAR, value VARCHAR)[] AS attributes,
        'm1' AS message_id, TIMESTAMPTZ '2024-01-01 00:00:00+00' AS publish_time, t.topic, 's' AS subscription,
        '' AS ordering_key, TIMESTAMPTZ '2024-01-01 00:00:00+00' AS ingest_time,
        TIMESTAMPTZ '2024-01-01 00:00:00+00' AS _PARTITIONTIME, DATE '2024-01-01' AS _PARTITIONDATE
        FROM (VALUES ('orders'), ('members')) AS t(topic)"""
    )
    text = f"SELECT message_id, data, attributes FROM backup.messages WHERE {WINDOW}"
    distinct = text.replace("SELECT", "SELECT DISTINCT", 1)
    with pytest.raises(duckdb.InvalidInputException, match="select topic"):
        connection.execute(render_lake_query(validate_query(distinct, {}, policy)).sql).fetchall()
    with_topic = distinct.replace("message_id,", "message_id, topic,", 1)
    rows = connection.execute(render_lake_query(validate_query(with_topic, {}, policy)).sql).fetchall()
    assert len(rows) == 2
    assert len(connection.execute(render_lake_query(validate_query(text, {}, policy)).sql).fetchall()) == 2
    connection.close()


def test_an_order_survives_to_the_outside(lake: duckdb.DuckDBPyConnection, policy: Policy) -> None:
    text = f"SELECT * FROM backup.messages WHERE {WINDOW} ORDER BY publish_time DESC"
    rows = lake.execute(render_lake_query(validate_query(text, {}, policy)).sql).fetchall()
    assert [row[2] for row in rows] == ["m8", "m7", "m6", "m5", "m4", "m3", "m2", "m1"]


def test_parameters_travel_as_json(lake: duckdb.DuckDBPyConnection, policy: Policy) -> None:
    parameters = parse_parameters(
        {
            "body": {"type": "BYTES", "value": "bm90IGpzb24="},
            "bodies": {"type": "ARRAY<BYTES>", "value": ["bm90IGpzb24="]},
            "at": {"type": "TIMESTAMP", "value": "2024-01-01T00:00:00Z"},
            "none": {"type": "ARRAY<STRING>", "value": []},
        }
    )
    text = (
        f"SELECT * FROM backup.messages WHERE {WINDOW} AND data = @body AND data IN UNNEST(@bodies) "
        "AND publish_time > @at AND topic NOT IN UNNEST(@none)"
    )
    query = render_lake_query(validate_query(text, parameters, policy))
    rows = lake.execute(query.sql, json.loads(json.dumps(dict(query.parameters)))).fetchall()
    assert [row[2] for row in rows] == ["m6"]


def test_payload_and_attributes_come_back_bit_for_bit(lake: duckdb.DuckDBPyConnection, policy: Policy) -> None:
    text = f"SELECT * FROM backup.messages WHERE {WINDOW} AND message_id IN ('m3', 'm1') ORDER BY message_id"
    rows = lake.execute(render_lake_query(validate_query(text, {}, policy)).sql).fetchall()
    assert rows[1][0] == b"\xff\x00z"
    assert rows[0][1] == [{"key": "type", "value": "order"}, {"key": "region", "value": "eu"}]


def test_text_in_a_query_can_never_become_sql_of_the_lake(lake: duckdb.DuckDBPyConnection, policy: Policy) -> None:
    for nasty in ("{0}", "{1}'", "{!}", "{^}", "$p0", "'; DROP TABLE archive; --", "\\", "''", "o1", "t1.data"):
        literal = "'" + nasty.replace("\\", "\\\\").replace("'", "\\'") + "'"
        text = (
            f"SELECT *, STARTS_WITH({literal}, topic) AS a, REPLACE(topic, {literal}, {literal}) AS b, "
            f"COUNT({literal}) OVER (ORDER BY CONCAT(topic, {literal})) AS c, [{literal}] AS d, "
            f"STRUCT({literal} AS `x'\"`) AS e FROM backup.messages WHERE {WINDOW} AND topic != {literal}"
        )
        query = validate_query(text, {}, policy)
        rows = lake.execute(render_lake_query(query).sql).fetchall()
        assert len(rows) == 8
        assert {row[11][0] for row in rows} == {nasty}


def test_what_the_lake_lacks_is_refused_with_every_place(policy: Policy) -> None:
    text = f"SELECT *, SOUNDEX(topic) AS a, TO_BASE32(data) AS b FROM backup.messages WHERE {WINDOW}"
    query = validate_query(text, {}, policy)
    with pytest.raises(QueryRefusedError) as refused:
        render_lake_query(query)
    assert [(v.code, v.column) for v in refused.value.violations] == [
        ("lake_unsupported", 11),
        ("lake_unsupported", 32),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT * FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01'", ["m1", "m2", "m3"]),
        (
            "SELECT * FROM backup.messages TABLESAMPLE SYSTEM (100 PERCENT) WHERE _PARTITIONTIME >= '2024-01-02'",
            ["m3"],
        ),
        ("SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2024-01-02'", ["m3", "m4", "m5"]),
        (
            "WITH m AS (SELECT *, _PARTITIONDATE d FROM backup.messages) SELECT * FROM m WHERE d >= '2024-01-02'",
            ["m3"],
        ),
        (
            """SELECT a.* FROM backup.messages a JOIN backup.messages b ON a.message_id = b.message_id
            WHERE a._PARTITIONDATE = '2024-01-02' AND b._PARTITIONDATE > '2024-01-01'""",
            ["m3"],
        ),
        (
            "SELECT *, 'refeed_archive AS t1' AS x FROM backup.messages WHERE _PARTITIONDATE >= '2024-01-02'",
            ["m3"],
        ),
    ],
)
def test_a_scan_without_an_upper_end_ends_with_the_plan(lake, policy, text, expected):
    # m4 came in one second later, into a partition that had begun.
    planned = replace(policy, now=datetime(2024, 1, 2, 10, 3, tzinfo=UTC))
    query = validate_query(text, {}, planned)
    rows = lake.execute(render_lake_query(query).sql).fetchall()
    assert sorted(row[2] for row in rows) == expected
