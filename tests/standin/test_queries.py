import re
from datetime import UTC, date, datetime, timedelta

import pytest
from google.api_core import exceptions
from google.cloud import bigquery

from tests.standin.conftest import MOMENT, make_archive, messages
from tests.standin.writer import COMMITTED, request

TODAY = "_PARTITIONTIME >= TIMESTAMP_SUB(CURRENT_TIMESTAMP(), INTERVAL 3 DAY)"


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


def test_hours_can_be_partitions(shared_standin, dataset):
    partitioning = bigquery.TimePartitioning(type_="HOUR")
    archive = make_archive(shared_standin, dataset, time_partitioning=partitioning)
    archive.load(0, 1, "2026010203")
    [[moment]] = archive.query("SELECT _PARTITIONTIME AS pt FROM {t}")
    assert moment == datetime(2026, 1, 2, 3, tzinfo=UTC)
    with pytest.raises(exceptions.BadRequest, match="decorator"):
        archive.load(1, 1, "20260102")


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


def test_parameters_are_named_and_typed(archive):
    archive.add(0, 5)
    text = (
        "SELECT message_id FROM {t} WHERE message_id IN UNNEST(@ids) AND publish_time = @at "
        "AND data != @no AND @yes"
    )
    rows = archive.query(
        text,
        bigquery.ArrayQueryParameter("ids", "STRING", ["m1", "m3", "x"]),
        bigquery.ScalarQueryParameter("at", "TIMESTAMP", MOMENT),
        bigquery.ScalarQueryParameter("no", "BYTES", b"\x00\xff3"),
        bigquery.ScalarQueryParameter("yes", "BOOL", True),
        bigquery.ScalarQueryParameter("unused", "INT64", 3),
    )
    assert rows == [("m1",)]


def test_arrays_of_structs_are_unnested_in_every_spelling(archive):
    archive.add(0, 12)
    for text in (
        "SELECT message_id FROM {t} m, UNNEST(m.attributes) a WHERE a.key = 'number' AND a.value = '7'",
        "SELECT message_id FROM {t}, UNNEST(attributes) WHERE key = 'number' AND value = '7'",
        "SELECT message_id FROM {t} m CROSS JOIN m.attributes a WHERE a.key = 'number' AND a.value = '7'",
        (
            "SELECT message_id FROM {t} WHERE EXISTS "
            "(SELECT 1 FROM UNNEST(attributes) WHERE key = 'number' AND value = '7')"
        ),
        "SELECT message_id FROM {t} WHERE (SELECT value FROM UNNEST(attributes) WHERE key = 'number') = '7'",
        "SELECT id FROM (SELECT message_id AS id, a.value AS v FROM {t} m, UNNEST(attributes) AS a) WHERE v = '7'",
    ):
        assert archive.query(text) == [("m7",)], text


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


def test_delete_takes_rows_away_and_leaves_partitions(archive):
    archive.load(0, 4, "20260101")
    archive.load(4, 4, "20260102")
    job = archive.run(
        "DELETE FROM {t} WHERE _PARTITIONDATE = '2026-01-01' AND EXISTS (SELECT 1 FROM UNNEST(attributes) "
        "WHERE key = 'number' AND value = @n)",
        bigquery.ScalarQueryParameter("n", "STRING", "2"),
    )
    assert (job.statement_type, job.num_dml_affected_rows, job.dml_stats.deleted_row_count) == ("DELETE", 1, 1)
    rows = archive.query("SELECT _PARTITIONDATE AS d, COUNT(*) FROM {t} GROUP BY 1 ORDER BY 1")
    assert rows == [(date(2026, 1, 1), 3), (date(2026, 1, 2), 4)]
    with pytest.raises(exceptions.BadRequest, match="must have a WHERE"):
        archive.run("DELETE FROM {t}")


def test_rows_that_a_stream_brings_during_a_statement_stay(shared_standin, archive, dataset):
    archive.add(0, 2)
    stream = archive.create(COMMITTED)
    archive.append(request(stream, messages(2, 2)))
    archive.run(f"DELETE FROM {{t}} WHERE {TODAY} AND message_id IN ('m0', 'm2')")
    archive.append(request(stream, messages(4, 2), 2))
    rows = archive.query("SELECT message_id FROM {t} ORDER BY 1")
    assert rows == [("m1",), ("m3",), ("m4",), ("m5",)]


def test_types_and_values_are_those_of_googlesql(archive, dataset):
    archive.add(0, 3)
    archive.run(f"CREATE TABLE {dataset}.e AS SELECT message_id AS id, topic, publish_time AS ts FROM {{t}}")
    hour = MOMENT.replace(minute=0, second=0, microsecond=0)
    for text, expected in (
        ("SELECT * EXCEPT (ts) REPLACE (UPPER(topic) AS topic) FROM e WHERE id = 'm1'", ("m1", "ORDERS")),
        ("SELECT ARRAY_AGG(id ORDER BY id DESC LIMIT 1)[OFFSET(0)] FROM e", ("m2",)),
        ("SELECT x.id FROM (SELECT ARRAY_AGG(t ORDER BY id LIMIT 1)[OFFSET(0)] AS x FROM e AS t)", ("m0",)),
        ("SELECT TIMESTAMP_TRUNC(ts, HOUR), EXTRACT(HOUR FROM ts) FROM e LIMIT 1", (hour, 3)),
        ("SELECT TIMESTAMP_MICROS(1), PARSE_TIMESTAMP('%Y', '1970')",
         (datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC))),
        ("SELECT 7 / 2, DIV(7, 2), SAFE_DIVIDE(1, 0), SUM(1), SUM(0.5) FROM e", (3.5, 3, None, 3, 1.5)),
        ("SELECT DATE_ADD(DATE '2026-01-31', INTERVAL 1 MONTH)", (date(2026, 2, 28),)),
        ("SELECT id FROM e ORDER BY NULLIF(id, 'm2') LIMIT 1", ("m2",)),
        ("SELECT COUNT(*) FROM e AS e LEFT JOIN e AS f ON e.id = f.id AND f.id = 'm1' WHERE f.id IS NULL", (2,)),
        ("SELECT TO_HEX(MD5('a')), [1, 2][SAFE_OFFSET(5)], IF(TRUE, 'a', 'b')",
         ("0cc175b9c0f1b6a831c399e269772661", None, "a")),
    ):  # fmt: skip
        text = re.sub(r"(FROM|JOIN) e\b", rf"\1 {dataset}.e", text)  # noqa: PLW2901
        assert archive.query(text) == [expected], text
    job = archive.run("SELECT 1.5 AS f, NUMERIC '1.123456789' AS n, TIMESTAMP_SECONDS(1) AS t", dry_run=True)
    assert [f.field_type for f in job.schema] == ["FLOAT", "NUMERIC", "TIMESTAMP"]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT o FROM UNNEST([1]) AS x WITH OFFSET AS o",
        "SELEC 1",
        "SELECT 1; SELECT 2",
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


def test_an_insert_may_name_the_partition_of_its_rows(archive):
    """ "Data manipulation language syntax", INSERT: _PARTITIONTIME can be set, else it is the current one."""
    archive.run("INSERT INTO {t} (_PARTITIONTIME, message_id) VALUES (TIMESTAMP '2026-01-02', 'a')")
    archive.run("INSERT INTO {t} (message_id) VALUES ('b')")
    rows = archive.query("SELECT message_id, _PARTITIONTIME AS pt FROM {t} ORDER BY 1")
    assert rows[0] == ("a", datetime(2026, 1, 2, tzinfo=UTC))
    assert rows[1][1] in {today(), today() - timedelta(days=1)}


def test_a_table_has_its_past_for_a_week(archive):
    """ "Access historical data": FOR SYSTEM_TIME AS OF reads rows as they were, streamed, loaded or deleted."""
    archive.add(0, 2)
    [(first,)] = archive.query("SELECT CURRENT_TIMESTAMP()")
    archive.add(2, 1)
    archive.load(3, 1, "20260102")
    [(second,)] = archive.query("SELECT CURRENT_TIMESTAMP()")
    archive.run("DELETE FROM {t} WHERE message_id IN ('m0', 'm3')")
    count = "SELECT COUNT(*) FROM {t} AS t FOR SYSTEM_TIME AS OF @at"

    def count_at(moment):
        [(found,)] = archive.query(count, bigquery.ScalarQueryParameter("at", "TIMESTAMP", moment))
        return found

    assert (count_at(first), count_at(second)) == (2, 4)
    [(now,)] = archive.query("SELECT COUNT(*) FROM {t}")
    assert now == 2
    for moment in (first - timedelta(days=8), first - timedelta(hours=1), first + timedelta(days=1)):
        with pytest.raises(exceptions.BadRequest, match="Invalid snapshot time"):
            count_at(moment)


def test_substr_of_bytes_counts_bytes(archive, dataset):
    """ "String functions", SUBSTR: a portion of STRING or BYTES, by characters or by bytes."""
    archive.run(f"CREATE TABLE {dataset}.letters AS SELECT b'\\x00\\xffab' AS data, 'a\u00e9b' AS text")
    cut = "SUBSTR(l.data, 1, 2) AS head, SUBSTR(l.data, 2, 9) AS tail, SUBSTR(l.text, 1, 2) AS text"
    assert archive.query(f"SELECT {cut} FROM {dataset}.letters AS l") == [(b"\x00\xff", b"\xffab", "a\u00e9")]
