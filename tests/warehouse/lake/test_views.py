"""What only a lake's view does; tests/contract/test_reporting.py has what both do."""

from datetime import timedelta

from tests.reporting.shops import START, LakeShop, order
from warehouse.lake.views import open_view


def test_there_is_no_view_of_what_was_never_staged(tmp_path):
    shop = LakeShop(lake=tmp_path)
    assert open_view(shop.source, str(shop.lake)) is None


def test_staging_of_long_ago_is_read_no_more_once_it_is_merged(tmp_path):
    shop = LakeShop(lake=tmp_path)
    shop.stage([order(1)], START)
    shop.merge(START + timedelta(days=9))
    shop.stage([order(2)], START + timedelta(days=10))
    view = open_view(shop.source, str(shop.lake), START + timedelta(days=10))
    assert (len(view.reporting), len(view.staging.paths)) == (1, 1)
    assert shop.view(START + timedelta(days=10)) == shop.visible()
