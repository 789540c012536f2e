"""Records of kinesalite arrive on a topic: over resharding, throttling, expired iterators, outages and crashes."""

import secrets
import threading
import time
from collections import Counter
from contextlib import closing, contextmanager
from datetime import UTC, datetime

import pytest

from collector.kinesis import run_kinesis, usual_name
from collector.records import ChunkPublisher, ReadTopic, RecordReader
from collector.refused import RefusedFile
from collector.relay import Relay, RelayQuery, find_ready
from connectors.kinesis.client import AwsKey, KinesisStream, Shard
from connectors.pubsub.client import PubSub
from connectors.pubsub.publish import Publisher
from model.errors import (
    KinesisStreamRecreatedError,
    KinesisUnavailableError,
    LeaseLostError,
    PubSubUnavailableError,
    RefeedError,
    SettingsError,
    TopicUnreadError,
)
from model.settings import read_settings
from model.stream_options import BEGIN
from streams.folder import StreamFolder
from streams.lease import HeldLease
from streams.positions import POSITIONS_FILE, Positions, ShardPosition
from streams.run import PASSING
from streams.status import StatusFile
from tests.connectors.kinesis.test_aggregation import packed
from tests.standin.kinesis import Kinesis
from tests.waiting import wait_until
from warehouse.open import open_warehouse

SHARD = "shardId-00000000000"


@pytest.fixture(scope="module")
def kinesis():
    with Kinesis() as running:
        yield running


class CrashError(RefeedError):
    """Stands for what ends a process."""

    code = "crash"


class Site:
    """A Kinesis stream, a topic with a subscription, and what reads one and publishes to the other."""

    def __init__(self, kinesis, yard, folder):
        self.kinesis = kinesis
        self.yard = yard
        self.folder = folder
        self.stream = kinesis.create(f"orders-{secrets.token_hex(4)}")
        self.sent: list[tuple[str, bytes]] = []

    def put(self, count, *, keys=5):
        start = len(self.sent)
        records = [(f"k{number % keys}", b"%d" % number) for number in range(start, start + count)]
        self.kinesis.put(self.stream, records)
        self.sent += records

    @contextmanager
    def relay(self, *, start="TRIM_HORIZON", slots=3, recreated="refuse", read=None):
        """Read and publish while the block runs; at its end, drain, or raise what ended it."""
        positions = Positions(self.folder / "positions.json", self.stream)
        topic = self.yard.topic
        publisher = Publisher(self.yard.pubsub.channel, self.yard.pubsub.topic_path(topic), give_up_seconds=1)
        with closing(KinesisStream(self.stream, region="us-east-1", key=AwsKey("AKIATEST", "secret"))) as kinesis:
            relay = Relay(
                kinesis,
                positions,
                ChunkPublisher(
                    publisher, topic=topic, refused=RefusedFile(self.folder / "refused.ndjson"), read=read
                ),
                RecordReader(self.stream, topic=topic, source="kinesis"),
                status=StatusFile(self.folder / "status.json"),
                held=HeldLease(None, "lease", "stream", 1, journal=None, again=()),  # type: ignore[arg-type]
                slots=slots,
                begins_again=recreated == BEGIN,
            )
            relay.find_origin(start)
            query = relay.start(idle_seconds=0.05, chunk_bytes=10**6)
            try:
                yield relay
            finally:
                query.processAllAvailable()

    def is_done(self, relay, count):
        wait_until(lambda: totals(relay)["messages"] >= count, f"{count} messages are published")

    def check(self, *, repeats=0):
        """Fail unless each record was published, each key in its order, and ``repeats`` of them twice."""
        found = self.yard.pull(len(self.sent) + repeats)
        first = {}
        for each in found:
            first.setdefault(each.attributes["uuid"], each)
        assert len(first) == len(self.sent)
        assert Counter((each.ordering_key, each.data) for each in first.values()) == Counter(self.sent)
        for key in {key for key, _ in self.sent}:
            own = [each.data for each in first.values() if each.ordering_key == key]
            assert own == [data for sent_key, data in self.sent if sent_key == key]
        return found


def totals(relay):
    return relay._totals


@pytest.fixture
def site(kinesis, yard, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_KINESIS", kinesis.endpoint)
    return Site(kinesis, yard, tmp_path)


def test_a_child_waits_for_its_parents_and_for_none_that_is_gone(tmp_path):
    positions = Positions(tmp_path / "positions.json", "orders")
    positions.begin(None)
    parents = {"d": ("b", "c"), "a": ("gone",), "b": ("a",), "c": ("a",)}
    shards = [Shard(shard, each, starting_number="1") for shard, each in parents.items()]
    order = []
    while ready := find_ready(shards, positions):
        order.append(sorted(ready))
        for shard in ready:
            positions.advance(shard, ShardPosition("1", is_ended=True))
    assert order == [["a"], ["b", "c"], ["d"]]


@pytest.mark.cloud
def test_aggregates_are_taken_apart_and_plain_records_beside_them_are_not(site):
    from connectors.kinesis.aggregation import AGGREGATED_RECORD

    message = AGGREGATED_RECORD(partition_key_table=[b"k0", b"k1"])
    for number in range(10):
        message.records.add(partition_key_index=number % 2, data=b"%d" % number)
    site.kinesis.put(site.stream, [("a", packed(message.SerializeToString())), ("k0", b"10")])
    site.sent = [(f"k{number % 2}", b"%d" % number) for number in range(11)]
    with site.relay() as relay:
        site.is_done(relay, 11)
    found = site.check()
    assert sorted(int(each.attributes["kinesis_subsequence_number"]) for each in found) == sorted([*range(10), 0])


@pytest.mark.cloud
def test_a_key_keeps_its_order_over_splits_and_a_merge(site):
    site.put(300)
    with site.relay() as relay:
        for reshard in (site.kinesis.split, site.kinesis.split, site.kinesis.merge):
            reshard(site.stream)
            site.put(300)
        site.is_done(relay, 1_200)
    found = site.check()
    assert len({each.attributes["kinesis_shard"] for each in found}) > 2


@pytest.mark.cloud
def test_a_stream_that_was_created_again_under_its_name_is_refused_or_read_from_its_oldest_record(site):
    """Its shards have the ids of the old one's, of which the first has ended."""
    site.put(20)
    site.kinesis.split(site.stream)
    with site.relay() as relay:
        created_at = relay.kinesis.read_created_at().timestamp()
        site.is_done(relay, 20)
        wait_until(lambda: relay.positions.find(f"{SHARD}0").is_ended, "the first shard has ended")
    site.check()
    # The creation time has no fractions of a second. AWS needs longer than a second to delete and create a stream,
    # kinesalite does not: two streams of one second look equal. kinesalite also sets the time two seconds back.
    wait_until(lambda: time.time() > created_at + 3.1, "the second of the creation is over")
    site.kinesis.delete(site.stream)
    site.kinesis.create(site.stream)
    site.sent = []
    site.put(30)
    for _ in range(2):
        with pytest.raises(KinesisStreamRecreatedError, match="created again"), site.relay() as relay:
            wait_until(lambda: relay.failure is not None, "it is refused")
    # Whatever its start is: nothing of the new stream was ever read.
    with site.relay(start="LATEST", recreated=BEGIN) as relay:
        site.is_done(relay, 30)
    site.put(5)
    with site.relay() as relay:
        site.is_done(relay, 5)
    site.check()


@pytest.mark.cloud
def test_throttling_failures_and_expired_iterators_cost_time_and_no_record(site, monkeypatch):
    monkeypatch.setattr("collector.relay._FIRST_BACKOFF_SECONDS", 0.02)
    site.put(500)
    throttled = "ProvisionedThroughputExceededException"
    site.kinesis.fail("ListShards", "LimitExceededException")
    site.kinesis.fail("GetShardIterator", throttled, "drop")
    site.kinesis.fail("GetRecords", throttled, "InternalFailure", "ExpiredIteratorException", "lost")
    with site.relay() as relay:
        site.is_done(relay, 500)
        site.put(100)
        site.is_done(relay, 600)
        assert totals(relay)["throttled"] == 3
        assert totals(relay)["faults"] == 3
    site.check()


@pytest.mark.cloud
def test_a_crash_inside_an_aggregate_goes_on_inside_it(site, monkeypatch):
    from connectors.kinesis.aggregation import AGGREGATED_RECORD

    monkeypatch.setattr("collector.records.CHUNK_MESSAGES", 4)
    message = AGGREGATED_RECORD(partition_key_table=[b"k0"])
    for number in range(10):
        message.records.add(partition_key_index=0, data=b"%d" % number)
    site.kinesis.put(site.stream, [("a", packed(message.SerializeToString()))])
    site.sent = [("k0", b"%d" % number) for number in range(10)]
    with site.relay() as relay:
        site.is_done(relay, 10)
    # Put back to where the second chunk was done.
    noted = Positions(site.folder / "positions.json", site.stream)
    found = noted.find(f"{SHARD}0")
    noted.advance(f"{SHARD}0", ShardPosition(found.sequence_number, 7))
    with site.relay() as relay:
        site.is_done(relay, 2)
    site.check(repeats=2)


@pytest.mark.cloud
def test_latest_begins_at_the_first_start_also_when_nothing_came_before_a_kill(site):
    site.put(50)
    # Kinesis's clock is told to the second, and so the stream begins at the second's beginning.
    time.sleep(1.1)
    with site.relay(start="LATEST"):
        pass
    time.sleep(1.1)
    old, site.sent = site.sent, []
    site.kinesis.put(site.stream, records := [("k0", b"new-%d" % number) for number in range(20)])
    site.sent = records
    with site.relay(start="LATEST") as relay:
        site.is_done(relay, 20)
    site.check()
    assert len(old) == 50


@pytest.mark.cloud
def test_a_kinesis_that_stays_away_is_an_error_that_passes(site, monkeypatch):
    monkeypatch.setattr("collector.relay._FIRST_BACKOFF_SECONDS", 0.01)
    site.kinesis.fail("ListShards", *["drop"] * 5)
    with pytest.raises(KinesisUnavailableError), site.relay() as relay:
        wait_until(lambda: relay.failure is not None, "it gives up")


@pytest.mark.cloud
def test_a_lease_that_another_stream_has_taken_ends_it_before_the_next_publish(site):
    site.put(10)
    with pytest.raises(LeaseLostError), site.relay() as relay:  # noqa: PT012
        site.is_done(relay, 10)
        relay._held.is_lost = True
        site.kinesis.put(site.stream, [("k", b"late")])
        wait_until(lambda: relay.failure is not None, "it ends")
    site.check()


@pytest.mark.cloud
def test_a_pause_lets_no_publish_begin_and_a_cancel_leaves_what_is_in_hand(site):
    with site.relay() as relay:
        assert relay.pause()
        site.put(30)
        wait_until(lambda: totals(relay)["records"] == 30, "the records are read")
        assert totals(relay)["messages"] == 0
        relay.resume()
        site.is_done(relay, 30)
        assert relay.pause()
        site.put(7)
        wait_until(lambda: totals(relay)["records"] == 37, "the records are read")
        relay.abandon()
        wait_until(lambda: relay.count_left() == 7, "what is in hand is counted")
    with site.relay() as relay:
        site.is_done(relay, 7)
    site.check()


@pytest.mark.cloud
def test_a_query_begins_only_after_the_threads_of_the_one_before_it(site):
    site.put(10)
    release = threading.Event()
    with site.relay() as relay:
        site.is_done(relay, 10)
        publish = relay._publisher.publish

        def slow(*args, **kwargs):
            assert release.wait(20)
            return publish(*args, **kwargs)

        relay._publisher.publish = slow  # type: ignore[method-assign]
        site.put(5)
        wait_until(lambda: totals(relay)["records"] == 15, "the records are read")
        query = relay._query
        assert isinstance(query, RelayQuery)
        query.stop()
        with pytest.raises(PubSubUnavailableError, match="not confirmed all published messages"):
            relay.start(idle_seconds=0.05, chunk_bytes=10**6)
        release.set()
        assert query.wait(10)
        relay.start(idle_seconds=0.05, chunk_bytes=10**6)
        relay._query.processAllAvailable()  # type: ignore[union-attr]
    site.check()


def test_a_home_without_the_positions_of_another_one_does_not_begin_at_the_newest_record(tmp_path):
    environment = {"REFEED_KINESIS_STREAM": "orders", "REFEED_KINESIS_REGION": "eu-west-1"}
    environment |= {"REFEED_KINESIS_TOPIC": "orders", "REFEED_LAKE": str(tmp_path / "lake")}

    def start(home, **more):
        def no_pubsub():
            raise CrashError("it may begin")

        settings = read_settings({**environment, **more}, home=tmp_path / home)
        run_kinesis(settings, open_warehouse(settings), open_pubsub=no_pubsub)

    with pytest.raises(CrashError):
        start("one")
    with pytest.raises(CrashError):
        start("one")
    with pytest.raises(SettingsError, match=r"positions\.json from the stream's folder on"):
        start("two")
    with pytest.raises(CrashError):
        start("three", REFEED_KINESIS_START="TRIM_HORIZON")
    state = StreamFolder.of(tmp_path / "four", usual_name("orders")).state
    state.mkdir(parents=True)
    Positions(state / POSITIONS_FILE, "eu-west-1/orders").begin(None)
    with pytest.raises(CrashError):
        start("four")


def test_latest_is_the_first_start_also_while_pubsub_is_away(tmp_path, monkeypatch):
    """Else what comes until Pub/Sub is back would be passed over."""
    first_start = datetime(2026, 1, 3, 10, tzinfo=UTC)

    class ClockAlone(KinesisStream):
        def read_clock(self):
            return first_start

    class Away(PubSub):
        def create_topic(self, topic):
            raise CrashError(f"It stands for an outage: {topic}")

    environment = {"REFEED_KINESIS_STREAM": "orders", "REFEED_KINESIS_REGION": "eu-west-1"}
    environment |= {"REFEED_KINESIS_TOPIC": "orders", "PUBSUB_EMULATOR_HOST": "127.0.0.1:9"}
    settings = read_settings(environment, home=tmp_path / "home")
    monkeypatch.setattr("collector.kinesis.KinesisStream", ClockAlone)
    with pytest.raises(CrashError, match="outage"):
        run_kinesis(settings, open_warehouse(settings), open_pubsub=lambda: Away("shop", "127.0.0.1:9"))
    state = StreamFolder.of(tmp_path / "home", usual_name("orders")).state
    positions = Positions(state / POSITIONS_FILE, "eu-west-1/orders")
    assert (positions.is_new, positions.origin) == (False, first_start)


def test_records_wait_while_nothing_subscribes_to_the_topic(site):
    """A position that is noted after a publish to nobody would pass its records over for good."""
    yard = site.yard
    site.put(10)
    yard.pubsub.delete_subscription(f"sub-{yard.topic}")
    read = ReadTopic(yard.pubsub, yard.topic)
    with pytest.raises(TopicUnreadError, match="has no subscription"), site.relay(read=read) as relay:
        wait_until(lambda: relay.failure is not None, "the relay ends")
    assert totals(relay)["messages"] == 0
    yard.add_topic(yard.topic)
    with site.relay(read=read) as relay:
        site.is_done(relay, 10)
    site.check()
    assert TopicUnreadError in PASSING
