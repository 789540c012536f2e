"""What only BigQuery's merge does: jobs that are taken up, capped and labelled, transactions, the write buffer."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from connectors.bigquery.tables.entity_table import BigQueryEntityTable
from model.entity import EntityRules
from model.errors import AuditFailedError, MergeOvertakenError, QueryTooLargeError
from model.schema import RowSchema
from tests.reporting.shops import RULES, SCHEMA, START, BigQueryShop, order, repaired
from tests.standin.fixture import PROJECT
from tests.waiting import wait_until
from tests.worlds.tables import at_failpoint, dataset_name
from warehouse.bigquery import changes
from warehouse.bigquery.merger import BigQueryMerger

# A merge is a dozen jobs of a stand-in that runs them beside everything else on the machine.
pytestmark = [pytest.mark.cloud, pytest.mark.timeout(600)]

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@pytest.fixture
def shop(shared_standin):
    shop = BigQueryShop(dataset=dataset_name(), standin=shared_standin)
    yield shop
    shop.warehouse.close()


def merge_jobs(shop, step):
    """The jobs of a step of this shop's merges, the newest first."""
    listed = [
        job
        for job in shop.client.list_jobs(max_results=200)
        if re.fullmatch(rf"refeed-merge-.*-{step}-\w+", job.job_id)
    ]
    return [job for job in listed if f"`{shop.dataset}`" in job.query]


def test_a_merge_that_died_is_taken_up_with_the_jobs_that_it_had_begun(shop, monkeypatch):
    shop.stage([order(1), order(2, day=2)], START)
    for place in ("bigquery.merge.changes", "merge.compared", "bigquery.merge.started"):
        with at_failpoint(monkeypatch, place):
            shop.merge(START + HOUR)
    # The script that the last one had begun goes on without it.
    wait_until(lambda: shop.reporting() == shop.oracle(), "the script is done")
    for step in ("changes", "days", "compare", "merge"):
        assert len(merge_jobs(shop, step)) == 1, step
    report = shop.merge(START + HOUR + HOUR / 2)
    assert (report.changed, report.newer) == (2, 0)


def test_a_merge_with_replays_takes_what_they_repair_away_wherever_it_dies(shop, monkeypatch):
    wrong = order(1, minute=5, message=11)
    shop.stage([order(1, day=2, message=10), wrong, order(2)], START)
    shop.merge(START)
    shop.age()
    shop.merge(START)
    assert merge_jobs(shop, "displaced") == []
    shop.stage([repaired(wrong, number=3)], START + 2 * DAY)
    # Until a merge has looked at all of staging, nobody knows what else its old key had.
    assert set(shop.view(START)) == {("se", 2), ("se", 3)}
    for place in ("bigquery.merge.changes", "bigquery.merge.displaced", "merge.compared"):
        with at_failpoint(monkeypatch, place):
            shop.merge(START + 2 * DAY + HOUR)
    report = shop.merge(START + 2 * DAY + HOUR)
    for step in ("displaced", "orphans", "heirs"):
        (job,) = merge_jobs(shop, step)
        assert job.maximum_bytes_billed == shop.settings.merge_max_bytes_billed
    assert (report.changed, report.newer, report.rows_before, report.rows_after) == (2, 2, 2, 3)
    assert report.partitions == ("2026-03-01", "2026-03-02")
    assert shop.reporting() == shop.oracle() == shop.view(START)
    tables = [table.table_id for table in shop.client.list_tables(shop.dataset)]
    assert [name for name in tables if "refeed_merge_" in name] == []


TAG = "projects/shop/locations/us/taxonomies/1/policyTags/2"


def test_what_a_merge_has_on_the_way_carries_the_policy_tags_of_its_columns(shared_standin, monkeypatch):
    tagged = {"shop", "note", "sku"}

    def tag(field):
        tags = (TAG,) if field.name in tagged else ()
        return replace(field, policy_tags=tags, fields=tuple(map(tag, field.fields)))

    schema = RowSchema(tuple(map(tag, SCHEMA.fields)), "orders")
    shop = BigQueryShop(dataset=dataset_name(), standin=shared_standin, schema=schema)
    seen = {}

    def look():
        for table in shop.client.list_tables(shop.dataset):
            if table.table_id.startswith("refeed_merge_"):
                found = shop.client.get_table(table.reference)
                seen[table.table_id.split("_")[-2]] = (set(tagged_columns(found.schema)), found.num_rows)

    shop.stage([order(1)], START)
    with at_failpoint(monkeypatch, "bigquery.merge.changes", look):
        shop.merge(START + HOUR)
    # The key that a merge compares by holds the shop in clear.
    assert seen["changes"] == ({"shop", "note", "lines.sku", "_refeed_key"}, 1)
    reporting = shop.client.get_table(shop.source.reporting)
    assert set(tagged_columns(reporting.schema)) == {"shop", "note", "lines.sku"}
    assert shop.reporting() == shop.oracle()
    shop.warehouse.close()


def tagged_columns(fields, prefix=""):
    for field in fields:
        if field.policy_tags and field.policy_tags.names:
            assert tuple(field.policy_tags.names) == (TAG,)
            yield f"{prefix}{field.name}"
        yield from tagged_columns(field.fields, f"{prefix}{field.name}.")


def test_a_merge_that_died_long_ago_is_begun_anew_with_what_has_come_since(shop, monkeypatch):
    shop.stage([order(1)], START)
    with at_failpoint(monkeypatch, "merge.compared"):
        shop.merge(START + HOUR)
    shop.stage([order(2)], START + 2 * HOUR)
    monkeypatch.setattr(changes, "_TAKEN_UP", timedelta(0))
    assert shop.merge(START + 3 * HOUR).newer == 2


def test_a_merge_takes_what_staging_had_at_one_moment_of_bigquerys_clock(shop, monkeypatch):
    shop.stage([order(1)], START)
    read = BigQueryEntityTable.read_state

    def late(table):
        state = read(table)
        if state.until is None:
            shop.stage([order(2)], START)
        return state

    monkeypatch.setattr(BigQueryEntityTable, "read_state", late)
    report = shop.merge(START)
    assert report.changed == 1
    assert abs(report.until - datetime.now(UTC)) < HOUR
    assert shop.view(START) == shop.visible()
    shop.merge(START)
    assert shop.reporting() == shop.oracle()


def test_what_came_in_long_before_the_last_merge_is_not_read_again_unless_it_is_asked_for(shop):
    shop.stage([order(1)], START)
    shop.merge(START)
    shop.age()
    shop.stage([order(2)], START)
    assert shop.merge(START).changed == 1
    assert shop.view(START) == shop.visible()
    assert shop.merge(START, since=START).changed == 2


def test_every_query_is_capped_and_labelled_and_one_that_costs_more_changes_nothing(shop):
    shop.stage([order(1)], START)
    shop.merger = BigQueryMerger(
        PROJECT,
        f"{shop.dataset}.merge_audits",
        replace(shop.settings, labels=(("team", "ops"),), merge_max_bytes_billed=10 * 2**20),
    )
    with pytest.raises(QueryTooLargeError, match="bytes billed"):
        shop.merge(START + HOUR)
    assert shop.reporting() == {}
    (changes,) = merge_jobs(shop, "changes")
    assert changes.maximum_bytes_billed == 10 * 2**20
    assert {name: changes.labels[name] for name in ("app", "team", "refeed_merge")} == {
        "app": "refeed",
        "team": "ops",
        "refeed_merge": "orders",
    }
    shop.merger.close()
    shop.merger = None
    assert shop.merge(START + 2 * HOUR).newer == 1


def test_a_merge_reads_and_writes_the_partitions_of_its_changes_alone(shop):
    shop.stage([order(n, day=1 + n % 20) for n in range(400)], START)
    shop.merge(START + 2 * DAY)
    shop.age()
    table = shop.client.get_table(shop.source.reporting)
    assert (table.time_partitioning.field, table.time_partitioning.type_) == ("ordered_on", "DAY")
    assert table.clustering_fields == ["shop", "number"]
    shop.stage([order(3, day=4, minute=1)], START + 4 * DAY)
    assert shop.merge(START + 4 * DAY + HOUR).partitions == ("2026-03-04",)
    last, first = merge_jobs(shop, "merge")
    # A day of twenty.
    assert int(last._properties["statistics"]["totalBytesProcessed"]) * 10 < int(
        first._properties["statistics"]["totalBytesProcessed"]
    )
    assert shop.reporting() == shop.oracle()


def test_a_merge_that_does_not_add_up_says_so_and_leaves_reporting_as_it_was(shop):
    shop.stage([order(1), order(2)], START)
    shop.merge(START + HOUR)
    # Somebody's hand: a key that is there twice.
    sql = f"INSERT INTO {shop.source.reporting} SELECT * FROM {shop.source.reporting} WHERE number = 2"
    shop.client.query(sql).result()
    before = sorted(shop.read(), key=repr)
    shop.age()
    shop.stage([order(1, minute=1)], START + 2 * DAY)
    with pytest.raises(AuditFailedError, match="keys_unique: expected 2, found 3") as failed:
        shop.merge(START + 2 * DAY + HOUR)
    assert {audit["name"]: audit["is_passed"] for audit in failed.value.details["audits"]} == {
        "keys_unique": False,
        "counts_reconciled": True,
        "freshness": True,
    }
    assert sorted(shop.read(), key=repr) == before
    rows = shop.audits()[:3]
    assert {row["name"]: row["is_passed"] for row in rows}["keys_unique"] is False
    assert len({row["until"] for row in rows}) == 1
    shop.client.query(f"DELETE FROM {shop.source.reporting} WHERE number = 2").result()
    shop.merge(START + 2 * DAY + 2 * HOUR, since=START - HOUR)
    assert shop.reporting() == shop.oracle()


def test_a_transaction_that_bigquery_aborts_for_another_one_is_overtaken(shop):
    shop.stage([order(1)], START)
    assert shop.standin is not None
    message = "Transaction is aborted due to concurrent update against table orders.reporting."
    shop.standin.fault("jobs.run", "error", resource="-merge-", reason="invalidQuery", message=message)
    with pytest.raises(MergeOvertakenError):
        shop.merge(START + HOUR)
    assert shop.reporting() == {}
    shop.merge(START + HOUR)
    assert shop.reporting() == shop.oracle()


@pytest.mark.parametrize("field", ["changed_at", None])
def test_reporting_is_partitioned_by_a_moment_too_or_not_at_all(shop, field):
    shop.rules = EntityRules(RULES.key, RULES.order, field, has_operation=True)
    shop.stage([order(1), order(2), order(2, minute=24 * 60)], START)
    report = shop.merge(START + 2 * DAY)
    assert report.partitions == (("2026-03-01", "2026-03-02") if field else (None,))
    shop.stage([order(1, minute=3 * 24 * 60)], START + 4 * DAY)
    shop.merge(START + 4 * DAY + HOUR)
    assert shop.reporting() == shop.oracle()
    found = shop.client.get_table(shop.source.reporting).time_partitioning
    assert (None if found is None else found.field) == field


def test_rows_in_the_write_buffer_are_merged_and_seen(shop):
    shop.stage([order(1)], START)
    shop.standin.hold_write_buffer(f"{PROJECT}.{shop.source.staging}")
    shop.stage([order(2)], START + 3 * DAY)
    assert shop.rows(f"SELECT number FROM {shop.source.staging} WHERE _PARTITIONTIME IS NULL") == [{"number": 2}]
    assert shop.view(START) == shop.visible()
    assert shop.merge(START + 3 * DAY).newer == 2
    assert shop.reporting() == shop.oracle() == shop.view(START)
    shop.standin.release_write_buffer(f"{PROJECT}.{shop.source.staging}")
