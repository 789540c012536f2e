"""What became of a backfill in BigQuery: landed, merged, taken out."""

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables.entity_table import BigQueryEntityTable
from model import failpoint
from model.errors import AlreadyMergedError, MergeOvertakenError, RevertIncompleteError
from model.job import new_job_id
from model.schema import Field, RowSchema
from tests.reporting.shops import SCHEMA, BigQueryShop, order
from tests.standin.fixture import PROJECT, StandIn
from warehouse.bigquery.staging import BigQueryStaging

_DATASETS = itertools.count()


@pytest.fixture
def shop(shared_standin: StandIn) -> Iterator[BigQueryShop]:
    schema = RowSchema((*SCHEMA.fields, Field("_backfill_row", "INT64")), "orders")
    shop = BigQueryShop(dataset=f"staging_{next(_DATASETS)}", standin=shared_standin, schema=schema)
    yield shop
    shop.warehouse.close()


def staged(shop: BigQueryShop, *more: str) -> BigQueryStaging:
    clients = shop.warehouse._clients
    tables = [TableId.parse(name, PROJECT) for name in (shop.source.staging, *more)]
    return BigQueryStaging(clients, tables, BigQueryEntityTable(clients, shop.source.reporting, shop.settings))


def stage(shop: BigQueryShop, backfill: str | None, *rows: int) -> None:
    now = datetime.now(UTC)
    shop.stage([order(row, _backfill_id=backfill, _backfill_row=row) for row in rows], now)


def landed(staging: BigQueryStaging, backfill: str) -> list[int]:
    return sorted(int(row) for rows in staging.landed_rows(backfill) for row in np.asarray(rows))


def test_the_rows_of_one_backfill_are_counted_and_known_when_they_are_merged(shop: BigQueryShop) -> None:
    mine, other = new_job_id("bf"), new_job_id("bf")
    assert landed(staged(shop), mine) == []
    assert staged(shop).merged_rows(mine) == 0
    stage(shop, mine, 0, 1, 2)
    stage(shop, other, 7)
    stage(shop, None, 9)
    stage(shop, mine, 2)
    assert landed(staged(shop), mine) == [0, 1, 2]
    assert staged(shop).merged_rows(mine) == 0
    shop.merge(datetime.now(UTC))
    stage(shop, mine, 3)
    assert landed(staged(shop), mine) == [0, 1, 2, 3]
    assert staged(shop).merged_rows(mine) == 3
    with pytest.raises(AlreadyMergedError):
        staged(shop).delete_rows(mine)
    # By their time they are of the merge; they were committed after it had looked.
    late = new_job_id("bf")
    shop.stage([order(8, _backfill_id=late, _backfill_row=8)], datetime.now(UTC) - timedelta(hours=5))
    assert staged(shop).merged_rows(late) == 0
    assert staged(shop).delete_rows(late) == 1
    assert staged(shop).merged_rows(mine) == 3


def test_a_merge_of_longer_ago_than_bigquery_remembers_is_not_counted_and_nothing_is_taken_out(
    shop: BigQueryShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, late = new_job_id("bf"), new_job_id("bf")
    stage(shop, mine, 0)
    shop.merge(datetime.now(UTC))
    monkeypatch.setattr("warehouse.bigquery.staging._PAST", timedelta(0))
    assert staged(shop).merged_rows(mine) == 0
    with pytest.raises(AlreadyMergedError, match="may be in the reporting table"):
        staged(shop).delete_rows(mine)
    shop.drop_staging()
    stage(shop, late, 1)
    assert staged(shop).delete_rows(late) == 1


def test_a_backfill_is_taken_out_and_a_merge_that_has_read_it_does_not_bring_it_back(
    shop: BigQueryShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = new_job_id("bf")
    stage(shop, None, 7)
    shop.merge(datetime.now(UTC) - timedelta(hours=1))
    stage(shop, mine, 0, 1)
    deleted = []

    def delete(name: str) -> None:
        if name == "merge.compared":
            deleted.append(staged(shop).delete_rows(mine))

    with monkeypatch.context() as patched:
        patched.setattr(failpoint, "hit", delete)
        with pytest.raises(MergeOvertakenError):
            shop.merge(datetime.now(UTC))
    assert deleted == [2]
    assert landed(staged(shop), mine) == []
    shop.merge(datetime.now(UTC))
    assert list(shop.reporting()) == [("se", 7)]


def test_what_is_left_of_several_tables_is_said_when_one_fails(shop: BigQueryShop) -> None:
    mine = new_job_id("bf")
    stage(shop, mine, 0)
    source = shop.source.staging
    shop.client.query(
        f"CREATE TABLE {shop.dataset}.other AS SELECT _backfill_id, _backfill_row FROM {source}"
    ).result()
    with pytest.raises(RevertIncompleteError, match=r"^1 rows of .*\.other may have more") as failed:
        # No table of ours: it has no partitions.
        staged(shop, f"{shop.dataset}.other").delete_rows(mine)
    assert failed.value.details["left"] == [f"{PROJECT}.{shop.dataset}.other"]
    assert landed(staged(shop), mine) == []
