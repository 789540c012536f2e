"""An operator's night: a hole in one hour of a topic, half of what belongs there of a wrong version; ten commands.

A release sent an hour of orders to another topic, half of them in a shape of its own. Each number that a command
shows is compared with what was archived here.
"""

import json
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from connectors.lake import files
from connectors.lake.archive import LakeArchive
from connectors.lake.rows import LakeRowTable
from connectors.pubsub.channel import open_channel
from connectors.pubsub.pull import PULLED_SCHEMA, Puller, PullLimits, PullTarget
from model.archive import Attempt
from model.message import replay_token
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
from tests.pipeline.conftest import compile_protos, frame
from tests.worlds.backfills import House
from warehouse.open import open_warehouse

pytestmark = [pytest.mark.java, pytest.mark.kills, pytest.mark.timeout(300)]

PROTO = 'syntax = "proto3";\npackage shop;\nmessage Order { int64 id = 1; int64 amount = 2; }\n'
SOURCES = b"sources:\n  orders: {topic: orders, message: shop.Order, key: id}\n"
SUBSCRIPTION = "refeed-pipeline.orders"
DAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
FIRST, HOLE, LAST = DAY.replace(hour=12), DAY.replace(hour=14), DAY.replace(hour=17)
# Hour: how many orders came in.
ARCHIVED = {12: 30, 13: 40, 15: 50, 16: 20}
STRAYED = 60
CANARY = 10
REPAIR = """
SELECT
  IF(EXISTS (SELECT 1 FROM UNNEST(attributes) AS a WHERE a.key = 'version' AND a.value = '2'),
     CAST(TO_JSON_STRING(JSON_SET(
       PARSE_JSON(SAFE_CONVERT_BYTES_TO_STRING(data)), '$.amount',
       CAST(JSON_VALUE(SAFE_CONVERT_BYTES_TO_STRING(data), '$.amount.value') AS INT64))) AS BYTES),
     data) AS data,
  attributes, message_id, topic, publish_time
FROM backup.messages
WHERE _PARTITIONTIME >= TIMESTAMP_TRUNC(@from, DAY) AND _PARTITIONTIME < TIMESTAMP_ADD(@to, INTERVAL 1 DAY)
  AND topic = 'orders-next' AND publish_time >= @from AND publish_time < @to"""


@dataclass(frozen=True)
class Order:
    """One message of the hour: what was sent, and what should have been."""

    number: int

    @property
    def version(self):
        return "12"[self.number % 2]

    @property
    def message_id(self):
        return f"n{self.number}"

    @property
    def published(self):
        return HOLE + timedelta(seconds=self.number * 59)

    @property
    def wanted(self):
        return encode({"id": 1000 + self.number, "amount": 7 * self.number})

    @property
    def sent(self):
        if self.version == "1":
            return self.wanted
        return encode({"id": 1000 + self.number, "amount": {"value": str(7 * self.number), "currency": "SEK"}})


def encode(value):
    return json.dumps(value, separators=(",", ":")).encode()


ORDERS = [Order(number) for number in range(STRAYED)]
REPAIRED = {order.message_id: json.loads(order.wanted) for order in ORDERS}
WRONG = [order for order in ORDERS if order.version == "2"]


def render(moment):
    return moment.isoformat().replace("+00:00", "Z")


def moment_of(text):
    return datetime.fromisoformat(text)


DAYTIME = ("--from", render(FIRST), "--to", render(LAST))
HOUR = ("--from", render(HOLE), "--to", render(HOLE + timedelta(hours=1)))
ASKED = ("orders", "--query", REPAIR, "-p", f"from:TIMESTAMP:{HOUR[1]}", "-p", f"to:TIMESTAMP:{HOUR[3]}")


class StoryHouse(House):
    """A house whose archive has a day of two topics, hour by hour, and an operator's terminal beside it."""

    commands = 0

    def write_archive(self):
        self.archive = LakeArchive(self.settings.lake, self.settings.archive_table)
        self.archive.create()
        self.lease = self.archive.take_lease("lease")
        self.batches = 0
        with pytest.MonkeyPatch.context() as patch:
            for hour, count in ARCHIVED.items():
                at = DAY.replace(hour=hour, minute=20)
                rows = [(f"o{hour}-{n}", at, encode({"id": n, "amount": n}), "1") for n in range(count)]
                self._commit(patch, "orders", at, rows)
            strayed = [(order.message_id, order.published, order.sent, order.version) for order in ORDERS]
            self._commit(patch, "orders-next", HOLE.replace(minute=59, second=30), strayed)
        (self.home / "shop.proto").write_text(PROTO)
        descriptors = compile_protos(self.home, "shop.proto")
        Registry(self.settings.registry).publish({"shop.desc": descriptors, "sources.yaml": SOURCES})
        for topic in ("orders", "orders-next"):
            self.pubsub.create_topic(topic)
            token = replay_token(self.settings.replay_secret(), topic)
            self.pubsub.attach_backup(topic, token=token, ack_deadline_seconds=10)

    def _commit(self, patch, topic, at, rows):
        class Then(datetime):
            @classmethod
            def now(cls, tz=None):
                return at

        patch.setattr(files, "datetime", Then)
        messages = [
            {
                "data": data,
                "attributes": [{"key": "version", "value": version}],
                "message_id": message_id,
                "publish_time": published,
                "ordering_key": "",
                "ack_id": "",
            }
            for message_id, published, data, version in rows
        ]
        batch = pa.RecordBatch.from_pylist(messages, schema=PULLED_SCHEMA)
        part = self.archive.writer().write([(topic, f"refeed-backup.{topic}", batch)])
        self.batches += 1
        self.archive.commit([part], Attempt("stream", self.batches, "lease", self.lease))

    def start_pipeline(self):
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

    def stage(self, messages):
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

    def refeed(self, *arguments, code=0):
        """Run one command of the operator's, which has to end with ``code``, and return what it prints."""
        self.commands += 1
        ended = subprocess.run(
            [sys.executable, "-m", "cli.main", *arguments, "--json"],
            env={**self.environment, "REFEED_API_URL": f"http://127.0.0.1:{self.api_port}"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert ended.returncode == code, f"{arguments}: {ended.stderr}"
        return json.loads(ended.stdout)

    def staged(self):
        table = LakeRowTable(self.settings.lake, "staging.orders")
        return DeltaTable(table.uri).to_pyarrow_table().to_pylist() if table.exists() else []


@pytest.fixture
def house(tmp_path):
    with Children() as children, closing(StoryHouse(tmp_path / "home", children)) as house:
        yield house


def find(house):
    """An hour of orders is empty, another topic has about as many, and half of those look wrong."""
    topics = {each["topic"]: each for each in house.refeed("get", "topics")["topics"]}
    assert {name: each["messages"] for name, each in topics.items()} == {
        "orders": sum(ARCHIVED.values()),
        "orders-next": STRAYED,
    }
    for each in topics.values():
        assert (each["is_attached"], each["excludes_replays"], each["backlog_messages"]) == (True, True, 0)
    wanted = {"orders": DAY.replace(hour=16, minute=20), "orders-next": ORDERS[-1].published}
    assert {name: moment_of(each["last_publish_time"]) for name, each in topics.items()} == wanted

    counted = house.refeed("histogram", "orders", *DAYTIME)
    assert [each["messages"] for each in counted["buckets"]] == [ARCHIVED.get(n, 0) for n in range(12, 17)]
    assert counted["messages"] == sum(ARCHIVED.values())
    elsewhere = house.refeed("histogram", "orders-next", *DAYTIME)
    assert [each["messages"] for each in elsewhere["buckets"]] == [0, 0, STRAYED, 0, 0]

    looked = house.refeed("messages", "orders-next", *HOUR, "-a", "version=2", "--limit", "100")
    assert {each["message_id"]: each["data"] for each in looked["messages"]} == {
        order.message_id: order.sent.decode() for order in WRONG
    }
    assert len(looked["messages"]) == len(WRONG) == STRAYED / 2


def plan_repair(house):
    """Return the id of the plan, whose every figure is true."""
    plan = house.refeed("backfill", *ASKED, "--dry-run")
    size = sum(len(order.wanted) for order in ORDERS)
    assert (plan["rows"], plan["bytes"], plan["rows_by_topic"]) == (STRAYED, size, {"orders-next": STRAYED})
    assert [(moment_of(each["hour"]), each["rows"]) for each in plan["rows_by_hour"]] == [(HOLE, STRAYED)]
    spans = [moment_of(plan[name]) for name in ("first_publish_time", "last_publish_time")]
    assert spans == [ORDERS[0].published, ORDERS[-1].published]
    assert (plan["messages_without_room"], plan["messages_with_refused_attributes"]) == (0, 0)
    assert {each["name"]: each["receives_replay"] for each in plan["subscriptions"]} == {
        "refeed-backup.orders": False,
        "refeed-pipeline.orders": True,
    }
    assert len(plan["samples"]) == 10
    assert all(each["data"] == REPAIRED[each["message_id"]] for each in plan["samples"])
    # The pipeline works in this process: the service knows no stream of it.
    assert [each["code"] for each in plan["warnings"]] == ["data_rewritten", "pipeline_not_running"]
    return plan["plan_id"]


def test_a_hole_in_one_hour_is_found_planned_tried_repaired_verified_and_undone(house):
    house.start_pipeline()
    find(house)
    plan_id = plan_repair(house)

    # Tried: ten go out, and it waits.
    made = house.refeed("backfill", *ASKED, "--plan", plan_id, "--canary", str(CANARY))
    house.wait_for_state(made["id"], "PAUSED")
    (waiting,) = house.refeed("inbox")["items"]
    assert (waiting["kind"], waiting["id"]) == ("canary", made["id"])
    assert waiting["message"].startswith(f"{CANARY} of {STRAYED} messages are published")
    house.stage(CANARY)
    assert [(row["_backfill_id"], row["amount"]) for row in house.staged()] == [
        (made["id"], REPAIRED[row["_message_id"]]["amount"]) for row in house.staged()
    ]
    assert len(house.staged()) == CANARY

    # Repaired.
    # The pipeline has not taken them yet: they are not verified.
    done = house.refeed("resume", made["id"], "--watch", code=1)
    progress = done["progress"]
    assert (done["state"], progress["selected"], progress["published"]) == ("SUCCEEDED", STRAYED, STRAYED)
    assert (progress["failed"], progress["repeated_at_most"]) == (0, 0)
    assert moment_of(progress["event_time"]) == ORDERS[-1].published
    # What waits for the pipeline is not missing, and said so.
    shown = house.wait(made["id"], lambda shown: shown["verification"]["landed"] is not None, "it is looked at")
    before = shown["verification"]
    assert [before[name] for name in ("state", "landed", "missing", "waiting")] == [
        "pending",
        CANARY,
        0,
        STRAYED - CANARY,
    ]
    assert "To launch one: refeed launch pipeline-default" in before["advice"]
    house.stage(STRAYED - CANARY)
    assert {row["_message_id"]: {"id": row["id"], "amount": row["amount"]} for row in house.staged()} == REPAIRED
    assert len(house.staged()) == STRAYED

    # Verified.
    house.wait(made["id"], lambda shown: shown["verification"]["state"] == "complete", "all has landed")
    proof = house.refeed("describe", made["id"])["verification"]
    assert proof == {
        "state": "complete",
        "selected": STRAYED,
        "published": STRAYED,
        "landed": STRAYED,
        "merged": 0,
        "missing": 0,
        "waiting": 0,
        "advice": None,
        "dead_letters": 0,
    }

    # Undone.
    undone = house.refeed("revert", made["id"], "--yes")["verification"]
    assert (undone["published"], undone["landed"], undone["missing"]) == (STRAYED, 0, STRAYED)
    assert house.staged() == []
    assert house.commands <= 10
