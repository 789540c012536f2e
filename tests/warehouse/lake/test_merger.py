"""What only a lake's merge does: partitions as tasks, an index of keys, files that nobody else sees."""

import os
import shutil
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable

from connectors.lake import entities, merged_files, merging, rewriting
from connectors.lake.key_index import FOLDER
from connectors.lake.merging import MergeChanges, microseconds
from model.errors import AuditFailedError, WarehouseError
from model.schema import Field, RowSchema
from tests.reporting.shops import SCHEMA, START, LakeShop, order
from warehouse.lake.tasks import LocalTasks

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@pytest.fixture
def shop(tmp_path):
    return LakeShop(lake=tmp_path / "lake")


def files(shop: LakeShop) -> dict[date | None, str]:
    return {file.partition: file.name for file in shop.table().snapshot().files}


def test_only_partitions_that_change_are_read_and_written(shop, monkeypatch):
    shop.stage([order(n, day=1 + n % 20) for n in range(200)], START)
    shop.merge(START + 3 * HOUR)
    before = files(shop)
    read = []
    compare = MergeChanges.compare

    def watched(changes, reporting):
        read.extend(file.partition for file in reporting)
        return compare(changes, reporting)

    monkeypatch.setattr(MergeChanges, "compare", watched)
    shop.stage([order(3, day=4, minute=1), order(1000, day=7)], START + 8 * HOUR)
    report = shop.merge(START + 9 * HOUR)
    assert read == [date(2026, 3, 4)]
    assert report.partitions == ("2026-03-04", "2026-03-07")
    after = files(shop)
    assert {p for p in before if before[p] != after[p]} == {date(2026, 3, 4), date(2026, 3, 7)}
    assert shop.reporting() == shop.oracle()


def test_rows_are_chosen_only_where_not_all_of_them_win(shop, monkeypatch):
    chosen = []
    choose = MergeChanges._choose

    def watched(changes, places):
        chosen.append(choose(changes, places))
        return chosen[-1]

    monkeypatch.setattr(MergeChanges, "_choose", watched)
    shop.stage([order(n, day=1 + n % 3) for n in range(9)], START)
    shop.merge(START + HOUR)
    shop.stage([order(3), order(3, minute=1), order(10)], START + 2 * HOUR)
    shop.merge(START + 3 * HOUR)
    shop.stage([order(3, minute=2), order(10, minute=-1)], START + 4 * HOUR)
    shop.merge(START + 5 * HOUR)
    assert chosen == [None, "chosen", "chosen"]
    assert shop.reporting() == shop.oracle()


def test_a_reading_that_fails_while_rows_are_dealt_out_changes_nothing(shop, monkeypatch):
    def broken(batches):
        yield next(iter(batches))
        raise duckdb.IOException("the disk is gone")

    shop.stage([order(n) for n in range(5)], START)
    with monkeypatch.context() as patch:
        patch.setattr(merging, "_gathered", broken)
        with pytest.raises(WarehouseError, match="the disk is gone"):
            shop.merge(START + HOUR)
    assert not shop.reporting()
    shop.merge(START + 2 * HOUR)
    assert shop.reporting() == shop.oracle()


def test_a_merge_takes_what_was_committed_after_the_one_before_it_and_no_more(shop):
    shop.stage([order(1)], START)
    row = {**dict.fromkeys(shop.schema.names()), **order(2), "ingest_time": START}
    late = shop.write_file([row])
    assert shop.merge(START + HOUR).changed == 1
    shop.commit(late)
    shop.staged.append(row)
    assert shop.view(START + 9 * HOUR) == shop.visible()
    report = shop.merge(START + 9 * HOUR)
    assert (report.since, report.changed, report.newer) == (START + HOUR, 1, 1)
    assert shop.reporting() == shop.oracle()
    assert shop.merge(START + 10 * HOUR).changed == 0


def test_what_is_committed_while_a_merge_writes_is_of_the_next_one(shop):
    class Interrupted(LocalTasks):
        def rewrite(self, work, partitions):
            shop.stage([order(2)], START)
            return super().rewrite(work, partitions)

    shop.stage([order(1)], START)
    shop.tasks = Interrupted()
    assert shop.merge(START + HOUR).newer == 1
    shop.tasks = LocalTasks()
    assert shop.merge(START + 2 * HOUR).newer == 1
    assert shop.reporting() == shop.oracle()


def test_what_compaction_writes_anew_between_two_merges_is_not_lost(shop):
    shop.stage([order(1), order(2)], START)
    shop.merge(START + HOUR)
    shop.stage([order(3), order(1, minute=1)], START - 9 * HOUR)
    shop.stage([order(4)], START + HOUR)
    shop.stage([order(5)], START - 9 * HOUR)
    assert shop.staging().compact() == 2
    assert shop.view(START + 2 * HOUR) == shop.visible()
    shop.merge(START + 2 * HOUR)
    assert shop.reporting() == shop.oracle()
    assert shop.merge(START + 3 * HOUR).changed == 0


def test_compaction_of_what_is_merged_brings_it_again_once_which_changes_nothing(shop):
    shop.stage([order(1)], START)
    shop.stage([order(2)], START + DAY)
    shop.stage([order(3)], START + DAY)
    shop.merge(START + 2 * DAY)
    shop.staging().compact()
    before = files(shop)
    report = shop.merge(START + 3 * DAY)
    assert (report.changed, report.newer) == (2, 0)
    assert files(shop) == before
    assert shop.merge(START + 4 * DAY).changed == 0


def test_a_log_that_is_cleaned_up_takes_nothing_from_the_next_merge(shop):
    shop.stage([order(1)], START)
    shop.merge(START + HOUR)
    shop.stage([order(2)], START - 9 * HOUR)
    table = DeltaTable(shop.staging().uri)
    table.create_checkpoint()
    for entry in Path(shop.staging().uri, "_delta_log").glob("*.json"):
        entry.unlink()
    assert shop.merge(START + 2 * HOUR).changed == 1
    assert shop.reporting() == shop.oracle()


def test_everything_is_taken_again_where_nobody_knows_what_was_taken(shop):
    shop.stage([order(1)], START)
    shop.merge(START + DAY)
    shop.stage([order(2)], START - 9 * DAY)
    shutil.rmtree(f"{shop.table().uri}/{merged_files.FOLDER}")
    assert shop.view(START + DAY) == shop.visible()
    assert shop.merge(START + 2 * DAY).changed == 2
    assert shop.reporting() == shop.oracle()
    assert shop.merge(START + 3 * DAY).changed == 0


def test_lists_of_what_was_taken_are_kept_for_a_day(shop):
    shop.stage([order(1)], START)
    for hour in range(3):
        shop.merge(START + hour * HOUR)
    folder = Path(shop.table().uri, merged_files.FOLDER)
    assert len(list(folder.iterdir())) == 3
    for path in folder.iterdir():
        os.utime(path, (0, 0))
    shop.merge(START + 4 * HOUR)
    assert [path.stem for path in folder.iterdir()] == [str(shop.table().snapshot().taken_number)]


def test_a_table_that_was_merged_without_lists_is_read_from_a_day_before_its_last_merge_once(shop):
    shop.stage([order(1)], START)
    shop.stage([order(2)], START + 9 * DAY)
    # As a Refeed of old left it, on a machine whose clock was hours ahead.
    shop.merge(START + 9 * DAY)
    snapshot = shop.table().snapshot()
    ahead = microseconds(START + 9 * DAY + 5 * HOUR)
    shop.table().replace(snapshot, [], [], watermark_us=ahead, index_number=snapshot.index_number, taken_number=0)
    shop.stage([order(3)], START + 9 * DAY + HOUR)
    assert shop.view(START + 9 * DAY + 2 * HOUR) == shop.visible()
    assert shop.merge(START + 9 * DAY + 2 * HOUR).changed == 2
    assert shop.reporting() == shop.oracle()
    assert shop.merge(START + 9 * DAY + 3 * HOUR).changed == 0


def test_a_lost_index_is_built_again(shop):
    shop.stage([order(n, day=1 + n % 5) for n in range(20)], START)
    shop.merge(START + HOUR)
    shutil.rmtree(f"{shop.table().uri}/{FOLDER}")
    shop.stage([order(3, day=9, minute=1)], START + 8 * HOUR)
    shop.merge(START + 9 * HOUR)
    assert shop.reporting() == shop.oracle()


def test_a_merge_that_does_not_add_up_says_so_and_leaves_reporting_as_it_was(shop):
    shop.stage([order(1), order(2)], START)
    shop.merge(START + HOUR)
    before = shop.reporting()
    shop.stage([order(1, minute=1), order(3, day=2)], START + 8 * HOUR)

    class Losing(LocalTasks):
        def rewrite(self, work, partitions):
            # Its rows are there, and the task is given none of them.
            dealt = replace(work.dealt, batches={**work.dealt.batches, date(2026, 3, 2): []})
            return super().rewrite(replace(work, dealt=dealt), partitions)

    shop.tasks = Losing()
    with pytest.raises(AuditFailedError, match="counts_reconciled: expected 3, found 2") as failed:
        shop.merge(START + 9 * HOUR)
    assert [audit["is_passed"] for audit in failed.value.details["audits"]] == [True, False, True]
    assert shop.reporting() == before
    rows = shop.audits()[:3]
    assert {row["name"]: row["is_passed"] for row in rows} == {
        "keys_unique": True,
        "counts_reconciled": False,
        "freshness": True,
    }
    shop.tasks = LocalTasks()
    shop.merge(START + 9 * HOUR)
    assert shop.reporting() == shop.oracle()


def test_partitions_keep_the_columns_and_the_order_of_rows_of_many_files(shop, monkeypatch):
    # Every batch a row group, every row group a file.
    monkeypatch.setattr(rewriting, "_BATCH_ROWS", 3)
    monkeypatch.setattr(entities, "_GROUP_ROWS", 3)
    monkeypatch.setattr(entities, "_FILE_BYTES", 1)
    monkeypatch.setattr(merging, "_DEAL_BYTES", 1)
    shop.stage([order(n, day=1 + n % 2) for n in range(40)], START)
    shop.merge(START + HOUR)
    shop.stage([order(n, day=1 + n % 2, minute=1) for n in range(0, 40, 7)], START + HOUR)
    shop.merge(START + 2 * HOUR)
    assert len(shop.table().snapshot().files) > 8
    line = Field("lines", "RECORD", "REPEATED", fields=(*SCHEMA.fields[4].fields, Field("price", "NUMERIC")))
    shop.schema = RowSchema((*SCHEMA.fields[:4], line, *SCHEMA.fields[5:]), "orders")
    for row in shop.staged:
        row["lines"] = [{**each, "price": None} for each in row["lines"]]
    shop.stage([order(n, day=1 + n % 3, minute=2, lines=[]) for n in range(0, 40, 3)], START + DAY)
    shop.merge(START + DAY + HOUR)
    assert shop.reporting() == shop.oracle()
