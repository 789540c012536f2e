import json
import time
from datetime import UTC, datetime

import pytest

from collector.records import ChunkPublisher, RecordReader
from collector.refused import RefusedFile
from collector.relay import Relay
from connectors.kinesis.client import Shard
from model.errors import AwsCredentialsError, KinesisStreamRecreatedError, KinesisThrottledError
from streams.lease import HeldLease
from streams.positions import Positions, ShardPosition
from streams.status import StatusFile
from tests.waiting import wait_until


class ThrottledKinesis:
    """A stream whose every call is one too many, because another program reads it."""

    name = "orders"

    def list_shards(self) -> list[Shard]:
        raise KinesisThrottledError

    def read_created_at(self) -> datetime:
        return datetime(2026, 1, 3, tzinfo=UTC)


@pytest.fixture
def relay(tmp_path):
    publisher = None
    held = None
    kinesis = ThrottledKinesis()
    return Relay(
        kinesis,
        Positions(tmp_path / "positions.json", "orders"),
        ChunkPublisher(publisher, topic="orders", refused=RefusedFile(tmp_path / "refused.ndjson")),
        RecordReader("orders", topic="orders", source="kinesis"),
        status=StatusFile(tmp_path / "status.json"),
        held=HeldLease(held, "lease", "stream", 1, journal=None, again=()),
        slots=1,
        begins_again=False,
    )


def test_a_stream_that_is_throttled_for_hours_goes_on(relay, monkeypatch):
    """At 15 s a time, 1,100 in a row take four hours."""
    monkeypatch.setattr("collector.relay.random.uniform", lambda _least, _most: 0.0)
    query = relay.start(idle_seconds=1, chunk_bytes=10**6)
    wait_until(lambda: relay._totals["throttled"] >= 1_100 or not query.isActive, "1,100 calls are throttled")
    query.processAllAvailable()
    assert query.exception() is None
    assert relay._totals["throttled"] >= 1_100


def test_a_lag_is_as_old_as_the_oldest_look_in_it(relay, tmp_path):
    """A shard that is throttled is not looked at, and its last lag says nothing of now."""
    relay.note_behind("throttled", 0)
    looked_at = time.time()
    time.sleep(0.01)
    relay.note_behind("read", 7_000)
    relay.write_status()
    status = json.loads((tmp_path / "status.json").read_text())
    assert status["backlog"]["oldest_unacked_seconds"] == 7
    assert status["backlog"]["sampled_at"] <= looked_at


class ListedKinesis(ThrottledKinesis):
    """A stream with one shard, whose creation time its key may not read."""

    starting_number = "100"

    def list_shards(self) -> list[Shard]:
        return [Shard("0", (), self.starting_number)]

    def read_created_at(self) -> datetime:
        raise AwsCredentialsError


def test_another_stream_is_told_by_its_shards_where_its_creation_time_may_not_be_read(relay):
    kinesis = ListedKinesis()
    relay.kinesis = kinesis  # type: ignore[assignment]
    relay.positions.begin(None)
    relay.check_stream(kinesis.list_shards(), is_first=True)
    relay.positions.advance("0", ShardPosition("107", is_ended=True))
    relay.check_stream(kinesis.list_shards(), is_first=True)
    kinesis.starting_number = "200"
    for is_first in (True, False):
        with pytest.raises(KinesisStreamRecreatedError):
            relay.check_stream(kinesis.list_shards(), is_first=is_first)
    relay.begins_again = True
    with pytest.raises(KinesisStreamRecreatedError):
        relay.check_stream(kinesis.list_shards(), is_first=False)
    relay.check_stream(kinesis.list_shards(), is_first=True)
    assert relay.positions.find("0") == ShardPosition()
    relay.check_stream(kinesis.list_shards(), is_first=False)
