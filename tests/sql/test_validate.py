from datetime import UTC, datetime

import pytest

from sql.dialect import render_lake_query
from sql.validate import Policy, QueryRefusedError, parse_parameters, validate_query

POLICY = Policy("backup.messages", "shop", datetime(2024, 1, 10, 12, tzinfo=UTC))
BOUNDED = "_PARTITIONTIME >= TIMESTAMP '2024-01-01' AND _PARTITIONTIME < TIMESTAMP '2024-01-03'"


def codes(text: str, **parameters: object) -> list[str]:
    with pytest.raises(QueryRefusedError) as refused:
        validate_query(text, parse_parameters(parameters), POLICY)
    return [violation.code for violation in refused.value.violations]


def test_every_violation_is_told_at_once_with_its_place():
    with pytest.raises(QueryRefusedError) as refused:
        validate_query("SELECT data, message_id\nFROM backup.messages\nWHERE nope = 1 OR TRUE", {}, POLICY)
    found = {violation.code: (violation.line, violation.column) for violation in refused.value.violations}
    assert found == {"column_missing": (1, 1), "window_missing": (2, 6), "column_unknown": (3, 7)}


def test_more_faults_than_are_told_still_end_in_a_refusal(policy):
    calls = ", ".join(f"LENGTH() AS n{number}" for number in range(150))
    query = f"SELECT *, {calls} FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'"
    with pytest.raises(QueryRefusedError) as refused:
        validate_query(query, {}, policy)
    assert {violation.code for violation in refused.value.violations} == {"function_arguments"}


def test_parameters_are_typed_and_needed():
    text = "SELECT * FROM backup.messages WHERE _PARTITIONTIME >= @from"
    body = {"type": "TIMESTAMP", "value": "2024-01-02T00:00:00Z"}
    query = validate_query(text, parse_parameters({"from": body}), POLICY)
    assert query.window.start == datetime(2024, 1, 2, tzinfo=UTC)
    assert codes(text) == ["window_missing", "parameter_missing"]


@pytest.mark.parametrize(
    ("archive", "project", "table", "is_allowed"),
    [
        ("backup.messages", None, "backup.messages", True),
        ("backup.messages", None, "shop.backup.messages", False),
        ("backup.messages", "my-shop-1", "my-shop-1.backup.messages", True),
        ("backup.messages", "my-shop-1", "`my-shop-1.backup.messages`", True),
        ("backup.messages", "example.com:shop", "`example.com:shop.backup.messages`", True),
        ("vault.backup.messages", "shop", "backup.messages", False),
        ("vault.backup.messages", "shop", "shop.backup.messages", False),
        ("vault.backup.messages", "shop", "vault.backup.messages", True),
    ],
)
def test_the_archive_is_known_by_its_full_names_only(archive, project, table, is_allowed):
    policy = Policy(archive, project, POLICY.now)
    text = f"SELECT * FROM {table} AS m WHERE m.{BOUNDED.replace('AND ', 'AND m.')}"
    if is_allowed:
        assert validate_query(text, {}, policy).tables == (archive,)
        return
    with pytest.raises(QueryRefusedError) as refused:
        validate_query(text, {}, policy)
    assert "table_not_allowed" in {violation.code for violation in refused.value.violations}


def test_a_free_query_needs_no_window_and_no_columns(lake):
    policy = Policy("backup.messages", "shop", POLICY.now, replay=False)
    query = validate_query(
        "SELECT topic, COUNT(*) AS n FROM backup.messages GROUP BY topic ORDER BY 2 DESC", {}, policy
    )
    assert query.window is None
    assert query.missing_columns == ()
    rows = lake.execute(render_lake_query(query).sql).fetchall()
    assert rows == [("orders", 5), ("members", 2), ("products", 1)]
    with pytest.raises(QueryRefusedError):
        validate_query("SELECT * FROM ops.secrets", {}, policy)


def test_what_is_rewritten_is_said():
    inner = f"SELECT * FROM backup.messages WHERE {BOUNDED}"
    query = validate_query(
        f"SELECT CONCAT(data, b'') AS data, a.attributes, message_id FROM ({inner}) a", {}, POLICY
    )
    assert (query.rewrites_data, query.rewrites_attributes) == (True, False)


def test_messages_are_counted_by_what_an_attribute_says(lake):
    text = (
        "SELECT (SELECT value FROM UNNEST(attributes) WHERE key = 'type') AS event, COUNT(*) AS n, "
        "MAX(publish_time) AS newest FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01' "
        "GROUP BY event ORDER BY n DESC, event"
    )
    query = validate_query(text, {}, Policy("backup.messages", "shop", POLICY.now, replay=False))
    found = lake.sql(render_lake_query(query).sql).fetchall()
    assert [row[:2] for row in found] == [("order", 3), (None, 2), ("blob", 1), ("member", 1), ("product", 1)]
