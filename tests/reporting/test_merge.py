"""The merge against an oracle in plain Python: histories of versions, replays and removals in any order."""

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connectors.lake.columns import arrow_schema
from connectors.lake.entities import EntityTable
from connectors.lake.key_index import FOLDER
from connectors.lake.merging import MergeLimits
from connectors.lake.rows import RowTable
from model.archive import Attempt
from model.entity import EntityRules, version_order
from model.errors import AuditFailedError, MergeOvertakenError
from model.schema import Field, RowSchema
from reporting import lake
from reporting.lake import LakeMerger, Tasks
from reporting.merge import MergeReport, MergeSource, merge_source
from reporting.work import LocalTasks

START = datetime(2026, 3, 1, tzinfo=UTC)
SCHEMA = RowSchema(
    (
        Field("shop", "STRING"),
        Field("number", "INT64"),
        Field("changed_at", "TIMESTAMP"),
        Field("ordered_on", "DATE"),
        Field("lines", "RECORD", "REPEATED", fields=(Field("sku", "STRING"), Field("count", "INT64"))),
        Field("note", "JSON"),
        Field("_operation", "STRING"),
        Field("_message_id", "STRING"),
        Field("_publish_time", "TIMESTAMP"),
        Field("_backfill_id", "STRING"),
        Field("ingest_time", "TIMESTAMP"),
    ),
    "orders",
)
RULES = EntityRules(
    key=("shop", "number"),
    order=version_order((), "changed_at"),
    partition_field="ordered_on",
    has_operation=True,
)


@dataclass
class Shop:
    """A staging table, its reporting table, and all that was ever staged."""

    lake: Path
    rules: EntityRules = RULES
    schema: RowSchema = SCHEMA
    staged: list[dict[str, Any]] = field(default_factory=list)
    commits: int = 0

    @property
    def source(self) -> MergeSource:
        return MergeSource("orders", "staging.orders", "reporting.orders", self.rules)

    def stage(self, rows: Sequence[dict[str, Any]], at: datetime) -> None:
        table = RowTable(str(self.lake), self.source.staging)
        table.evolve(self.schema)
        epoch = table.lease_epoch("l") or table.take_lease("l")
        complete = [{**dict.fromkeys(self.schema.names()), **row, "ingest_time": at} for row in rows]
        self.commits += 1
        batch = pa.RecordBatch.from_pylist(complete, schema=arrow_schema(self.schema))
        # As write_rows does, but at a moment of the test's own.
        file = table.writer()._write(pa.Table.from_batches([batch]), at)
        table.commit([file], Attempt("s", self.commits, "l", epoch))
        self.staged += complete

    def merge(self, at: datetime, **options: Any) -> MergeReport:
        return merge_source(
            self.source,
            warehouse=self.warehouse(options.pop("tasks", None) or LocalTasks()),
            now=lambda: at,
            **options,
        )

    def warehouse(self, tasks: Tasks) -> LakeMerger:
        limits = MergeLimits("500MB", self.lake / "spill")
        return LakeMerger(
            str(self.lake), "backup.merge_audits", folder=self.lake / "merges", tasks=tasks, limits=limits
        )

    def reporting(self) -> dict[tuple[Any, ...], dict[str, Any]]:
        table = EntityTable(str(self.lake), self.source.reporting)
        found: dict[tuple[Any, ...], dict[str, Any]] = {}
        for file in table.snapshot().files:
            for row in pq.ParquetFile(file.path).read().to_pylist():
                key = tuple(row[name] for name in self.rules.key)
                assert key not in found, f"{key} is there twice"
                found[key] = {**row, "partition_date": file.partition}
        return found

    def oracle(self) -> dict[tuple[Any, ...], dict[str, Any]]:
        newest: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in self.staged:
            key = tuple(row[name] for name in self.rules.key)
            if key not in newest or self.rank(row) > self.rank(newest[key]):
                newest[key] = row
        return {key: self.expected(row) for key, row in newest.items()}

    def rank(self, row: dict[str, Any]) -> tuple[tuple[bool, Any], ...]:
        return tuple((row[name] is not None, row[name]) for name in self.rules.order)

    def expected(self, row: dict[str, Any]) -> dict[str, Any]:
        is_removed = row["_operation"] == "REMOVE"
        kept = {**row, "_deleted": is_removed, "partition_date": row["ordered_on"]}
        if is_removed and not self.rules.is_soft_delete:
            kept |= {"lines": None, "note": None}
        return kept


def order(number: int, day: int = 1, **more: Any) -> dict[str, Any]:
    """One version of an order; what is not said is the same for all."""
    moment = START + timedelta(minutes=more.pop("minute", 0))
    return {
        "shop": "se",
        "number": number,
        "changed_at": moment,
        "ordered_on": date(2026, 3, day),
        "lines": [{"sku": f"sku-{number}", "count": 1}],
        "note": '{"a":1}',
        "_message_id": str(more.pop("message", number)),
        "_publish_time": moment,
        **more,
    }


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "lake")


def test_the_newest_version_of_each_key_wins_and_keys_that_move_leave_their_partition(shop: Shop) -> None:
    shop.stage([order(1, day=1), order(2, day=1), order(1, day=1, minute=5, note="2")], START)
    report = shop.merge(START + timedelta(hours=1))
    assert (report.changed, report.newer, report.partitions) == (2, 2, ("2026-03-01",))
    assert shop.reporting() == shop.oracle()
    shop.stage([order(1, day=9, minute=7), order(2, day=1, minute=-5, note="late")], START + timedelta(hours=8))
    report = shop.merge(START + timedelta(hours=9))
    assert (report.changed, report.newer) == (2, 1)
    assert report.partitions == ("2026-03-01", "2026-03-09")
    assert shop.reporting() == shop.oracle()


def test_a_merge_of_nothing_new_changes_nothing(shop: Shop) -> None:
    assert shop.merge(START).changed == 0
    shop.stage([order(1)], START)
    shop.merge(START + timedelta(minutes=1))
    before = EntityTable(str(shop.lake), "reporting.orders").snapshot().files
    report = shop.merge(START + timedelta(minutes=2))
    assert (report.changed, report.newer, report.partitions) == (1, 0, ())
    assert EntityTable(str(shop.lake), "reporting.orders").snapshot().files == before


def test_a_replay_through_repaired_code_beats_the_row_that_it_repairs_and_nothing_newer(shop: Shop) -> None:
    shop.stage([order(1, note="broken"), order(2, note="broken"), order(2, minute=9, note="newer")], START)
    shop.merge(START + timedelta(hours=1))
    repaired = [order(n, note="repaired", _backfill_id="bf_1") for n in (1, 2)]
    shop.stage(repaired, START + timedelta(hours=8))
    shop.merge(START + timedelta(hours=9))
    assert {key[1]: row["note"] for key, row in shop.reporting().items()} == {1: "repaired", 2: "newer"}
    assert shop.reporting() == shop.oracle()


def test_a_removed_key_stays_as_a_tombstone_that_a_late_insert_does_not_raise(shop: Shop) -> None:
    shop.stage([order(1), order(1, minute=5, _operation="REMOVE")], START)
    shop.merge(START + timedelta(hours=1))
    shop.stage([order(1, minute=3, _operation="INSERT")], START + timedelta(hours=8))
    shop.merge(START + timedelta(hours=9))
    (row,) = shop.reporting().values()
    assert (row["_deleted"], row["note"], row["lines"]) == (True, None, None)
    shop.stage([order(1, minute=8, _operation="INSERT", message=7)], START + timedelta(hours=16))
    shop.merge(START + timedelta(hours=17))
    assert shop.reporting() == shop.oracle()
    (row,) = shop.reporting().values()
    assert (row["_deleted"], row["note"]) == (False, '{"a":1}')


def test_a_soft_delete_keeps_the_last_values(shop: Shop) -> None:
    shop.rules = EntityRules(
        RULES.key, RULES.order, RULES.partition_field, has_operation=True, is_soft_delete=True
    )
    shop.stage([order(1, _operation="REMOVE")], START)
    shop.merge(START + timedelta(hours=1))
    (row,) = shop.reporting().values()
    assert (row["_deleted"], row["note"]) == (True, '{"a":1}')


def test_a_key_or_a_day_that_is_null_is_a_key_and_a_partition(shop: Shop) -> None:
    rows = [order(1, shop=None, ordered_on=None), order(1, shop=None, ordered_on=None, minute=1), order(2)]
    shop.stage(rows, START)
    shop.merge(START + timedelta(hours=1))
    assert shop.reporting() == shop.oracle()
    shop.stage([order(1, shop=None, day=3, minute=2)], START + timedelta(hours=8))
    report = shop.merge(START + timedelta(hours=9))
    assert report.partitions == (None, "2026-03-03")
    assert shop.reporting() == shop.oracle()


def test_only_partitions_that_change_are_read_and_written(shop: Shop) -> None:
    shop.stage([order(n, day=1 + n % 20) for n in range(200)], START)
    shop.merge(START + timedelta(hours=3))
    before = {f.partition: f.name for f in EntityTable(str(shop.lake), "reporting.orders").snapshot().files}
    read: list[date | None] = []

    class Watched(LocalTasks):
        def compare(self, work: Any, partitions: Any) -> Any:
            read.extend(partitions)
            return super().compare(work, partitions)

    shop.stage([order(3, day=4, minute=1), order(1000, day=7)], START + timedelta(hours=8))
    report = shop.merge(START + timedelta(hours=9), tasks=Watched())
    assert read == [date(2026, 3, 4)]
    assert report.partitions == ("2026-03-04", "2026-03-07")
    after = {f.partition: f.name for f in EntityTable(str(shop.lake), "reporting.orders").snapshot().files}
    assert {p for p in before if before[p] != after[p]} == {date(2026, 3, 4), date(2026, 3, 7)}
    assert shop.reporting() == shop.oracle()


def test_columns_that_staging_gains_come_to_reporting(shop: Shop) -> None:
    shop.stage([order(1), order(2, day=2)], START)
    shop.merge(START + timedelta(hours=1))
    shop.schema = RowSchema((*SCHEMA.fields, Field("currency", "STRING")), "orders")
    shop.stage([order(1, minute=1, currency="SEK")], START + timedelta(hours=8))
    shop.merge(START + timedelta(hours=9))
    found = shop.reporting()
    assert found["se", 1]["currency"] == "SEK"
    shop.stage([order(2, day=2, minute=1)], START + timedelta(hours=16))
    shop.merge(START + timedelta(hours=17))
    assert shop.reporting()["se", 2]["currency"] is None


def test_an_index_that_is_lost_is_made_anew(shop: Shop) -> None:
    shop.stage([order(n, day=1 + n % 5) for n in range(20)], START)
    shop.merge(START + timedelta(hours=1))
    shutil.rmtree(shop.lake / "reporting" / "orders" / FOLDER)
    shop.stage([order(3, day=9, minute=1)], START + timedelta(hours=8))
    shop.merge(START + timedelta(hours=9))
    assert shop.reporting() == shop.oracle()


def test_a_dry_run_says_what_would_change_and_changes_nothing(shop: Shop) -> None:
    shop.stage([order(1), order(2, day=2)], START)
    report = shop.merge(START, is_dry_run=True)
    assert (report.changed, report.newer, report.partitions) == (2, 2, ("2026-03-01", "2026-03-02"))
    assert not EntityTable(str(shop.lake), "reporting.orders").exists()


def test_a_merge_that_another_one_overtakes_changes_nothing(shop: Shop) -> None:
    shop.stage([order(1)], START)
    shop.merge(START + timedelta(hours=1))
    shop.stage([order(1, minute=2)], START + timedelta(hours=8))

    class Overtaken(LocalTasks):
        def rewrite(self, work: Any, partitions: Any) -> Any:
            rewritten = super().rewrite(work, partitions)
            aside = Shop(shop.lake)
            aside.merge(START + timedelta(hours=10))
            return rewritten

    with pytest.raises(MergeOvertakenError):
        shop.merge(START + timedelta(hours=9), tasks=Overtaken())
    assert shop.reporting() == shop.oracle()


def test_a_merge_that_does_not_add_up_leaves_reporting_as_it_was(shop: Shop) -> None:
    shop.stage([order(1), order(2)], START)
    shop.merge(START + timedelta(hours=1))
    before = shop.reporting()
    shop.stage([order(1, minute=1), order(3)], START + timedelta(hours=8))

    class Losing(LocalTasks):
        def rewrite(self, work: Any, partitions: Any) -> Any:
            shutil.copyfile(work.changes, work.winners)
            without = pq.read_table(work.winners).slice(0, 1)
            pq.write_table(without, work.winners)
            return super().rewrite(work, partitions)

    with pytest.raises(AuditFailedError, match="counts_reconciled"):
        shop.merge(START + timedelta(hours=9), tasks=Losing())
    assert shop.reporting() == before
    shop.merge(START + timedelta(hours=9))
    assert shop.reporting() == shop.oracle()


@pytest.mark.parametrize("place", ["merge.compared", "merge.rewritten", "merge.indexed", "merge.committed"])
def test_a_merge_that_dies_anywhere_is_taken_up_by_the_next(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    shop.stage([order(n, day=1 + n % 3) for n in range(9)], START)
    shop.merge(START + timedelta(hours=1))
    shop.stage([order(n, day=4, minute=1) for n in range(4)], START + timedelta(hours=8))

    def die(name: str) -> None:
        if name == place:
            raise SystemExit(name)

    with monkeypatch.context() as patched:
        patched.setattr(lake.failpoint, "hit", die)
        with pytest.raises(SystemExit):
            shop.merge(START + timedelta(hours=9))
    shop.merge(START + timedelta(hours=10))
    assert shop.reporting() == shop.oracle()


VERSIONS = st.lists(
    st.builds(
        order,
        number=st.integers(0, 4),
        day=st.integers(1, 3),
        minute=st.integers(0, 4),
        message=st.integers(0, 9),
        shop=st.sampled_from(["se", "no", None]),
        changed_at=st.sampled_from([None, START, START + timedelta(hours=1)]),
        ordered_on=st.sampled_from([None, date(2026, 3, 1), date(2026, 3, 2)]),
        _operation=st.sampled_from(["INSERT", "MODIFY", "REMOVE"]),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(st.tuples(VERSIONS, st.booleans()), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_any_history_merged_at_any_time_is_what_the_oracle_says(
    history: list[tuple[list[dict[str, Any]], bool]], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shop = Shop(tmp_path_factory.mktemp("shop"))
    moment = START
    for versions, is_merged in history:
        # Rows of one file have one ingest_time: equal versions of a key in it could not be told apart.
        distinct = {(v["shop"], v["number"], shop.rank({**v, "ingest_time": moment})): v for v in versions}
        shuffled = list(distinct.values())
        random.Random(seed).shuffle(shuffled)
        shop.stage(shuffled, moment)
        if is_merged:
            shop.merge(moment + timedelta(minutes=30))
        moment += timedelta(hours=3)
    shop.merge(moment)
    assert shop.reporting() == shop.oracle()
    shop.merge(moment + timedelta(minutes=1))
    assert shop.reporting() == shop.oracle()
