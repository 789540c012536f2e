"""What became of a backfill whose rows a merge took longer ago than BigQuery remembers."""

from datetime import UTC, datetime, timedelta

import pytest

from model.errors import AlreadyMergedError
from model.job import new_job_id
from tests.reporting.shops import BigQueryShop, order

pytestmark = pytest.mark.cloud


@pytest.fixture
def shop(shared_standin):
    shop = BigQueryShop(dataset="staging_past", standin=shared_standin)
    yield shop
    shop.warehouse.close()


def test_a_merge_of_longer_ago_than_bigquery_remembers_is_not_counted_and_nothing_is_taken_out(shop, monkeypatch):
    mine, late = new_job_id("bf"), new_job_id("bf")
    shop.stage([order(0, _backfill_id=mine, _backfill_row=0)], datetime.now(UTC))
    shop.merge(datetime.now(UTC))
    monkeypatch.setattr("warehouse.bigquery.staging._PAST", timedelta(0))
    assert shop.backfills().merged_rows(mine) == 0
    with pytest.raises(AlreadyMergedError, match="may already be in the reporting table"):
        shop.backfills().delete_rows(mine)
    shop.drop_staging()
    shop.stage([order(1, _backfill_id=late, _backfill_row=1)], datetime.now(UTC))
    assert shop.backfills().delete_rows(late) == 1
