from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from connectors.columns import arrow_schema
from connectors.lake.engine import EngineLimits
from connectors.lake.rows import LakeRowTable
from model.archive import Attempt
from model.entity import EntityRules, version_order
from model.errors import AlreadyMergedError, RegistryError, WarehouseError
from model.job import new_job_id
from model.schema import Field, RowSchema
from model.settings import read_settings
from pipeline.dead_letters import DEAD_LETTER_SCHEMA
from pipeline.inferred import EventType, Variation
from pipeline.registry import Registry
from pipeline.repository import SchemaRepository, repository_table
from pipeline.schema import row_columns
from pipeline.shapes import Shape, variation_hash
from pipeline.staged import StagedTopics
from tests.pipeline.conftest import compile_protos
from warehouse.lake.merger import LakeMerger
from warehouse.lake.tasks import LocalTasks
from warehouse.merges import MergeSource
from warehouse.open import open_warehouse

SOURCES = """
sources:
  orders:
    topic: orders
    message: shop.Order
    key: id
  hooks:
    topic: hooks
    schema: inferred
"""
MESSAGE = 'syntax = "proto3"; package shop; message Order { int64 id = 1; }'


@pytest.fixture
def settings(tmp_path):
    return read_settings({}, home=tmp_path / "home")


def stage_rows(settings, name, backfill_id, *rows):
    schema = RowSchema((Field("id", "INT64"), *row_columns((), "plain")))
    table = LakeRowTable(settings.lake, name)
    table.evolve(schema)
    epoch = table.take_lease("l")
    shared = {"_backfill_id": backfill_id, "ingest_time": datetime.now(UTC)}
    complete = [{"id": row, "_message_id": str(row), "_backfill_row": row, **shared} for row in rows]
    batch = pa.RecordBatch.from_pylist(complete, schema=arrow_schema(schema))
    table.commit([table.writer().write_rows([batch])], Attempt("s", table.committed_attempt("s") + 1, "l", epoch))


@pytest.fixture
def stage(settings, tmp_path):
    """Publishes the registry and returns what writes rows of a backfill to staging."""
    (tmp_path / "shop.proto").write_text(MESSAGE)
    descriptors = compile_protos(tmp_path, "shop.proto")
    Registry(settings.registry).publish({"shop.desc": descriptors, "sources.yaml": SOURCES.encode()})
    return partial(stage_rows, settings, "staging.orders")


def staged(settings, topic="orders"):
    return StagedTopics(settings, open_warehouse(settings))(topic)


def landed(staging, backfill_id):
    return sorted(int(row) for rows in staging.landed_rows(backfill_id) for row in np.asarray(rows))


def test_a_topic_that_nobody_reads_has_no_staging(settings, stage):
    topics = StagedTopics(settings, open_warehouse(settings))
    assert topics("unknown") is None
    assert topics("orders") is not None
    Registry(settings.registry).publish({"sources.yaml": b"sources: ["})
    for topic in ("orders", "unknown"):
        with pytest.raises(RegistryError):
            topics(topic)


def test_without_a_registry_nothing_is_known(settings):
    assert StagedTopics(settings, open_warehouse(settings))("orders") is None
    assert StagedTopics(settings, open_warehouse(settings)).groups() is None


def test_groups_are_the_registry_s_and_unknown_while_it_has_a_fault(settings):
    topics, registry = StagedTopics(settings, open_warehouse(settings)), Registry(settings.registry)
    registry.publish({"sources.yaml": b"sources:\n  a: {topic: orders, schema: inferred, group: shop}\n"})
    assert topics.groups() == {"shop"}
    registry.publish({"sources.yaml": b"sources:\n  b: {topic: orders, schema: inferred}\n"})
    assert topics.groups() == {"default"}
    registry.publish({"sources.yaml": b"sources: ["})
    assert topics.groups() is None
    registry.publish({"sources.yaml": b"sources: {}\n"})
    assert topics.groups() == frozenset()


def test_rows_that_a_merge_has_taken_stay_known_after_a_compaction(settings, stage, tmp_path):
    merged, later = new_job_id("bf"), new_job_id("bf")
    stage(merged, 0, 1)
    merge_with(settings, tmp_path, LocalTasks())
    stage(later, 2)
    table = LakeRowTable(settings.lake, "staging.orders")
    assert table.compact() == 1
    assert (staged(settings).merged_rows(merged), staged(settings).merged_rows(later)) == (2, 0)
    with pytest.raises(AlreadyMergedError, match="are already in the reporting table"):
        staged(settings).delete_rows(merged)
    assert staged(settings).delete_rows(later) == 1
    assert landed(staged(settings), merged) == [0, 1]


def test_what_nobody_knows_to_be_merged_is_not_counted_and_not_taken_out(settings, stage, tmp_path):
    mine, other = new_job_id("bf"), new_job_id("bf")
    stage(mine, 0, 1)
    stage(mine, 2)
    merge_with(settings, tmp_path, LocalTasks())
    table = LakeRowTable(settings.lake, "staging.orders")
    table.compact()
    (left,) = (file.path for file in table.data_files())
    for path in Path(table.uri).rglob("*.parquet"):
        if path != Path(left) and "_delta_log" not in path.parts:
            path.unlink()
    assert staged(settings).merged_rows(mine) == 0
    with pytest.raises(AlreadyMergedError, match="may already be in the reporting table"):
        staged(settings).delete_rows(mine)
    assert staged(settings).delete_rows(other) == 0
    merge_with(settings, tmp_path, LocalTasks())
    assert staged(settings).merged_rows(mine) == 3


def merge_with(settings, tmp_path, tasks, ahead=timedelta(milliseconds=1)):
    merger = LakeMerger(
        settings.lake,
        "backup.merge_audits",
        folder=tmp_path / "merge",
        tasks=tasks,
        limits=EngineLimits("500MB", tmp_path / "spill"),
    )
    merger.merge(
        MergeSource("orders", "staging.orders", "reporting.orders", EntityRules(("id",), version_order((), None))),
        now=datetime.now(UTC) + ahead,
        since=None,
        is_dry_run=False,
    )


def test_a_commit_that_comes_between_is_no_reason_for_a_revert_to_fail(settings, stage, monkeypatch):
    mine, delete, failures = new_job_id("bf"), LakeRowTable.delete_where, [WarehouseError("another process")] * 2
    stage(mine, 0, 1)

    def fail(table, *where, **since):
        if failures:
            raise failures.pop()
        return delete(table, *where, **since)

    monkeypatch.setattr(LakeRowTable, "delete_where", fail)
    assert staged(settings).delete_rows(mine) == 2


def note_types(settings, *tables):
    """Note types of events as the pipeline does: (source, table)."""
    with closing(open_warehouse(settings).open_row_tables(stream="s", lease="l")) as opened:
        opened.create()
        opened.open(settings.dead_letter_table).evolve(DEAD_LETTER_SCHEMA)
        opened.leases().take_lease("l")
        repository = SchemaRepository(opened, repository_table(settings.dead_letter_table))
        for source, table in tables:
            shape = Shape("RECORD", fields={"id": Shape("INT", column="id")})
            kinds = [EventType(table, table, 1, shape)]
            repository.append(kinds, [Variation(source, table, variation_hash(shape), shape)])


@pytest.mark.parametrize("is_url", [False, True])
def test_an_inferred_source_has_a_table_for_each_type_also_behind_a_url(tmp_path, *, is_url):
    # Behind a URL a lake is not this machine's file system: gs:// as much as file://.
    lake = (tmp_path / "lake").as_uri() if is_url else str(tmp_path / "lake")
    settings = read_settings({"REFEED_LAKE": lake}, home=tmp_path / "home")
    Registry(settings.registry).publish({"sources.yaml": HOOKS.encode()})
    assert staged(settings, "hooks")._tables == ()
    note_types(
        settings, ("hooks", "staging.hooks"), ("hooks", "staging.hooks_push"), ("hooks_x", "staging.hooks_x")
    )
    assert staged(settings, "hooks")._tables == ("staging.hooks", "staging.hooks_push")
    assert [name for name in StagedTopics(settings, open_warehouse(settings)).tables() if "staging" in name] == [
        "staging.hooks",
        "staging.hooks_push",
        "staging.hooks_x",
    ]
    mine = new_job_id("bf")
    stage_rows(settings, "staging.hooks_push", mine, 0, 2)
    assert landed(staged(settings, "hooks"), mine) == [0, 2]
    assert staged(settings, "hooks").delete_rows(mine) == 2


HOOKS = """
sources:
  hooks: {topic: hooks, schema: inferred}
  hooks_x: {topic: others, schema: inferred}
"""
BOTH = SOURCES + "  orders_too: {topic: orders, message: shop.Order, key: id, subscription: too}\n"


@pytest.fixture
def both(settings, stage):
    """Let two sources read one topic."""
    Registry(settings.registry).publish({"sources.yaml": BOTH.encode()})
    return settings


def test_a_row_landed_when_every_source_of_its_topic_has_it(both, stage):
    mine = new_job_id("bf")
    stage(mine, 0, 1, 2)
    assert landed(staged(both), mine) == []
    stage_rows(both, "staging.orders_too", mine, 2, 1, 2, 7)
    assert landed(staged(both), mine) == [1, 2]
    assert staged(both).merged_rows(mine) == 0


def test_a_revert_takes_the_rows_of_every_source_out_or_none(both, stage, tmp_path):
    mine, merged = new_job_id("bf"), new_job_id("bf")
    for backfill in (mine, merged):
        stage(backfill, 0, 1)
        stage_rows(both, "staging.orders_too", backfill, 0, 1)
    assert staged(both).delete_rows(mine) == 4
    merge_with(both, tmp_path, LocalTasks())
    assert staged(both).merged_rows(merged) == 0
    with pytest.raises(AlreadyMergedError, match=r"2 rows of .* are already in a reporting table"):
        staged(both).delete_rows(merged)
    assert landed(staged(both), merged) == [0, 1]
