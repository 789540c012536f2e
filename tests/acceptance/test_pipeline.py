"""The pipeline: every message is a row of its table once, or a dead letter once, whatever is killed and when."""

import json
import random
from collections import Counter

import pytest
from deltalake import DeltaTable

from connectors.lake.rows import LakeRowTable
from connectors.pubsub.publish import Publisher
from model.message import REPLAY_ATTRIBUTE, Message, replay_token
from pipeline.job import group_home
from pipeline.registry import Registry
from streams.status import StatusFile
from tests.acceptance.conftest import Backyard, kill_at
from tests.acceptance.receiving import receive_waiting
from tests.pipeline.conftest import compile_protos
from tests.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.kills, pytest.mark.timeout(900)]

# What a backup does not have: one of three tables is committed, and the topic. The simulation kills the engine at
# each of the other places too.
STREAM_FAILPOINTS = ("commit.before", "publish.after")
PROTO = """
syntax = "proto3";
package shop;
message Order { int64 id = 1; string customer = 2; %s }
message Member { int64 id = 1; repeated string tags = 2; }
"""
ROWS = "rows-of-orders"
SOURCES = """
sources:
  orders: {topic: orders, message: shop.Order, key: id, publish: rows-of-orders}
  members: {topic: members, message: shop.Member, key: id}
"""


class Plant(Backyard):
    """A backyard with a registry and a pipeline."""

    def __init__(self, *given, folder, **environment):
        super().__init__(*given, **environment)
        self.folder = folder
        self.environment |= {"REFEED_PIPELINE_BATCH_SECONDS": "0.3", "REFEED_REGISTRY_POLL_SECONDS": "0.5"}
        self.registry = Registry(self.settings.registry)
        self.ids: dict[str, set[str]] = {
            "staging.orders": set(),
            "staging.members": set(),
            "backup.dead_letters": set(),
        }

    def publish_schema(self, more_fields="", sources=SOURCES):
        (self.folder / "shop.proto").write_text(PROTO % more_fields)
        descriptors = compile_protos(self.folder, "shop.proto")
        self.registry.publish({"shop.desc": descriptors, "sources.yaml": sources.encode()})

    def start_pipeline(self, **environment):
        return self.start("pipeline", "pipeline", "run", **environment)

    def send(self, table, *bodies, **attributes):
        """Publish ``bodies`` to the topic of ``table``; one that is no JSON belongs to the dead letters."""
        topic = table.split(".")[1]
        found = Publisher(self.pubsub.channel, self.pubsub.topic_path(topic)).publish(
            [Message(data=body, attributes=attributes) for body in bodies]
        )
        for message_id, body in zip(found, bodies, strict=True):
            self.ids[table if body.startswith(b"{") else "backup.dead_letters"].add(f"{topic} {message_id}")

    def send_some(self, count, seed):
        dice = random.Random(seed)
        orders = [json.dumps({"id": dice.randrange(99), "new": 1}).encode() for _ in range(count)] + [b"no JSON"]
        self.send("staging.orders", *orders)
        self.send("staging.members", *[json.dumps({"tags": ["a"] * n}).encode() for n in range(count // 2)])

    def rows(self, table):
        return DeltaTable(LakeRowTable(self.settings.lake, table).uri).to_pyarrow_table().to_pylist()

    def check(self):
        """Nothing lost, nothing twice, everything where it belongs."""
        for table, wanted in self.ids.items():
            mark = "" if table == "backup.dead_letters" else "_"
            found = Counter(f"{row[f'{mark}topic']} {row[f'{mark}message_id']}" for row in self.rows(table))
            assert {key: count for key, count in found.items() if count > 1} == {}
            assert set(found) == wanted

    def stats(self):
        """What waits for a stream: not for a reader of the rows, nor for the backup of topics that came later."""
        others = tuple(f"/{name}" for name in (ROWS, "refeed-backup.more", "refeed-backup.hooks"))
        return {path: found for path, found in super().stats().items() if not path.endswith(others)}

    def check_published(self):
        """Every row was published; return how often each was."""
        received = receive_waiting(self.pubsub.channel, self.pubsub.subscription_path(ROWS), idle_seconds=1.0)
        found = Counter(json.loads(message.data)["_message_id"] for message in received)
        assert set(found) == {row["_message_id"] for row in self.rows("staging.orders")}
        return found

    def status(self):
        found = StatusFile.read(group_home(self.settings, "default") / "status.json")
        assert found is not None
        return found


@pytest.fixture
def plant(tmp_path):
    from rollout.child import Children

    with Children() as children:
        yield Plant(tmp_path / "home", children, folder=tmp_path)


def attach(plant, *topics):
    """Make topics and subscriptions before the stream does, so that what is sent earlier is kept."""
    plant.pubsub.create_topic(ROWS)
    plant.pubsub.create_subscription(ROWS, ROWS, ack_deadline_seconds=60)
    for topic in topics:
        plant.pubsub.create_topic(topic)
        plant.pubsub.create_subscription(f"refeed-pipeline.{topic}", topic, ack_deadline_seconds=10)


def test_a_kill_at_any_failpoint_loses_nothing_and_writes_nothing_twice(plant, tmp_path):
    plant.publish_schema()
    attach(plant, "orders", "members")
    for seed, failpoint in enumerate(STREAM_FAILPOINTS):
        plant.send_some(60, seed)
        marker = tmp_path / failpoint
        # The second of three tables, where there is a choice: one has its commit, one has not.
        skip = 1 if failpoint.startswith("commit.") else 0
        pipeline = plant.start_pipeline(REFEED_FAILPOINTS=f"{failpoint}={skip}:{marker}")
        # Something for every table.
        kill_at(pipeline, marker, lambda: plant.send_some(2, 0))
    pipeline = plant.start_pipeline()
    plant.wait_until_archived(pipeline, seconds=180)
    plant.check()
    published = plant.check_published()
    # Only a kill after the publish, and before the journal has it, repeats anything.
    assert published.total() - len(published) <= len(published)
    assert pipeline.stop() == 0
    assert plant.status()["state"] == "stopped"


def test_a_stream_goes_on_without_native_code_where_a_worker_died_in_it(plant, tmp_path):
    plant.publish_schema()
    attach(plant, "orders", "members")
    plant.send_some(60, 0)
    marker = tmp_path / "decode.begun"
    pipeline = plant.start_pipeline(REFEED_FAILPOINTS=f"decode.begun=0:{marker}")
    plant.wait_until_archived(pipeline, seconds=180)
    assert marker.exists()
    plant.send_some(60, 1)
    plant.wait_until_archived(pipeline, seconds=180)
    plant.check()
    assert "fast_reading_off" in pipeline.log_tail(1 << 20)
    assert pipeline.stop() == 0


def test_the_registry_is_followed_and_a_replay_s_row_says_where_it_came_from(plant):
    plant.publish_schema()
    attach(plant, "orders", "members")
    plant.send_some(20, 0)
    pipeline = plant.start_pipeline()
    plant.wait_until_archived(pipeline, seconds=180)

    more = "  more: {topic: more, message: shop.Member}\n  hooks: {topic: hooks, schema: inferred}\n"
    plant.publish_schema("string new = 3;", f"{SOURCES}{more}")
    wait_until(lambda: "more" in plant.status()["running"], seconds=180, why="the new sources were taken up")
    plant.ids |= {"staging.more": set(), "staging.hooks": set()}
    plant.send("staging.hooks", b'{"n": 1}', b'{"n": 0.5, "who": {"name": "Ann"}}')
    plant.send("staging.more", b'{"id": 1}')

    def has_new():
        # A batch that began before the change keeps the field with the unknown ones.
        plant.send("staging.orders", b'{"id": 1, "new": "x"}')
        plant.wait_until_archived(pipeline, seconds=180)
        return any(row["new"] for row in plant.rows("staging.orders"))

    wait_until(has_new, seconds=180, every_seconds=0.05, why="the new field has its column")
    plant.check()
    assert all(row["new"] or '"new"' in row["_unknown"] for row in plant.rows("staging.orders"))

    plant.publish_schema()
    wait_until(lambda: plant.status()["alerts"], seconds=180, why="the dropped column was refused")
    (alert,) = (alert for alert in plant.status()["alerts"] if alert["about"] == "orders")
    assert alert["code"] == "evolution_refused"
    tags = {
        REPLAY_ATTRIBUTE: replay_token(plant.settings.replay_secret(), "orders"),
        "refeed_backfill_id": "bf_1",
        "refeed_row": "7",
        "refeed_topic": "orders",
        "refeed_message_id": "the original",
        "refeed_publish_time": "2023-01-01T00:00:00Z",
    }
    plant.send("staging.orders", b'{"id": 2, "new": "the old schema goes on"}', **tags)
    plant.wait_until_archived(pipeline, seconds=180)
    (replayed,) = (row for row in plant.rows("staging.orders") if row["_backfill_id"] == "bf_1")
    assert (replayed["_message_id"], replayed["_backfill_row"]) == ("the original", 7)
    assert replayed["new"] == "the old schema goes on"
    assert pipeline.stop() == 0
    # A replay's row has the id of its original.
    assert plant.status()["sources"]["orders"]["rows"]["staged"] == len(plant.ids["staging.orders"])
