"""A running pipeline's archive, staging tables and plan, made in this process, for tests of shadows."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from connectors.pubsub.pull import PulledBatch, PullTarget
from model.archive import Attempt
from model.read_budget import ReadBudget
from pipeline.dead_letters import DEAD_LETTER_SCHEMA
from pipeline.inferred import learn
from pipeline.plan import GroupPlan, PlanFile, SourcePlan
from pipeline.registry import Registry
from pipeline.shadow import Shadow, ShadowOptions
from pipeline.source import StagedParts, StagingTask
from tests import archive
from tests.memory.warehouse import MemoryWarehouse
from tests.pipeline.conftest import compile_protos
from warehouse.open import open_warehouse

SECRET = "secret"
NOON = datetime(2024, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
PROTO = """
syntax = "proto3";
package shop;
import "refeed/options.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
message Line { string sku = 1; int64 count = 2; }
message Order {
  int64 id = 1;
  repeated Line lines = 2;
  google.protobuf.Struct raw = 3;
  string at = 4 [(refeed.type) = "TIME"];
  bytes body = 5;
  google.protobuf.Timestamp placed = 6;
  string price = 7 [(refeed.type) = "NUMERIC"];
  double weight = 8;
  map<string, string> notes = 9;
  %s
}
"""
SOURCES = """
sources:
  orders: {topic: orders, message: shop.Order, key: id, staging: DATASET.orders}
  hooks: {topic: hooks, schema: inferred, staging: DATASET.hooks}
"""
BUDGET = 10**12


class ShadowedWorld:
    """A deployment's archive, staging tables, registry and plan, as a running pipeline leaves them."""

    def __init__(self, kind: str, settings, folder: Path) -> None:
        self.settings = settings
        self.folder = folder
        self.warehouse = MemoryWarehouse.new(settings) if kind == "memory" else open_warehouse(settings)
        self.dataset = settings.dead_letter_table.rpartition(".")[0]
        self.registry = Registry(settings.registry)
        self.plan_file = folder / "plan.json"
        self.archive = self.warehouse.open_archive()
        self.archive.create()
        self.tables = self.warehouse.open_row_tables(stream="p", lease="l")
        self.tables.create()
        self.tables.open(settings.dead_letter_table).evolve(DEAD_LETTER_SCHEMA)
        self.epoch = self.archive.take_lease("a")
        self.tables.leases().take_lease("l")
        self.attempts = 0
        self.types = ()
        self.publish()
        self.plan()

    def publish(self, more: str = "") -> None:
        (self.folder / "shop.proto").write_text(PROTO % more)
        descriptors = compile_protos(self.folder, "shop.proto")
        sources = SOURCES.replace("DATASET", self.dataset).encode()
        self.registry.publish({"shop.desc": descriptors, "sources.yaml": sources})

    def plan(self, attached_at: float | None = None) -> None:
        """Bring tables and plan in step with the registry, as the running pipeline does."""
        plans = []
        for source in self.registry.read().sources:
            schemas = {kind.table: kind.schema for kind in self.types}
            if not source.is_inferred:
                schemas = {source.staging: source.row_schema}
            writers = []
            for name, schema in schemas.items():
                table = self.tables.open(name)
                table.widen(schema)
                self.tables.take(name)
                writers.append(table.writer(schema))
            if source.is_inferred:
                plans.append(SourcePlan(source, self._letters(), self.types, tuple(writers), attached_at))
            else:
                plans.append(SourcePlan(source, writers[0], attached_at=attached_at))
        self.tables.take(self.settings.dead_letter_table)
        plan = GroupPlan(tuple(plans), self.settings.dead_letter_table, self._letters(), 100_000)
        PlanFile(self.plan_file, self.warehouse).write(plan)

    def _letters(self):
        return self.tables.open(self.settings.dead_letter_table).writer(DEAD_LETTER_SCHEMA)

    def keep(self, topic: str, **payloads: bytes) -> None:
        self.attempts += 1
        part = self.archive.writer().write([(topic, f"refeed-backup.{topic}", messages(payloads))])
        ids = {
            "topic": [topic] * len(payloads),
            "message_id": list(payloads),
            "publish_time": pa.array([NOON] * len(payloads), pa.timestamp("us", tz="UTC")),
        }
        attempt = Attempt("a", self.attempts, "a", self.epoch)
        self.archive.commit([part], attempt, pa.table(ids))

    def run(self, topic: str, **payloads: bytes) -> None:
        self.keep(topic, **payloads)
        self.stage(topic, **payloads)

    def stage(self, topic: str, attributes=None, **payloads: bytes) -> None:
        """Stage the payloads as the running pipeline does, dead letters among them."""
        target = PullTarget(f"projects/shop/subscriptions/{topic}", f"refeed-pipeline.{topic}", topic, 10)
        task = StagingTask(SECRET).with_plan(self.plan_file.read_text())
        encoded = task(iter([PulledBatch(target, messages(payloads, attributes))]))
        found = StagedParts.decode(encoded, self.tables.parse_part)
        self.attempts += 1
        parts = {one.table: [one.part] for one in found.parts}
        if parts:
            ids = pa.concat_tables([one.ids for one in found.parts])
            assert self.tables.commit(parts, self.attempts, ids) == (parts.keys(), None)
        if found.unfit.num_rows:
            (source,) = (source for source in self.registry.read().sources if source.name == topic)
            self.types = tuple(learn(source, self.types, found.variations))
            self.plan()
            again = found.unfit.column("message_id").to_pylist()
            self.stage(topic, attributes, **{name: payloads[name] for name in again})

    def shadow(self, acknowledged_until=lambda: None, now=time.time, **options) -> Shadow:
        options = {"settle_seconds": 0.0, "wait_seconds": 0.0, "poll_seconds": 0.01, **options}
        budget = ReadBudget(options.pop("max_bytes", BUDGET))
        return Shadow(
            self.warehouse,
            registry=self.registry,
            plan_file=self.plan_file,
            secret=SECRET,
            mapping=options.pop("mapping", {}),
            options=ShadowOptions(**options),
            budget=budget,
            acknowledged_until=acknowledged_until,
            now=now,
        )

    def close(self) -> None:
        self.tables.close()
        self.archive.close()


def messages(payloads, attributes=None) -> pa.RecordBatch:
    pairs = [{"key": key, "value": value} for key, value in (attributes or {"k": "ключ"}).items()]
    ids, count = list(payloads), len(payloads)
    columns = {"message_id": ids, "publish_time": [NOON] * count, "ack_id": ids, "attributes": [pairs] * count}
    return archive.messages(count, data=list(payloads.values()), **columns)


def order(number: int, **more) -> bytes:
    found = {
        "id": number,
        "lines": [{"sku": "ключ", "count": n} for n in range(number % 3)],
        "raw": {"b": 1.0, "a": [1, None, {"c": 12345678901}]},
        "at": "12:30:00.5",
        "body": "AP8=",
        "placed": "2024-03-01T12:00:00.123456Z",
        "price": "3.10",
        "weight": 0.1,
        "notes": {"n": "1"},
        "unknown": {"deep": [True]},
    }
    return json.dumps(found | more).encode()
