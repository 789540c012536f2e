import json
import re
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

from connectors.bigquery.writes.archive import BigQueryArchive
from connectors.lake.archive import LakeArchive
from model.schema import RowSchema
from model.settings import read_settings
from tests.archive import entries, messages, write_commits
from tests.reporting.orders import Orders
from tests.reporting.shops import START, BigQueryShop, order
from tests.standin.fixture import PROJECT

PUBLISHED_AT = datetime(2024, 3, 1, 23, 59, 59, 123456, UTC)


def three_messages() -> pa.RecordBatch:
    return messages(
        3,
        data=[b'{"a":1}', b"\x00\xff", b""],
        attributes=[entries({"k": "v"}), [], entries({"n": ""})],
        message_id=["1", "2", "3"],
        publish_time=[PUBLISHED_AT] * 3,
    )


@pytest.fixture
def archive(home):
    """Three messages: JSON, bytes that are no text, and an empty one."""
    return write_commits(LakeArchive(str(home / "lake"), "backup.messages"), {"orders": three_messages()})


def test_rows_are_a_table_that_a_person_reads(refeed, archive):
    result = refeed("query", "SELECT message_id, data, attributes FROM backup.messages ORDER BY message_id")
    assert result.code == 0
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.out.splitlines() if "│" in line]
    assert rows == [
        ["1", '{"a":1}', '[{"key": "k", "value": "v"}]'],
        ["2", "AP8=", "[]"],
        ["3", "", '[{"key": "n", "value": ""}]'],
    ]


def test_json_has_one_object_a_row(refeed, archive):
    sql = (
        "SELECT message_id, data, publish_time, _PARTITIONDATE AS day FROM backup.messages WHERE message_id = @id"
    )
    result = refeed("query", sql, "-p", "id::2", "--json")
    (row,) = [json.loads(line) for line in result.out.splitlines()]
    day = row.pop("day")
    assert row == {"message_id": "2", "data": "AP8=", "publish_time": "2024-03-01T23:59:59.123456Z"}
    assert day == archive.data_files()[0].partition.date().isoformat()


def test_numbers_in_json_are_what_bigquery_answers(refeed, archive):
    # A NUMERIC is a text without zeros after its last digit: "9.5", "1234.1" and "1" for 9.5, 1234.10 and 1.0.
    # https://github.com/googleapis/mcp-toolbox/pull/2084 ("matches the BigQuery REST API JSON format"). So is a
    # FLOAT64 that JSON has no number for ("NaN", "Infinity", "-Infinity"):
    # https://cloud.google.com/bigquery/docs/reference/standard-sql/json_functions#json_encodings
    sql = (
        "SELECT NUMERIC '1234.10' AS a, NUMERIC '-1' AS b, NUMERIC '0' AS c, NUMERIC '0.000000001' AS d, "
        "NUMERIC '99999999999999999999999999999.999999999' AS e, [NUMERIC '100'] AS f, "
        "STRUCT(NUMERIC '9.50' AS g) AS h, CAST('nan' AS FLOAT64) AS i, CAST('-inf' AS FLOAT64) AS j "
        "FROM backup.messages LIMIT 1"
    )
    assert json.loads(refeed("query", sql, "--json").out, parse_constant=pytest.fail) == {
        "a": "1234.1",
        "b": "-1",
        "c": "0",
        "d": "0.000000001",
        "e": "99999999999999999999999999999.999999999",
        "f": ["100"],
        "h": {"g": "9.5"},
        "i": "NaN",
        "j": "-Infinity",
    }


def test_more_rows_than_asked_for_are_cut_and_said(refeed, archive):
    result = refeed("query", "SELECT message_id FROM backup.messages", "--max-rows", "2", "--json")
    assert len(result.out.splitlines()) == 2
    assert "--limit shows more" in result.err
    assert refeed("query", "SELECT message_id FROM backup.messages", "--limit", "2", "--json").out == result.out


def test_columns_that_do_not_fit_are_named(refeed, archive):
    names = [f"a_rather_long_column_{number}" for number in range(10)]
    sql = f"SELECT {', '.join(f'message_id AS {name}' for name in names)} FROM backup.messages"
    result = refeed("query", sql)
    header = result.out.splitlines()[1]
    shown = [name for name in names if name in header]
    assert shown == names[: len(shown)]
    assert 1 < len(shown) < len(names)
    left = names[len(shown) :]
    assert f"… {len(left)} more columns: {', '.join(left)}. -o wide or -o json" in result.err
    wide = refeed("query", sql, "-o", "wide")
    assert (wide.err, [name for name in names if name.upper() in wide.out]) == ("", names)
    assert "more column" not in refeed("query", "SELECT message_id FROM backup.messages").err


def test_a_long_value_is_cut_with_a_sign_and_whole_in_a_wide_table(refeed, archive):
    sql = "SELECT REPEAT('x', 300) AS long, message_id FROM backup.messages LIMIT 1"
    cut = refeed("query", sql).out
    assert ("…" in cut, "message_id" in cut, "x" * 300 in cut) == (True, True, False)
    assert "x" * 300 in refeed("query", sql, "-o", "wide").out


def test_rows_are_printed_in_every_form(refeed, archive):
    sql = "SELECT message_id FROM backup.messages ORDER BY message_id LIMIT 2"
    assert refeed("query", sql, "-o", "json").out == refeed("query", sql, "--json").out
    assert yaml.safe_load(refeed("query", sql, "-o", "yaml").out) == [{"message_id": "1"}, {"message_id": "2"}]
    assert refeed("query", sql, "-o", "name").code == 2


def test_no_rows_are_said(refeed, archive):
    assert refeed("query", "SELECT message_id FROM backup.messages WHERE topic = 'x'").out == "no rows\n"


def test_another_table_is_refused_with_the_place(refeed, archive):
    result = refeed("query", "SELECT message_id\nFROM other.table")
    assert result.code == 4
    assert "line 2, column 6" in result.err


@pytest.mark.parametrize(
    "name", ["reporting.orders", "staging.orders", "`shop.reporting.orders`", "orders_view", "orders"]
)
def test_a_table_of_a_source_is_refused_with_the_way_to_its_view(refeed, home, tmp_path, name):
    Orders(home).publish(tmp_path)
    result = refeed("query", f"SELECT id\nFROM {name}")
    assert result.code == 4
    assert "line 2, column 6" in result.err
    assert "the view of the source orders" in " ".join(result.err.split())
    assert "orders_view" in result.err
    assert "--view" not in result.err
    assert "backup.messages" not in result.err
    table = re.search(r"REFEED_QUERY_TABLES=(\S+)\s", result.err)
    assert (table and table[1]) == (name.strip("`").removeprefix("shop.") if "." in name else None)


def test_what_a_replay_put_into_staging_twice_is_found_by_the_page_s_query(refeed, home, tmp_path, monkeypatch):
    shop = Orders(home)
    shop.publish(tmp_path)
    shop.stage((1, 1), (2, 1))
    page = (Path(__file__).parents[2] / "docs" / "reporting.md").read_text()
    tables, query = re.search(r'REFEED_QUERY_TABLES=(\S+) refeed query "(.+?)"', page, re.DOTALL).groups()
    monkeypatch.setenv("REFEED_QUERY_TABLES", tables)
    query = query.replace("= 'bf_...'", "IS NULL")
    assert "no rows" in refeed("query", query).out
    shop.stage((1, 1))
    assert json.loads(refeed("query", query, "--json").out) == {"_message_id": "1-1", "rows_of_it": 2}


def test_without_an_archive_it_says_so(refeed):
    result = refeed("query", "SELECT message_id FROM backup.messages")
    assert result.code == 1
    assert "attach a topic and start a backup" in result.err


@pytest.fixture
def bigquery_archive(shared_standin, monkeypatch):
    """The name of an archive in BigQuery (the stand-in) with three messages; the settings name it too."""
    table = f"d{uuid.uuid4().hex[:12]}.messages"
    shared_standin.lead_here(monkeypatch, REFEED_PROJECT="shop", REFEED_ARCHIVE_TABLE=table)
    archive = BigQueryArchive("shop", table, read_settings(shared_standin.environment).bigquery)
    write_commits(archive, {"orders": three_messages()}).close()
    return table


def test_bigquery_answers_the_same_query_within_a_cap(refeed, bigquery_archive, shared_standin):
    sql = (
        f"SELECT message_id, data, publish_time FROM {bigquery_archive} "
        "WHERE (_PARTITIONTIME >= TIMESTAMP '2024-01-01' OR _PARTITIONTIME IS NULL) AND message_id >= @id "
        "ORDER BY message_id"
    )
    result = refeed("query", sql, "-p", "id::2", "--json", "--max-rows", "1")
    assert result.code == 0
    assert json.loads(result.out) == {
        "message_id": "2",
        "data": "AP8=",
        "publish_time": "2024-03-01T23:59:59.123456Z",
    }
    assert "The result has more than 1 row." in result.err
    (job,) = [
        job for job in shared_standin.client().list_jobs(all_users=True) if getattr(job, "query", None) == sql
    ]
    assert job.maximum_bytes_billed == 2**30
    assert job.labels["app"] == "refeed"


@pytest.fixture
def held(shared_standin, bigquery_archive):
    """All messages are in the write buffer, where they have no _PARTITIONTIME."""
    shared_standin.hold_write_buffer(f"shop.{bigquery_archive}", everything=True)
    yield
    shared_standin.release_write_buffer(f"shop.{bigquery_archive}")


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize(
    ("condition", "count", "said"),
    [
        ("_PARTITIONDATE >= CURRENT_DATE() - 1", 3, "Refeed adds those rows"),
        ("_PARTITIONTIME < '2124-01-01'", 3, "Refeed adds those rows"),
        ("_PARTITIONDATE = '2024-01-01'", 0, ""),
        ("_PARTITIONTIME IS NOT NULL AND _PARTITIONTIME > '2024-01-01'", 0, "The query may leave out these rows"),
        ("_PARTITIONTIME > '2024-01-01' OR _PARTITIONTIME IS NULL", 3, ""),
    ],
)
def test_rows_in_bigquery_s_write_buffer_are_counted_or_warned_of(
    refeed, bigquery_archive, condition, count, said
):
    answer = refeed("query", f"SELECT COUNT(*) AS n FROM {bigquery_archive} WHERE {condition}", "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out) == {"n": count}
    shown = " ".join(answer.err.split())
    assert said in shown
    assert ("about 3 rows" in shown) is bool(said)


def test_bigquery_says_what_it_has_against_a_query(refeed, bigquery_archive):
    refused = refeed("query", f"SELECT message_id FROM {bigquery_archive}")
    assert refused.code != 0
    assert "filter" in refused.err


@pytest.fixture
def bigquery_shop(shared_standin, home, monkeypatch):
    """A source in BigQuery with two orders, of which nothing is merged yet."""
    dataset = f"d{uuid.uuid4().hex[:12]}"
    shared_standin.lead_here(monkeypatch, REFEED_PROJECT=PROJECT, REFEED_ARCHIVE_TABLE=f"{dataset}.messages")
    shop = BigQueryShop(dataset=dataset, standin=shared_standin)
    (home / "registry").mkdir(parents=True)
    (home / "registry" / "sources.yaml").write_text(
        "sources: {orders: {topic: orders, schema: inferred, key: [shop, number], "
        f"staging: {shop.source.staging}, reporting: {shop.source.reporting}}}}}"
    )
    shop.stage([order(1), order(2)], START)
    yield shop
    shop.warehouse.close()


def test_a_view_that_does_not_know_a_column_that_became_wider_is_refused_until_it_is_made_again(
    refeed, bigquery_shop
):
    shop = bigquery_shop
    shop.warehouse.create_view(shop.source)
    wider = tuple(replace(f, type="STRING") if f.name == "number" else f for f in shop.schema.fields)
    shop.schema = RowSchema(wider, shop.schema.description)
    shop.widen_staging()
    shop.stage([{**order(3), "number": "x"}], START)
    shown = refeed("query", "--view", "orders", "--json")
    assert (shown.code, "number of " in shown.err, "refeed merge" in shown.err) == (1, True, True), shown.err
    shop.warehouse.create_view(shop.source)
    shown = refeed("query", "--view", "orders", "--json")
    assert {json.loads(line)["number"] for line in shown.out.splitlines()} == {"1", "2", "x"}, shown.err


def test_a_select_beside_a_view_s_name_is_told_how_to_name_the_view(refeed, bigquery_shop):
    shown = refeed("query", "--view", "orders", "SELECT COUNT(*) FROM orders")
    assert shown.code == 2
    assert f"{bigquery_shop.source.reporting}_view. To run a SELECT, leave --view out" in " ".join(
        shown.err.split()
    )


def test_bigquery_s_union_view_is_queried_like_the_lake_s(refeed, bigquery_shop):
    early = refeed("query", "--view", "orders")
    assert (early.code, "refeed merge --source orders" in early.err) == (1, True)
    bigquery_shop.warehouse.create_view(bigquery_shop.source)
    shown = refeed("query", "--view", "orders", "--json")
    assert shown.code == 0, shown.err
    rows = [json.loads(line) for line in shown.out.splitlines()]
    assert {row["number"]: row["lines"] for row in rows} == {
        number: [{"sku": f"sku-{number}", "count": 1}] for number in (1, 2)
    }
    view = f"{bigquery_shop.source.reporting}_view"
    counted = refeed(
        "query", f"SELECT COUNT(*) AS n FROM `{view}` WHERE number > @low", "-p", "low:INT64:1", "--json"
    )
    assert json.loads(counted.out) == {"n": 1}, counted.err
    for refused in (
        refeed("query", f"SELECT nothing FROM {view}"),
        refeed(
            "query", f"SELECT v.number FROM {view} AS v JOIN {bigquery_shop.source.staging} AS s USING (number)"
        ),
    ):
        assert refused.code == 4, refused.err


def test_a_table_that_nothing_has_been_written_to_says_what_makes_it(refeed, home):
    """Dead letters of a new home: there is no lake, nor any other file."""
    answers = [refeed("query", "SELECT * FROM backup.dead_letters")]
    (home / "lake").mkdir(parents=True)
    answers.append(refeed("query", "SELECT * FROM backup.dead_letters"))
    assert [answer.code for answer in answers] == [4, 4]
    for answer in answers:
        assert "table_missing" in answer.err
        assert "The lake does not have the table backup.dead_letters yet." in answer.err
        assert "A pipeline creates staging tables and dead letters" in " ".join(answer.err.split())
