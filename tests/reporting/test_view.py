from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from model.entity import EntityRules
from reporting.view import open_view
from tests.reporting.test_merge import RULES, START, Shop, order


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "lake")


def seen(shop: Shop, at: Any = None) -> dict[tuple[Any, ...], dict[str, Any]]:
    view = open_view(shop.source, str(shop.lake), at)
    assert view is not None
    rows = view.read(shop.lake / "spill").to_pylist()
    found = {tuple(row[name] for name in shop.rules.key): row for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def wanted(shop: Shop, *, hidden: bool = True) -> dict[tuple[Any, ...], dict[str, Any]]:
    """What the oracle has, without the partition and without what was removed."""
    return {
        key: {name: value for name, value in row.items() if name != "partition_date"}
        for key, row in shop.oracle().items()
        if not (hidden and row["_deleted"])
    }


def test_there_is_no_view_of_what_was_never_staged(shop: Shop) -> None:
    assert open_view(shop.source, str(shop.lake)) is None


def test_it_is_the_same_before_and_after_a_merge(shop: Shop) -> None:
    shop.stage([order(1), order(2), order(2, minute=3, note="2"), order(3)], START)
    shop.stage([order(3, minute=1, _operation="REMOVE")], START + timedelta(hours=3))
    before = seen(shop, START + timedelta(hours=4))
    assert before == wanted(shop)
    assert set(before) == {("se", 1), ("se", 2)}
    shop.merge(START + timedelta(hours=4))
    assert seen(shop, START + timedelta(hours=4)) == before
    shop.stage([order(1, day=5, minute=9, note="newest")], START + timedelta(hours=8))
    assert seen(shop, START + timedelta(hours=8)) == wanted(shop)
    assert seen(shop, START + timedelta(hours=8))["se", 1]["ordered_on"] == date(2026, 3, 5)


def test_a_late_insert_does_not_show_what_was_removed_in_reporting(shop: Shop) -> None:
    shop.stage([order(1, minute=5, _operation="REMOVE")], START)
    shop.merge(START + timedelta(hours=1))
    shop.stage([order(1, minute=3)], START + timedelta(hours=8))
    assert seen(shop, START + timedelta(hours=9)) == {}


def test_a_soft_delete_is_shown_and_says_so(shop: Shop) -> None:
    shop.rules = EntityRules(
        RULES.key, RULES.order, RULES.partition_field, has_operation=True, is_soft_delete=True
    )
    shop.stage([order(1, _operation="REMOVE")], START)
    for _ in range(2):
        assert {key: row["_deleted"] for key, row in seen(shop, START + timedelta(hours=1)).items()} == {
            ("se", 1): True
        }
        shop.merge(START + timedelta(hours=1))


def test_staging_of_long_ago_is_read_no_more_once_it_is_merged(shop: Shop) -> None:
    shop.stage([order(1)], START)
    shop.merge(START + timedelta(days=9))
    shop.stage([order(2)], START + timedelta(days=10))
    view = open_view(shop.source, str(shop.lake), START + timedelta(days=10))
    assert view is not None
    assert (len(view.reporting), len(view.staging)) == (1, 1)
    assert seen(shop, START + timedelta(days=10)) == wanted(shop)
