"""What is ready before the first plan, and a selection of a table beside the archive, from its specification."""

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from app.backfills import open_queries
from backfill.job import select
from backfill.plan.creation import render_specification
from backfill.plan.options import RunOptions
from backfill.plan.planner import Planner
from backfill.plan.request import BackfillRequest
from backfill.plan.settings import BackfillSettings
from backfill.plan.validation import validate_request
from backfill.run.folder import BackfillFolder
from backfill.run.selection import read_slice
from jobs.folder import Control, Order
from sql.worker import GATE
from warehouse.lake.warehouse import LakeWarehouse

ATTRIBUTES = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
NOBODY: Any = SimpleNamespace(topic_path=lambda topic: f"projects/shop/topics/{topic}")


def settings_of(home: Path, *tables: str) -> BackfillSettings:
    return BackfillSettings(
        home=home,
        project="shop",
        emulator_host=None,
        replay_secret="s3cret",
        warehouse=LakeWarehouse(str(home / "lake"), "backup.messages", "backup.dead_letters", "day", "500MB"),
        max_window_days=36_600,
        query_memory="500MB",
        query_tables=tables,
    )


@pytest.mark.usefixtures("own_spares")
def test_the_first_plan_waits_for_no_process(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    queries: Any = open_queries(settings)
    planner = Planner(settings, NOBODY, NOBODY, queries)
    try:
        planner.warm()
        assert [worker.is_ready for worker in GATE._idle] == [True, True]
        spare = queries._processes._spare
        assert spare.is_alive()
    finally:
        queries.close()
    assert not spare.is_alive()


def test_dead_letters_in_a_table_of_their_own_are_selected_without_an_archive(tmp_path: Path) -> None:
    moments = [datetime(2024, 1, day, 12, tzinfo=UTC) for day in (1, 2, 3)]
    dead = pa.table(
        {
            "data": pa.array([b"a", b"b", b"c"], pa.binary()),
            "attributes": pa.array([[{"key": "k", "value": "v"}], [], []], ATTRIBUTES),
            "message_id": ["1", "2", "3"],
            "ingest_time": pa.array(moments, pa.timestamp("us", tz="UTC")),
            "ingest_date": [moment.date() for moment in moments],
        }
    )
    write_deltalake(str(tmp_path / "lake" / "ops" / "dead"), dead, partition_by=["ingest_date"])
    settings = settings_of(tmp_path, "ops.dead")
    planner = Planner(settings, NOBODY, NOBODY, open_queries(settings))
    request = BackfillRequest(
        "SELECT data, attributes, message_id FROM shop.ops.dead WHERE _PARTITIONDATE >= '2024-01-02'", "orders"
    )
    valid = validate_request(request, planner.policy())
    assert valid.window.start == datetime(2024, 1, 2, tzinfo=UTC)
    specification = render_specification("bf_1", request, planner.source(request, valid, None), settings, NOBODY)
    folder = BackfillFolder(tmp_path / "job")
    folder.path.mkdir()
    folder.write_control(Control(1, Order.RUN))
    selection = select(folder, 1, json.loads(json.dumps(specification)), RunOptions())
    (part,) = selection.slices
    rows = read_slice(folder.selection, part)
    assert sorted(rows.column("message_id").to_pylist()) == ["2", "3"]
    assert rows.column("topic").to_pylist() == [None, None]
    assert selection.first_publish_time is None
