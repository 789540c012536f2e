"""Merges and views of a lake in a bucket."""

from datetime import timedelta

import pytest

from tests.reporting.shops import START, LakeShop, order, repaired

pytestmark = pytest.mark.cloud

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@pytest.fixture
def shop(bucket_lake, tmp_path):
    return LakeShop(lake=bucket_lake, folder=tmp_path)


def test_versions_that_are_staged_over_days_and_repaired_are_merged_and_seen(shop):
    shop.stage([order(1), order(2, note='"broken"'), order(3, day=2)], START)
    assert shop.view(START) == shop.oracle()
    shop.merge(START + HOUR)
    assert shop.reporting() == shop.oracle() == shop.view(START + HOUR)
    shop.stage([order(1, day=9, minute=7), order(3, day=2, minute=-5, note='"late"')], START + 2 * DAY)
    shop.stage([repaired(order(2), note='"repaired"')], START + 2 * DAY + HOUR)
    assert shop.view(START + 2 * DAY + HOUR) == shop.oracle()
    shop.merge(START + 2 * DAY + 2 * HOUR)
    assert shop.reporting() == shop.oracle() == shop.view(START + 2 * DAY + 2 * HOUR)


def test_a_view_reads_a_small_file_by_one_request_when_it_is_opened_and_one_when_it_is_queried(shop, bucket_proxy):
    for number in range(1, 6):
        shop.stage([order(number, message=number)], START)
    bucket_proxy.forget()
    assert len(shop.view(START)) == 5
    found = sorted(request.partition("?")[0] for request in bucket_proxy.requests if ".parquet" in request)
    files = [f"GET /{file.path.partition('://')[2]}" for file in shop.staging().data_files()]
    assert found == sorted(files * 2)
