"""A group of a source without a schema, with its committer, batch by batch and without Spark."""

import json
import uuid
from contextlib import nullcontext
from functools import partial

import pyarrow as pa
from deltalake import DeltaTable

from connectors.lake.rows import LakeRowTable
from connectors.pubsub.pull import PULLED_SCHEMA, PulledBatch, PullTarget
from model.settings import read_settings
from pipeline.group import Group
from pipeline.plan import PlanFile
from pipeline.registry import Registry
from pipeline.source import StagingTask
from pipeline.staged_ids import open_journal
from pipeline.staging import StagingWork
from streams.ack_leases import AckLeases
from streams.commit_worker import CommitWorker
from streams.committer import StreamCommitter
from streams.status import StatusFile
from tests.pipeline.conftest import frame, messages
from warehouse.lake.warehouse import LakeWarehouse
from warehouse.open import open_warehouse

SOURCES = b"sources:\n  hooks: {topic: hooks, schema: inferred, event_type_attribute: event}\n"


class Backlog(AckLeases):
    """A subscription: what is not acknowledged, or is given back, is in the next batch again."""

    def __init__(self) -> None:
        super().__init__(None, "p")
        self.waiting: dict[str, dict] = {}
        self.given_back = 0

    def extended(self, *_):
        return nullcontext()

    def acknowledge(self, ids, _):
        for ack_id in ids.column("ack_id").to_pylist():
            self.waiting.pop(ack_id, None)
        return ids.slice(0, 0)

    def give_back(self, ids):
        self.given_back += ids.num_rows


class Stream:
    """A group and its committer over a real lake, batch by batch, without Spark."""

    def __init__(self, folder, pubsub, sources=SOURCES) -> None:
        self.folder = folder
        self.pubsub = pubsub
        self.open = partial(LakeRowTable, str(folder / "lake"))
        self.registry = Registry(str(folder / "registry"))
        self.registry.publish({"sources.yaml": sources})
        self.warehouse = self.find_warehouse()
        self.plan_file = PlanFile(folder / "plan.json", self.warehouse)
        self.backlog = Backlog()
        self.sent = 0
        self.mapping: dict[str, str] = {}
        self.start()

    def find_warehouse(self):
        return LakeWarehouse(str(self.folder / "lake"), "backup.messages", "backup.dead_letters", "day", "1GB")

    def open_tables(self):
        return self.warehouse.open_row_tables(stream="s", lease="l")

    def start(self) -> None:
        status = StatusFile(self.folder / "status.json")
        tables = self.open_tables()
        group = Group(
            "default",
            registry=self.registry,
            plan_file=self.plan_file,
            tables=tables,
            pubsub=self.pubsub,
            is_embedded=True,
            ack_deadline_seconds=10,
            dead_letter_table="backup.dead_letters",
            max_bytes=1_000_000,
            status=status,
            secret="secret",
            mapping=self.mapping,
        )
        names = group.start()
        tables.leases().take_lease("l")
        self.committer = StreamCommitter(
            work=StagingWork(tables.parse_part, group.learn),
            targets=tables,
            names=names,
            journal=open_journal(
                self.folder / "journal", keep_seconds=600, dead_letter_table="backup.dead_letters"
            ),
            ack_leases=self.backlog,
            status=status,
        )
        self.committer.recover()
        self.group = group
        group.follow(self.committer)

    def send(self, event: str, *bodies) -> None:
        for body in bodies:
            payload = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_message(payload, {"event": event})

    def send_message(self, payload: bytes, attributes) -> None:
        self.sent += 1
        (row,) = messages(payload, attributes=attributes, first=self.sent).to_pylist()
        self.backlog.waiting[row["ack_id"]] = row

    def batch(self) -> None:
        with CommitWorker(self.committer) as worker:
            worker.take_batch(self.results(), 0)
            worker.finish()

    def results(self):
        """Return what the tasks of a batch hand over that has all that waits."""
        rows = pa.RecordBatch.from_pylist(list(self.backlog.waiting.values()), schema=PULLED_SCHEMA)
        subscription = "refeed-pipeline.hooks"
        target = PullTarget(f"projects/p/subscriptions/{subscription}", subscription, "hooks", 10)
        task = StagingTask("secret").with_plan(self.plan_file.path.read_text())
        return frame([task(iter([PulledBatch(target, rows)]))])

    def drain(self, *, batches: int) -> None:
        for _ in range(batches):
            if self.backlog.waiting:
                self.batch()
        assert self.backlog.waiting == {}

    def rows(self, table: str) -> list[dict]:
        return DeltaTable(self.open(table).uri).to_pyarrow_table().to_pylist()

    def types(self, table: str) -> dict[str, str]:
        schema = self.open(table).schema()
        own = [field for field in schema.fields if not field.name.startswith(("_", "ingest"))]
        return {field.name: f"{field.type}{'[]' if field.mode == 'REPEATED' else ''}" for field in own}


class BigQueryStream(Stream):
    """The same over tables in BigQuery's stand-in, whose write buffers are never empty."""

    def __init__(self, folder, pubsub, standin) -> None:
        self.project = f"p{uuid.uuid4().hex[:12]}"
        self.standin = standin
        self.opened = []
        super().__init__(folder, pubsub)

    def find_warehouse(self):
        environment = {
            **self.standin.environment,
            "REFEED_WAREHOUSE": "bigquery",
            "REFEED_PROJECT": self.project,
            "REFEED_DEAD_LETTER_TABLE": "backup.dead_letters",
        }
        return open_warehouse(read_settings(environment, home=self.folder))

    def open_tables(self):
        self.opened.append(super().open_tables())
        self.open = self.opened[-1].open
        return self.opened[-1]

    def drain(self, *, batches: int) -> None:
        super().drain(batches=batches)
        for found in self.standin.client(self.project).list_tables(f"{self.project}.staging"):
            self.standin.hold_write_buffer(f"{self.project}.staging.{found.table_id}", everything=True)

    def rows(self, table: str) -> list[dict]:
        return self.open(table).read_rows()

    def close(self) -> None:
        for tables in self.opened:
            tables.close()
