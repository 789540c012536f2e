"""Scripts between BEGIN TRANSACTION and COMMIT: all of them or nothing; and what a column's day prunes."""

from datetime import date

import pytest
from google.api_core import exceptions as api
from google.cloud import bigquery


def script(*statements):
    return "BEGIN TRANSACTION;\n" + ";\n".join(statements) + ";\nCOMMIT TRANSACTION;"


@pytest.fixture
def client(shared_standin, dataset):
    client = shared_standin.client()
    for text in (
        f"CREATE TABLE {dataset}.one AS SELECT 1 AS id, 'a' AS name UNION ALL SELECT 2, 'b'",
        f"CREATE TABLE {dataset}.log AS SELECT 0 AS rows_seen",
    ):
        client.query(text).result()
    return client


def rows(client, text):
    return sorted(tuple(row.values()) for row in client.query(text).result())


def test_its_statements_see_what_those_before_them_did_and_all_is_seen_at_once(client, dataset):
    text = script(
        f"MERGE INTO {dataset}.one AS t USING (SELECT 2 AS id UNION ALL SELECT 3) AS s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET name = 'new' WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.id, 'c')",
        f"INSERT INTO {dataset}.log (rows_seen) SELECT COUNT(*) FROM {dataset}.one",
        f"SELECT IF((SELECT MAX(l.rows_seen) FROM {dataset}.log AS l) = 3, TRUE, ERROR('three'))",
    )
    job = client.query(text)
    job.result()
    assert job.statement_type == "SCRIPT"
    assert rows(client, f"SELECT id, name FROM {dataset}.one") == [(1, "a"), (2, "new"), (3, "c")]
    assert rows(client, f"SELECT rows_seen FROM {dataset}.log") == [(0,), (3,)]


def test_one_that_fails_leaves_everything_as_it_was_and_says_why(client, dataset):
    text = script(
        f"UPDATE {dataset}.one SET name = 'gone' WHERE TRUE",
        f"SELECT IF(COUNT(*) = 0, TRUE, ERROR(CONCAT('there are ', CAST(COUNT(*) AS STRING)))) FROM {dataset}.one",
    )
    with pytest.raises(api.BadRequest, match="there are 2"):
        client.query(text).result()
    assert rows(client, f"SELECT id, name FROM {dataset}.one") == [(1, "a"), (2, "b")]


def test_rows_that_are_only_added_are_written_once(client, shared_standin, dataset):
    client.query(f"CREATE TABLE {dataset}.large AS SELECT 0 AS id, REPEAT('x', 2000000) AS name").result()

    def written_bytes():
        return sum(path.stat().st_size for path in (shared_standin.folder / "rows").iterdir())

    before = written_bytes()
    add = f"INSERT INTO {dataset}.large (id, name) SELECT id, name FROM {dataset}.one"
    client.query(add).result()
    client.query(script(add, f"INSERT INTO {dataset}.log (rows_seen) SELECT COUNT(*) FROM {dataset}.one")).result()
    assert written_bytes() - before < 1_000_000
    found = rows(client, f"SELECT id, LENGTH(name) FROM {dataset}.large")
    assert found == [(0, 2_000_000), (1, 1), (1, 1), (2, 1), (2, 1)]


@pytest.mark.parametrize(
    "text",
    ["SELECT 1; SELECT 2", "BEGIN TRANSACTION; SELECT 1", "BEGIN TRANSACTION; DROP TABLE a.b; COMMIT TRANSACTION"],
)
def test_any_other_script_is_refused(client, text):
    with pytest.raises(api.BadRequest, match=r"kept here|COMMIT"):
        client.query(text).result()


def test_a_condition_on_the_partitioning_column_is_what_a_query_reads(client, dataset):
    fields = [bigquery.SchemaField("day", "DATE"), bigquery.SchemaField("id", "INT64")]
    table = bigquery.Table(f"{client.project}.{dataset}.by_day", schema=fields)
    table.time_partitioning = bigquery.TimePartitioning(field="day")
    client.create_table(table)
    given = [{"day": date(2026, 3, 1 + n % 10).isoformat(), "id": n} for n in range(100)]
    assert client.insert_rows_json(table, given) == []

    def scanned(condition):
        config = bigquery.QueryJobConfig(dry_run=True, use_query_cache=False)
        text = f"SELECT id FROM {dataset}.by_day WHERE {condition}"
        return client.query(text, job_config=config).total_bytes_processed

    assert scanned("id > 0") == 800
    assert scanned("day >= '2026-03-02' AND day < '2026-03-04'") == 2 * 10 * (8 + 8)
    assert scanned("day = '2027-01-01'") == 0
