"""A backfill whose messages the pipeline stages: its verification is complete once all have landed, not before."""

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.lake.archive import LakeArchive
from connectors.pubsub.channel import open_channel
from connectors.pubsub.pull import PULLED_SCHEMA, Puller, PullLimits, PullTarget
from model.archive import Attempt
from pipeline.group import Group
from pipeline.plan import PlanFile
from pipeline.registry import Registry
from pipeline.source import StagingTask
from pipeline.staged_ids import open_journal
from pipeline.staging import StagingWork
from rollout.child import Children
from streams.ack_leases import AckLeases
from streams.commit_worker import CommitWorker
from streams.committer import StreamCommitter
from streams.status import StatusFile
from tests.acceptance.test_backfill import House
from tests.pipeline.conftest import compile_protos, frame
from warehouse.open import open_warehouse

pytestmark = [pytest.mark.java, pytest.mark.kills, pytest.mark.timeout(600)]

ROWS = 40
PROTO = 'syntax = "proto3";\npackage shop;\nmessage Order { int64 id = 1; }\n'
SOURCES = b"sources:\n  orders: {topic: orders, message: shop.Order, key: id}\n"
SUBSCRIPTION = "refeed-pipeline.orders"


class StagedHouse(House):
    """A house whose topic a pipeline reads, batch by batch, in this process: the backfill alone has a Spark."""

    def write_archive(self) -> None:
        rows = [
            {
                "data": f'{{"id": {n}}}'.encode(),
                "attributes": [],
                "message_id": f"m{n}",
                "publish_time": datetime(2024, 3, 1, tzinfo=UTC),
                "ordering_key": "",
                "ack_id": "",
            }
            for n in range(ROWS)
        ]
        archive = LakeArchive(self.settings.lake, self.settings.archive_table)
        archive.create()
        lease = archive.take_lease("lease")
        part = archive.writer().write(
            [("orders", "backup", pa.RecordBatch.from_pylist(rows, schema=PULLED_SCHEMA))]
        )
        archive.commit([part], Attempt("stream", 1, "lease", lease))
        (self.home / "shop.proto").write_text(PROTO)
        descriptors = compile_protos(self.home, "shop.proto")
        Registry(self.settings.registry).publish({"shop.desc": descriptors, "sources.yaml": SOURCES})

    def start_pipeline(self) -> None:
        warehouse = open_warehouse(self.settings)
        tables = warehouse.open_row_tables(stream="s", lease="l")
        status = StatusFile(self.home / "status.json")
        self.plan_file = PlanFile(self.home / "plan.json", warehouse)
        group = Group(
            "default",
            registry=Registry(self.settings.registry),
            plan_file=self.plan_file,
            tables=tables,
            pubsub=self.pubsub,
            is_embedded=True,
            ack_deadline_seconds=60,
            dead_letter_table=self.settings.dead_letter_table,
            max_bytes=10_000,
            status=status,
            secret=self.settings.replay_secret(),
        )
        self.committer = StreamCommitter(
            work=StagingWork(tables.parse_part, group.learn),
            targets=tables,
            names=group.start(),
            journal=open_journal(
                self.home / "journal", keep_seconds=600, dead_letter_table=self.settings.dead_letter_table
            ),
            ack_leases=AckLeases(self.pubsub.channel, self.settings.project),
            status=status,
        )
        group.follow(self.committer)
        self.puller = Puller(lambda: open_channel(self.settings.pubsub_emulator_host))

    def stage(self, messages: int) -> None:
        """Take up to ``messages`` from the topic, and no more, through the pipeline."""
        path = self.pubsub.subscription_path(SUBSCRIPTION)
        pull = self.puller.start_batch([PullTarget(path, SUBSCRIPTION, "orders", 60)])
        limits = PullLimits(idle_seconds=5.0, linger_seconds=0.5, backlog_seconds=0.5, max_bytes=1_000_000)
        taken = list(pull.pull(limits, lambda: False))
        task = StagingTask(self.settings.replay_secret()).with_plan(self.plan_file.path.read_text())
        with CommitWorker(self.committer) as worker:
            worker.take_batch(frame([task(iter(taken))]), 0)
            worker.finish()
        assert sum(batch.rows.num_rows for batch in taken) == messages


@pytest.fixture
def house(tmp_path: Path) -> Iterator[StagedHouse]:
    with Children() as children, closing(StagedHouse(tmp_path / "home", children)) as house:
        yield house


def test_a_backfill_is_complete_when_all_it_published_has_landed_in_staging(house: StagedHouse) -> None:
    house.start_pipeline()
    backfill_id = house.create("orders")
    done = house.wait_for_state(backfill_id, "SUCCEEDED")
    assert done["progress"]["published"] == ROWS
    before = house.wait(backfill_id, lambda b: b["verification"]["state"] != "pending", "it is looked at")
    assert (before["verification"]["state"], before["verification"]["landed"]) == ("incomplete", 0)

    house.stage(ROWS)

    def is_complete(backfill: dict[str, Any]) -> bool:
        return bool(backfill["verification"]["state"] == "complete")

    found = house.wait(backfill_id, is_complete, "all has landed")["verification"]
    assert (found["selected"], found["published"], found["landed"], found["missing"]) == (ROWS, ROWS, ROWS, 0)
    # Nothing is merged yet.
    assert found["merged"] == 0
