"""What only a lake's merge does: partitions as tasks, an index of keys, files that nobody else sees."""

import shutil
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from connectors.lake.key_index import FOLDER
from model.errors import AuditFailedError, MergeOvertakenError
from reporting.work import LocalTasks, MergeWork
from tests.reporting.shops import START, LakeShop, order

HOUR = timedelta(hours=1)


@pytest.fixture
def shop(tmp_path: Path) -> LakeShop:
    return LakeShop(lake=tmp_path / "lake")


def files(shop: LakeShop) -> dict[date | None, str]:
    return {file.partition: file.name for file in shop.table().snapshot().files}


def test_only_partitions_that_change_are_read_and_written(shop: LakeShop) -> None:
    shop.stage([order(n, day=1 + n % 20) for n in range(200)], START)
    shop.merge(START + 3 * HOUR)
    before = files(shop)
    read: list[date | None] = []

    class Watched(LocalTasks):
        def compare(self, work: MergeWork, partitions: Any) -> Any:
            read.extend(partitions)
            return super().compare(work, partitions)

    shop.stage([order(3, day=4, minute=1), order(1000, day=7)], START + 8 * HOUR)
    shop.tasks = Watched()
    report = shop.merge(START + 9 * HOUR)
    assert read == [date(2026, 3, 4)]
    assert report.partitions == ("2026-03-04", "2026-03-07")
    after = files(shop)
    assert {p for p in before if before[p] != after[p]} == {date(2026, 3, 4), date(2026, 3, 7)}
    assert shop.reporting() == shop.oracle()


def test_a_merge_of_nothing_new_writes_no_file(shop: LakeShop) -> None:
    shop.stage([order(1)], START)
    shop.merge(START + HOUR)
    before = files(shop)
    report = shop.merge(START + 2 * HOUR)
    assert (report.changed, report.newer, report.partitions) == (1, 0, ())
    assert files(shop) == before


def test_an_index_that_is_lost_is_made_anew(shop: LakeShop) -> None:
    shop.stage([order(n, day=1 + n % 5) for n in range(20)], START)
    shop.merge(START + HOUR)
    shutil.rmtree(f"{shop.table().uri}/{FOLDER}")
    shop.stage([order(3, day=9, minute=1)], START + 8 * HOUR)
    shop.merge(START + 9 * HOUR)
    assert shop.reporting() == shop.oracle()


def test_a_merge_that_does_not_add_up_says_so_and_leaves_reporting_as_it_was(shop: LakeShop) -> None:
    shop.stage([order(1), order(2)], START)
    shop.merge(START + HOUR)
    before = shop.reporting()
    shop.stage([order(1, minute=1), order(3)], START + 8 * HOUR)

    class Losing(LocalTasks):
        def rewrite(self, work: MergeWork, partitions: Any) -> Any:
            shutil.copyfile(work.changes, work.winners)
            # The new key is the one that is lost.
            without = pq.read_table(work.winners).sort_by("number").slice(0, 1)
            pq.write_table(without, work.winners)
            return super().rewrite(work, partitions)

    shop.tasks = Losing()
    with pytest.raises(AuditFailedError, match="counts_reconciled: expected 3, found 2") as failed:
        shop.merge(START + 9 * HOUR)
    assert [audit["is_passed"] for audit in failed.value.details["audits"]] == [True, False, True]
    assert shop.reporting() == before
    rows = shop.warehouse.read_audits("orders", 3)
    assert {row["name"]: row["is_passed"] for row in rows} == {
        "keys_unique": True,
        "counts_reconciled": False,
        "freshness": True,
    }
    shop.tasks = LocalTasks()
    shop.merge(START + 9 * HOUR)
    assert shop.reporting() == shop.oracle()


def test_two_merges_at_once_keep_out_of_each_others_files(shop: LakeShop) -> None:
    shop.stage([order(n, day=1 + n % 3) for n in range(9)], START)
    inner = LakeShop(lake=shop.lake)

    class Overtaken(LocalTasks):
        def rewrite(self, work: MergeWork, partitions: Any) -> Any:
            inner.merge(START + 2 * HOUR)
            return super().rewrite(work, partitions)

    shop.tasks = Overtaken()
    with pytest.raises(MergeOvertakenError):
        shop.merge(START + HOUR)
    assert shop.reporting() == shop.oracle()
    assert list((shop.lake / "merges").iterdir()) == []
