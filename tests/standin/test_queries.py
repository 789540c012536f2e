from datetime import UTC, date, datetime, timedelta

import pytest
from google.api_core import exceptions
from google.cloud import bigquery
from google.cloud.bigquery_storage_v1 import types

from tests.standin.conftest import make_archive


def today():
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def test_pseudo_columns_are_real_and_not_in_a_star(archive):
    """ "Query partitioned tables": _PARTITIONTIME is the UTC moment of ingestion, cut to the partition's start."""
    archive.add(0, 2)
    archive.load(2, 3, "20260102")
    rows = archive.query(
        "SELECT _PARTITIONTIME AS pt, _PARTITIONDATE AS pd, COUNT(*) FROM {t} GROUP BY 1, 2 ORDER BY 1"
    )
    early = datetime(2026, 1, 2, tzinfo=UTC)
    assert rows[0] == (early, date(2026, 1, 2), 3)
    assert rows[1][2] == 2
    assert rows[1][0] in {today(), today() - timedelta(days=1)}
    [row] = archive.query("SELECT *, _PARTITIONTIME AS pt FROM {t} WHERE message_id = 'm2'")
    assert len(row) == 9
    text = "SELECT a.*, b.topic AS other FROM {t} AS a JOIN {t} AS b USING (message_id) WHERE a.message_id = 'm2'"
    [row] = archive.query(text)
    assert len(row) == 9


def test_a_pseudo_column_needs_another_name_in_a_result(archive):
    """ "Query partitioned tables": a query that selects it needs an alias."""
    with pytest.raises(exceptions.BadRequest, match="Invalid field name"):
        archive.query("SELECT _PARTITIONTIME FROM {t}")


def test_a_partition_that_expired_is_gone(shared_standin, dataset):
    """ "Manage partitioned tables", partition expiration: counted from the partition's own time."""
    partitioning = bigquery.TimePartitioning(type_="DAY", expiration_ms=3 * 86_400_000)
    archive = make_archive(shared_standin, dataset, time_partitioning=partitioning)
    archive.load(0, 2, "20260102")
    archive.add(2, 3)
    assert archive.query("SELECT COUNT(*) FROM {t}") == [(3,)]
    table = archive.rest.get_table(archive.name)
    partitioning = table.time_partitioning
    partitioning.expiration_ms = None
    table.time_partitioning = partitioning
    table = archive.rest.update_table(table, ["time_partitioning"])
    assert table.time_partitioning.expiration_ms is None
    assert archive.query("SELECT COUNT(*) FROM {t}") == [(5,)]


def test_a_filter_on_partitions_prunes_what_is_read(archive):
    """ "Query partitioned tables": pruned partitions are not counted in the bytes scanned."""
    archive.load(0, 10, "20260101")
    archive.load(10, 10, "20260102")

    def size(condition, *parameters):
        return archive.run(
            f"SELECT topic FROM {{t}} WHERE {condition}", *parameters, dry_run=True
        ).total_bytes_processed

    assert size("TRUE") == 20 * (2 + 6)
    assert size("_PARTITIONDATE = '2026-01-01'") == 10 * (2 + 6)
    assert size("_PARTITIONTIME < TIMESTAMP '2026-01-01' AND topic = 'orders'") == 0
    assert size("DATE(_PARTITIONTIME) >= @day", bigquery.ScalarQueryParameter("day", "DATE", "2026-01-02")) == 80
    assert size("_PARTITIONTIME IS NULL OR _PARTITIONDATE = '2026-01-02'") == 80
    assert size("_PARTITIONTIME = publish_time") == 20 * (2 + 6) + 20 * 8
    rows = archive.query("SELECT COUNT(*), MIN(message_id) FROM {t} WHERE _PARTITIONDATE = '2026-01-02'")
    assert rows == [(10, "m10")]


def test_a_table_can_require_a_filter_on_its_partitions(shared_standin, dataset):
    """ "Manage partitioned tables", partition filter requirements."""
    archive = make_archive(shared_standin, dataset, require_partition_filter=True)
    archive.load(0, 2, "20260101")
    for text in ("SELECT * FROM {t}", "SELECT * FROM {t} WHERE topic = 'x'", "DELETE FROM {t} WHERE topic = 'x'"):
        with pytest.raises(exceptions.BadRequest, match="without a filter over column"):
            archive.run(text)
    assert archive.query("SELECT COUNT(*) FROM {t} WHERE _PARTITIONDATE > '2025-12-31'") == [(2,)]
    archive.run(f"CREATE VIEW {dataset}.v AS SELECT *, _PARTITIONTIME AS pt FROM {{t}}")
    assert archive.query(f"SELECT COUNT(*) FROM {dataset}.v WHERE pt > '2025-12-31'") == [(2,)]
    with pytest.raises(exceptions.BadRequest, match="without a filter over column"):
        archive.query(f"SELECT COUNT(*) FROM {dataset}.v")
    session = types.ReadSession(table=archive.table, data_format="ARROW")
    with pytest.raises(exceptions.InvalidArgument, match="without a filter"):
        shared_standin.read_client().create_read_session(parent="projects/shop", read_session=session)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT o FROM UNNEST([1]) AS x WITH OFFSET AS o",
        "SELEC 1",
        "SELECT 1; SELECT 2",
        "BEGIN TRANSACTION; SELECT 1",
        "BEGIN TRANSACTION; DROP TABLE a.b; COMMIT TRANSACTION",
        "DELETE FROM {t}",
        "SELECT * FROM messages",
        "SELECT a, a FROM (SELECT 1 AS a)",
        "GRANT x TO y",
        "SELECT a.topic FROM {t} AS a FOR SYSTEM_TIME AS OF CURRENT_TIMESTAMP() CROSS JOIN {t} AS b",
        "CREATE VIEW {t}_old AS SELECT topic FROM {t} FOR SYSTEM_TIME AS OF CURRENT_TIMESTAMP()",
        "SELECT * FROM {t} TABLESAMPLE SYSTEM (10 PERCENT)",
        "SELECT * FROM `region-us`.INFORMATION_SCHEMA.JOBS",
        "SELECT * FROM read_csv('/etc/passwd')",
        "UPDATE {t} SET topic = 'x'",
        "CREATE TABLE shop.x.y (a INT64)",
    ],
)
def test_what_it_can_t_do_is_an_error_and_never_an_answer(archive, text):
    with pytest.raises(exceptions.BadRequest) as refused:
        archive.query(text)
    assert refused.value.errors[0]["reason"] == "invalidQuery"


def test_pruning_never_changes_what_a_join_gives(archive):
    archive.load(0, 2, "20260101")
    archive.load(2, 2, "20260102")
    text = (
        "SELECT a.message_id FROM {t} AS a LEFT JOIN {t} AS b ON a.message_id = b.message_id "
        "WHERE b._PARTITIONTIME IS NULL OR b._PARTITIONDATE = '2026-01-02' ORDER BY 1"
    )
    assert archive.query(text) == [("m2",), ("m3",)]


def test_a_condition_on_the_partitioning_column_is_what_a_query_reads(shared_standin, dataset):
    client = shared_standin.client()
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


def test_the_past_of_a_table_begins_with_it_and_ends_now_and_is_kept_for_a_week(archive):
    """ "Access historical data": FOR SYSTEM_TIME AS OF."""
    [(now,)] = archive.query("SELECT CURRENT_TIMESTAMP()")
    for moment in (now - timedelta(days=8), now - timedelta(hours=1), now + timedelta(days=1)):
        with pytest.raises(exceptions.BadRequest, match="Invalid snapshot time"):
            archive.query(
                "SELECT COUNT(*) FROM {t} AS t FOR SYSTEM_TIME AS OF @at",
                bigquery.ScalarQueryParameter("at", "TIMESTAMP", moment),
            )
