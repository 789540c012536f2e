import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from connectors.lake.rows import LakeRowTable
from connectors.pubsub.pull import PulledBatch, PullTarget
from model.errors import StorageFullError
from model.message import replay_token
from pipeline.dead_letters import DEAD_LETTER_SCHEMA
from pipeline.decode import Decoder
from pipeline.plan import GroupPlan, SourcePlan
from pipeline.registry import Registry
from pipeline.source import StagingTask
from pipeline.staged_ids import StagedIds, open_journal
from pipeline.staging import StagingWork
from streams.ack_leases import AckLeases
from streams.commit_worker import CommitWorker
from streams.committer import StreamCommitter
from streams.learning import Learner
from streams.status import StatusFile
from tests.pipeline.conftest import compile_protos, frame, messages
from warehouse.lake.warehouse import LakeWarehouse

SOURCES = b"""
sources:
  orders: {topic: orders, message: shop.Order, key: id}
  members: {topic: members, message: shop.Member, key: id}
"""
MESSAGES = """
syntax = "proto3";
package shop;
message Order { int64 id = 1; }
message Member { int64 id = 1; string name = 2; }
"""
TABLES = ("staging.orders", "staging.members", "backup.dead_letters")


class RecordingAckLeases(AckLeases):
    """Keeps what was acknowledged; with ``crash`` it ends as a killed process would."""

    def __init__(self) -> None:
        super().__init__(None, "p")
        self.acked: list[str] = []
        self.given_back: list[str] = []
        self.is_crashing = False
        self.is_down = False

    def acknowledge(self, ids, _):
        if self.is_crashing:
            raise KeyboardInterrupt
        if self.is_down:
            return ids
        self.acked += ids.column("ack_id").to_pylist()
        return ids.slice(0, 0)

    def give_back(self, ids):
        self.given_back += ids.column("ack_id").to_pylist()


class Stream:
    """A committer over real tables, a lake's by default, and what it takes to start another one after a crash."""

    keep_seconds = 600
    registered = SOURCES
    # Whether its first start is in a new home, after another stream's.
    has_moved = False

    def __init__(self, folder) -> None:
        self.folder = folder
        self.lake = str(folder / "lake")
        tables = self.open_tables()
        tables.create()
        (folder / "shop.proto").write_text(MESSAGES)
        registry = Registry(str(folder / "registry"))
        registry.publish({"shop.desc": compile_protos(folder, "shop.proto"), "sources.yaml": self.registered})
        self.sources = registry.read().sources
        for source in self.sources:
            tables.open(source.staging).evolve(source.row_schema)
        tables.open("backup.dead_letters").evolve(DEAD_LETTER_SCHEMA)
        self.hold = RecordingAckLeases()
        self.start()

    def open_warehouse(self):
        return LakeWarehouse(self.lake, "backup.messages", "backup.dead_letters", "day", "1GB")

    def open_tables(self):
        return self.open_warehouse().open_row_tables(stream="s", lease="l")

    def open(self, name: str) -> LakeRowTable:
        return LakeRowTable(self.lake, name)

    def start(self) -> None:
        self.hold.is_crashing = False
        self.journal = open_journal(
            self.folder / "journal", keep_seconds=self.keep_seconds, dead_letter_table="backup.dead_letters"
        )
        if self.has_moved and not self.journal.mark.name:
            self.journal.begin(knows_all=False)
        tables = self.open_tables()
        tables.leases().take_lease("l")
        ids = StagedIds(tables, "backup.dead_letters", lambda: self.sources, "secret")
        status = StatusFile(self.folder / "status.json")
        plans = tuple(SourcePlan(s, tables.open(s.staging).writer(s.row_schema)) for s in self.sources)
        letters = tables.open("backup.dead_letters")
        plan = GroupPlan(plans, letters.name, letters.writer(DEAD_LETTER_SCHEMA), 1000, self.refused())
        self.plan = plan.to_text(self.open_warehouse())
        self.committer = StreamCommitter(
            work=StagingWork(tables.parse_part),
            targets=self.targets(tables),
            names=TABLES,
            journal=self.journal,
            ack_leases=self.hold,
            status=status,
            learner=Learner(
                self.journal,
                SimpleNamespace(again_since=None, expect_again=lambda *_: None),
                read_ids=ids.read,
                find_oldest=lambda: datetime.now(UTC),
                min_free_bytes=0,
                status=status,
            ),
        )
        self.committer.recover()

    def targets(self, tables):
        return tables

    def refused(self):
        """Return the messages of which Pub/Sub did not take the row."""
        return {}

    def batch(self, *slots) -> None:
        """Run one batch: a slot is the pulled batches of one task."""
        tasks = [StagingTask("secret").with_plan(self.plan)(iter(batches)) for batches in slots]
        self.take(frame(tasks))

    def take(self, results) -> None:
        """Take one batch as Spark hands it over, and wait for its end."""
        with CommitWorker(self.committer) as self.worker:
            self.worker.take_batch(results, 0)
            self.worker.finish()

    def rows(self, name: str) -> list[dict]:
        return DeltaTable(self.open(name).uri).to_pyarrow_table().to_pylist()

    def staged(self) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        for name in TABLES:
            column = "message_id" if name == "backup.dead_letters" else "_message_id"
            found.update((name.split(".")[1], row[column]) for row in self.rows(name))
        return found


def replayed(topic: str, *payloads: bytes, backfill: str = "bf_1") -> PulledBatch:
    """Return replays of the messages 1 and so on, as a Pull brings them: with ids of their own, and tags."""
    batch = pulled(topic, *payloads, first=1001)
    tags = [
        {
            "refeed_replay": replay_token("secret", topic),
            "refeed_backfill_id": backfill,
            "refeed_row": str(row),
            "refeed_topic": topic,
            "refeed_message_id": str(row),
            "refeed_publish_time": "2024-01-01T00:00:00.000000Z",
        }
        for row in range(1, len(payloads) + 1)
    ]
    return with_attributes(batch, tags)


def with_attributes(batch: PulledBatch, each: Sequence[Mapping[str, str]]) -> PulledBatch:
    """Return the batch with other attributes, one dictionary a message."""
    field = batch.rows.schema.field("attributes")
    pairs = pa.array([list(found.items()) for found in each], pa.map_(pa.string(), pa.string())).cast(field.type)
    at = batch.rows.schema.get_field_index("attributes")
    return replace(batch, rows=batch.rows.set_column(at, field, pairs))


def pulled(topic: str, *payloads: bytes, first: int = 1) -> PulledBatch:
    subscription = f"refeed-pipeline.{topic}"
    target = PullTarget(f"projects/p/subscriptions/{subscription}", subscription, topic, 10)
    rows = messages(*payloads, first=first)
    at = rows.schema.get_field_index("ack_id")
    ids = [f"{topic}-{number}" for number in rows.column("message_id").to_pylist()]
    return PulledBatch(target, rows.set_column(at, rows.schema.field(at), pa.array(ids)))


@pytest.fixture
def stream(tmp_path):
    return Stream(tmp_path)


@pytest.fixture
def failing(monkeypatch):
    commit = LakeRowTable.commit

    @contextmanager
    def fail(table, error):
        def commit_to_others(self, files, attempt, ids=None):
            if self.name == table:
                raise error
            commit(self, files, attempt, ids)

        with monkeypatch.context() as patched:
            patched.setattr(LakeRowTable, "commit", commit_to_others)
            yield patched

    return fail


def test_a_dead_letter_has_the_untouched_message_and_its_reason(stream):
    stream.batch([pulled("orders", b'{"id": "x", \xff')])
    (letter,) = stream.rows("backup.dead_letters")
    assert letter["data"] == b'{"id": "x", \xff'
    assert (letter["topic"], letter["message_id"], letter["source"]) == ("orders", "1", "orders")
    assert letter["error_code"] == "not_json"
    assert letter["error_message"].startswith("The message is not UTF-8")
    assert len(letter["schema_version"]) == 16


def test_a_message_that_comes_again_or_to_two_tasks_is_written_once(stream):
    stream.batch([pulled("orders", b"{}", b"nope")], [pulled("orders", b"{}")])
    stream.batch([pulled("orders", b"{}", b"nope", b"{}")])
    assert stream.staged() == Counter([("orders", "1"), ("dead_letters", "2"), ("orders", "3")])
    assert stream.hold.acked.count("orders-1") == 3


@pytest.mark.parametrize(("most_bytes", "decoded"), [(1 << 20, [5]), (1, [1, 2, 1, 1])])
def test_messages_of_several_pulls_are_decoded_at_once_unless_they_are_large(
    stream, monkeypatch, most_bytes, decoded
):
    found, decode = [], Decoder.decode
    monkeypatch.setattr("pipeline.source._DECODED_BYTES", most_bytes)
    monkeypatch.setattr(
        Decoder, "decode", lambda decoder, rows: found.append(rows.num_rows) or decode(decoder, rows)
    )
    pulls = [(b"{}",), (b"{}", b"nope"), (b"{}",), (b"{}",)]
    firsts = (1, 2, 4, 5)
    stream.batch([pulled("orders", *data, first=first) for data, first in zip(pulls, firsts, strict=True)])
    assert found == decoded
    assert stream.staged() == Counter({("orders", n): 1 for n in "1245"} | {("dead_letters", "3"): 1})


@pytest.mark.parametrize("has_moved", [False, True])
def test_a_message_that_comes_again_after_its_topic_was_deleted_is_written_once(stream, has_moved):
    stream.batch([pulled("orders", b'{"id": 1}', b"nope")])
    if has_moved:
        lose_home(stream)
    again = pulled("orders", b'{"id": 1}', b"nope")
    # The name of a topic that is gone is not known any more.
    stream.batch([replace(again, target=replace(again.target, topic="refeed-pipeline.orders"))])
    assert stream.staged() == Counter([("orders", "1"), ("dead_letters", "2")])


def test_the_status_counts_rows_unknown_fields_and_dead_letters_by_source(stream, tmp_path):
    stream.batch([pulled("orders", b'{"id": 1, "new": 2}', b"nope", b'{"new": 1}')])
    status = StatusFile.read(tmp_path / "status.json")
    assert status["sources"] == {
        "orders": {"rows": {"staged": 2}, "unknown": {"new": 2}, "missing": {}, "refused": {"not_json": 1}}
    }
    summed = {
        name: status["totals"][name] for name in ("messages", "dead_letters", "unknown_fields", "forged_replays")
    }
    assert summed == {"messages": 3, "dead_letters": 1, "unknown_fields": 2, "forged_replays": 0}
    assert 0 < status["batch_seconds"] < 60


def test_messages_that_come_again_are_not_counted_as_rows_or_dead_letters_again(stream, tmp_path):
    stream.batch([pulled("orders", b"{}", b"nope", b'{"id": "x"}'), pulled("members", b"{}")])
    # As after a restore: the new process counts from 0, and knows the rows of the process before.
    lose_home(stream)
    stream.batch([pulled("orders", b"{}", b"nope", b'{"id": "x"}', b"{}", b"no"), pulled("members", b"{}")])
    status = StatusFile.read(tmp_path / "status.json")
    assert {name: status["totals"][name] for name in ("messages", "redelivered", "dead_letters")} == {
        "messages": 2,
        "redelivered": 4,
        "dead_letters": 1,
    }
    orders, members = (status["sources"][name] for name in ("orders", "members"))
    assert (orders["rows"], orders["refused"]) == ({"staged": 1}, {"not_json": 1})
    assert (members["rows"], members.get("refused", {})) == ({"staged": 0}, {})


def test_dead_letters_that_are_replays_are_counted_with_the_others_and_beside_them(stream, tmp_path):
    """A redrive sends messages again that were dead letters before."""
    stream.batch([pulled("orders", b"{}", b"nope", b"no")])
    stream.batch([replayed("orders", b"{}", b"nope", b"no")])
    status = StatusFile.read(tmp_path / "status.json")
    found = {name: status["totals"][name] for name in ("dead_letters", "replayed_dead_letters")}
    assert found == {"dead_letters": 4, "replayed_dead_letters": 2}
    assert status["sources"]["orders"]["refused"] == {"not_json": 4}


def test_an_error_of_a_task_ends_the_batch_before_its_commits_and_leaves_no_file(stream):
    done = StagingTask("secret").with_plan(stream.plan)(iter([pulled("orders", b"{}")]))
    error = json.dumps({"code": "storage_full", "message": "the disk is full"})
    with pytest.raises(StorageFullError, match="the disk is full"):
        stream.take(frame([done, None], errors=[None, error], faults='{"x": "away"}'))
    assert stream.staged() == Counter()
    assert list((stream.folder / "lake" / "staging" / "orders").glob("*.parquet")) == []


def test_messages_of_a_source_that_was_taken_away_are_left_to_come_again(stream):
    stream.batch([pulled("elsewhere", b"{}"), pulled("orders", b"{}")])
    assert stream.hold.acked == ["orders-1"]


def test_a_producer_that_uses_ids_as_names_fills_no_status(stream, monkeypatch):
    for module in ("source", "staging"):
        monkeypatch.setattr(f"pipeline.{module}.MAX_COUNTED", 2)
    stream.batch([pulled("orders", *[json.dumps({f"key{n}": 1, "k" * 900: 1}).encode() for n in range(4)])])
    stream.batch([pulled("orders", b'{"another": 1}', first=9)])
    status = StatusFile.read(stream.folder / "status.json")
    assert status["sources"]["orders"]["unknown"] == {"key0": 1, "k" * 200: 4, "(others)": 4}


def lose_home(stream) -> None:
    """Start the stream again without its journal, as another home does."""
    shutil.rmtree(stream.folder / "journal")
    stream.has_moved = True
    stream.start()


def test_messages_with_the_token_that_no_backfill_published_are_counted_and_staged(stream, tmp_path):
    token = {"refeed_replay": replay_token("secret", "orders")}
    tags = [
        {**token, "refeed_backfill_id": "bf_1", "refeed_row": "7"},
        token,
        {**token, "refeed_backfill_id": "bf_1"},
        {"refeed_replay": "a producer's own"},
        {},
    ]
    stream.batch([with_attributes(pulled("orders", *[b"{}"] * len(tags)), tags)])
    status = StatusFile.read(tmp_path / "status.json")
    assert status["totals"]["forged_replays"] == 2
    assert status["sources"]["orders"]["forged_replay"] == {"refeed_backfill_id": 1, "refeed_row": 1}
    assert sum(stream.staged().values()) == len(tags)
