"""What a backfill asks of staging: landed, merged, taken out; by one suite on both warehouses."""

import shutil
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from connectors.lake import merged_files
from connectors.lake.merging import microseconds
from model.errors import AlreadyMergedError, MergeOvertakenError, RevertIncompleteError, WarehouseError
from model.job import new_job_id
from tests.reporting.shops import LakeShop, Shop, order
from tests.worlds.tables import at_failpoint
from warehouse.staging import delete_in_turn

# A merge is a dozen jobs of a stand-in that runs them beside everything else on the machine.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def mine():
    return new_job_id("bf")


def stage(shop: Shop, backfill: str | None, *rows: int, hours: int = 0) -> None:
    at = datetime.now(UTC) + timedelta(hours=hours)
    shop.stage([order(row, _backfill_id=backfill, _backfill_row=row) for row in rows], at)


def merge(shop: Shop) -> None:
    shop.merge(datetime.now(UTC) + timedelta(milliseconds=1))


def landed(shop: Shop, backfill: str) -> set[int]:
    return {int(row) for rows in shop.backfills().landed_rows(backfill) for row in np.asarray(rows)}


def test_the_rows_of_one_backfill_are_counted_and_known_when_they_are_merged(shop, mine):
    other, late = new_job_id("bf"), new_job_id("bf")
    assert landed(shop, mine) == set()
    assert shop.backfills().merged_rows(mine) == 0
    stage(shop, mine, 0, 1, 2)
    stage(shop, other, 7)
    stage(shop, None, 9)
    stage(shop, mine, 2)
    assert landed(shop, mine) == {0, 1, 2}
    assert shop.backfills().merged_rows(mine) == 0
    merge(shop)
    stage(shop, mine, 3)
    assert landed(shop, mine) == {0, 1, 2, 3}
    assert shop.backfills().merged_rows(mine) == 3
    with pytest.raises(AlreadyMergedError, match="are already in the reporting table"):
        shop.backfills().delete_rows(mine)
    # By the clock of their worker they are of the merge; they were committed after it had looked.
    stage(shop, late, 8, hours=-5)
    assert (landed(shop, late), shop.backfills().merged_rows(late)) == ({8}, 0)
    assert shop.backfills().delete_rows(late) == 1
    assert shop.backfills().merged_rows(mine) == 3


def test_a_backfill_is_taken_out_and_nothing_else(shop, mine):
    other = new_job_id("bf")
    stage(shop, mine, 0, 1)
    stage(shop, other, 0)
    assert [shop.backfills().delete_rows(mine) for _ in range(2)] == [2, 0]
    assert (landed(shop, mine), landed(shop, other)) == (set(), {0})
    # The table goes on taking commits.
    stage(shop, mine, 5)
    assert landed(shop, mine) == {5}


@pytest.mark.parametrize("is_first", [True, False])
def test_a_merge_that_has_read_what_is_taken_out_does_not_bring_it_back(shop, mine, monkeypatch, is_first):
    stage(shop, None, 7)
    if not is_first:
        merge(shop)
    stage(shop, mine, 0, 1)
    deleted = []

    def delete():
        deleted.append(shop.backfills().delete_rows(mine))

    with at_failpoint(monkeypatch, "merge.compared", delete), pytest.raises(MergeOvertakenError):
        merge(shop)
    assert deleted == [2]
    merge(shop)
    assert list(shop.reporting()) == [("se", 7)]


def test_what_a_merge_takes_while_it_is_taken_out_is_said(shop, mine, monkeypatch):
    stage(shop, None, 7)
    merge(shop)
    stage(shop, mine, 0)
    staging = shop.backfills()
    delete = staging._delete_from  # type: ignore[attr-defined]

    def merged_before(*arguments):
        merge(shop)
        return int(delete(*arguments))

    monkeypatch.setattr(staging, "_delete_from", merged_before)
    with pytest.raises(AlreadyMergedError, match="A merge ran while 1 rows"):
        staging.delete_rows(mine)


def test_what_is_counted_as_merged_is_what_the_merge_took(shop, mine, monkeypatch):
    stage(shop, mine, 0)

    def stage_late():
        # By its time it is of this merge, which had looked before.
        stage(shop, mine, 1, hours=-5)

    with at_failpoint(monkeypatch, "merge.compared", stage_late):
        shop.merge(datetime.now(UTC) + timedelta(hours=5))
    assert len(shop.reporting()) == shop.backfills().merged_rows(mine) == 1
    shop.merge(datetime.now(UTC) + timedelta(hours=6))
    assert shop.backfills().merged_rows(mine) == 2


def test_rows_that_may_be_merged_are_not_counted_and_not_deleted(tmp_path, mine):
    """The list of what the last merge took is lost."""
    shop = LakeShop(lake=tmp_path / "lake")
    stage(shop, mine, 0)
    merge(shop)
    shutil.rmtree(f"{shop.table().uri}/{merged_files.FOLDER}")
    assert shop.backfills().merged_rows(mine) == 0
    with pytest.raises(AlreadyMergedError, match="may already be in the reporting table"):
        shop.backfills().delete_rows(mine)
    assert landed(shop, mine) == {0}
    shop.warehouse.close()


def test_what_was_merged_without_lists_is_known_by_its_time(tmp_path, mine):
    """As a Refeed of old left it: it took what was not younger than its look at the clock."""
    shop, at = LakeShop(lake=tmp_path / "lake"), datetime.now(UTC)
    shop.stage([order(0, _backfill_id=mine, _backfill_row=0)], at)
    shop.merge(at)
    table = shop.table()
    snapshot = table.snapshot()
    table.replace(
        snapshot, [], [], watermark_us=microseconds(at), index_number=snapshot.index_number, taken_number=0
    )
    shop.stage([order(1, _backfill_id=mine, _backfill_row=1)], at + timedelta(microseconds=1))
    assert shop.backfills().merged_rows(mine) == 1
    shop.warehouse.close()


def test_of_several_tables_it_is_said_what_is_left_and_nothing_where_none_was_deleted():
    def fail():
        raise WarehouseError("The disk is full.")

    with pytest.raises(
        RevertIncompleteError, match=r"2 rows of bf .* b, c may still have some of its rows, .* disk is full"
    ) as said:
        delete_in_turn("bf", {"a": lambda: 2, "b": fail, "c": lambda: 1}, overtake=lambda: False, place="the lake")
    assert (said.value.details["deleted"], said.value.details["left"]) == (2, ["b", "c"])
    with pytest.raises(WarehouseError) as nothing:
        delete_in_turn("bf", {"a": lambda: 0, "b": fail}, overtake=lambda: False, place="the lake")
    assert "deleted" not in nothing.value.details
