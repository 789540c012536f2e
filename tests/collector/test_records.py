import json
import uuid
from datetime import UTC, datetime

import pytest

from cli.lines import read_messages
from collector.records import CHUNK_MESSAGES, AbandonedError, ChunkPublisher, Part, RecordReader, cut_chunks
from collector.refused import RefusedFile
from connectors.kinesis.client import ShardRecord
from connectors.pubsub.publish import Publisher
from model.errors import QueueFullError
from model.message import Message
from streams.positions import ShardPosition
from tests.connectors.kinesis.test_aggregation import AMAZON_S

SHARD = "shardId-000000000003"
AT = datetime(2026, 1, 3, 10, 12, 44, 190_000, UTC)


def reader() -> RecordReader:
    return RecordReader("orders", topic="shop.orders", source="kinesis")


def record(data: bytes, number: str = "4954", key: str = "k") -> ShardRecord:
    return ShardRecord(number, key, data, AT)


def test_a_record_becomes_a_message_with_our_attributes_and_its_bytes():
    ((message, position),) = reader().split(SHARD, record(b"\x00\xff"), ShardPosition())
    assert message.data == b"\x00\xff"
    assert message.ordering_key == "k"
    assert message.attributes == {
        "topic": "shop.orders",
        "source": "kinesis",
        "uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, f"kinesis:orders/{SHARD}/4954/0")),
        "timestamp": "2026-01-03T10:12:44.190000Z",
        "kinesis_stream": "orders",
        "kinesis_shard": SHARD,
        "kinesis_sequence_number": "4954",
        "kinesis_subsequence_number": "0",
    }
    assert position == ShardPosition("4954")


def test_an_aggregate_becomes_a_message_for_each_record_that_is_not_done():
    parts = list(reader().split(SHARD, record(AMAZON_S), ShardPosition()))
    assert [part.message.data for part in parts] == [b'{"id": 1}', b"", b"\x00\xff" * 3]
    assert [part.message.ordering_key for part in parts] == ["orders", "åse", "orders"]
    assert [part.position for part in parts] == [
        ShardPosition("4954", 0),
        ShardPosition("4954", 1),
        ShardPosition("4954"),
    ]
    assert len({part.message.attributes["uuid"] for part in parts}) == 3
    for done in range(2):
        left = list(reader().split(SHARD, record(AMAZON_S), ShardPosition("4954", done)))
        assert left == parts[done + 1 :]
    # Another record, because the one that was begun is gone.
    assert len(list(reader().split(SHARD, record(AMAZON_S, "5000"), ShardPosition("4954", 1)))) == 3


def test_chunks_are_bounded_by_messages_and_by_bytes():
    parts = [Part(Message(b"x" * 10), ShardPosition(str(number))) for number in range(2_500)]
    chunks = list(cut_chunks(iter(parts), max_bytes=10**9))
    assert [len(chunk) for chunk in chunks] == [CHUNK_MESSAGES, CHUNK_MESSAGES, 500]
    assert [part for chunk in chunks for part in chunk] == parts
    assert [len(chunk) for chunk in cut_chunks(iter(parts[:7]), max_bytes=30)] == [3, 3, 1]


@pytest.fixture
def chunks(yard, tmp_path):
    publisher = Publisher(yard.pubsub.channel, yard.pubsub.topic_path(yard.topic), give_up_seconds=2)
    return ChunkPublisher(publisher, topic=yard.topic, refused=RefusedFile(tmp_path / "refused.ndjson"))


def test_a_chunk_is_published_in_the_order_of_each_key(yard, chunks):
    sent = [Message(b"%d" % number, {"n": "1"}, ordering_key=f"k{number % 7}") for number in range(100)]
    assert chunks.publish(sent, room=lambda _: 1_000) == 0
    found = yard.pull(100)
    for key in range(7):
        own = [int(each.data) for each in found if each.ordering_key == f"k{key}"]
        assert own == sorted(own) == list(range(key, 100, 7))


def test_the_name_of_a_file_that_was_just_made_survives_a_power_cut(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("collector.refused.sync_folder", synced.append)
    kept = RefusedFile(tmp_path / "refused.ndjson")
    for data in (b"1", b"2"):
        kept.append("orders", Message(data, {}), "too large")
    assert synced == [tmp_path]


def test_a_full_file_of_refused_events_says_what_to_do(tmp_path):
    kept = RefusedFile(tmp_path / "refused.ndjson", max_bytes=10)
    with pytest.raises(QueueFullError, match=r"refused\.ndjson is full\. Move the file to another folder"):
        kept.append("orders", Message(b"1", {}), "too large")
    assert (tmp_path / "refused.ndjson").read_bytes() == b""


def test_a_message_that_pubsub_refuses_is_set_aside_and_those_after_it_go_on(yard, chunks, tmp_path):
    bad = Message(b"bad", {"a": "x" * 1_025}, ordering_key="k")
    sent = [Message(b"1", {}, ordering_key="k"), bad, Message(b"2", {}, ordering_key="k"), Message(b"3", {})]
    assert chunks.publish(sent, room=lambda _: 1_000) == 1
    assert {each.data for each in yard.pull(3)} == {b"1", b"2", b"3"}
    kept = json.loads((tmp_path / "refused.ndjson").read_text())
    assert "refused_by_pubsub" in kept.pop("reason")
    (tmp_path / "again.ndjson").write_text(json.dumps(kept))
    assert list(read_messages(tmp_path / "again.ndjson")) == [(yard.topic, bad)]


def test_a_chunk_that_is_abandoned_says_so(chunks):
    with pytest.raises(AbandonedError):
        chunks.publish([Message(b"1", {}, ordering_key="k")], room=lambda _: None)
