"""The client against kinesalite, behind a proxy that throttles and lets iterators expire."""

import secrets
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from connectors.kinesis.client import AwsKey, KinesisStream, ShardReader, ShardRecord, ShardStart
from model.errors import KinesisError, KinesisStreamNotFoundError, KinesisThrottledError, KinesisUnavailableError
from tests.standin.kinesis import Kinesis

pytestmark = pytest.mark.cloud

KEY = AwsKey("AKIATEST", "secret")
FIRST = "shardId-000000000000"


@pytest.fixture(scope="module")
def kinesis():
    with Kinesis() as running:
        yield running


@pytest.fixture
def stream(kinesis, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_KINESIS", kinesis.endpoint)
    name = kinesis.create(f"orders-{secrets.token_hex(4)}")
    with closing(KinesisStream(name, region="us-east-1", key=KEY)) as opened:
        yield opened


def read_all(stream: KinesisStream, start: ShardStart, *, limit: int = 10_000) -> list[ShardRecord]:
    reader = ShardReader(stream, FIRST, start)
    found: list[ShardRecord] = []
    while batch := reader.read(limit).records:
        found += batch
    return found


def test_records_come_in_order_with_their_facts_from_wherever_reading_begins(kinesis, stream):
    before = stream.read_clock()
    sent = [(f"key-{number}", b"\x00%d" % number) for number in range(25)]
    kinesis.put(stream.name, sent)
    found = read_all(stream, ShardStart(), limit=10)
    assert [(record.partition_key, record.data) for record in found] == sent
    assert all(before <= record.arrived_at <= datetime.now(UTC) + timedelta(seconds=2) for record in found)
    numbers = [record.sequence_number for record in found]
    assert sorted(numbers, key=int) == numbers
    assert read_all(stream, ShardStart(numbers[4])) == found[5:]
    assert read_all(stream, ShardStart(numbers[4], is_after=False)) == found[4:]
    assert read_all(stream, ShardStart(at=before)) == found
    assert read_all(stream, ShardStart(numbers[-1])) == []


def test_an_iterator_that_expires_is_replaced_and_no_record_is_lost_or_read_twice(kinesis, stream):
    sent = [("k", b"%d" % number) for number in range(30)]
    kinesis.put(stream.name, sent)
    reader = ShardReader(stream, FIRST, ShardStart())
    found = []
    # The first read too, which has no record to go on after.
    for _ in range(3):
        kinesis.fail("GetRecords", "ExpiredIteratorException")
        found += [record.data for record in reader.read(10).records]
    assert found == [data for _, data in sent]


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("ProvisionedThroughputExceededException", KinesisThrottledError),
        ("LimitExceededException", KinesisThrottledError),
        ("KMSThrottlingException", KinesisThrottledError),
        ("InternalFailure", KinesisUnavailableError),
        ("drop", KinesisUnavailableError),
        ("lost", KinesisUnavailableError),
        ("KMSDisabledException", KinesisError),
        ("AccessDeniedException", KinesisError),
    ],
)
def test_a_failed_read_is_an_error_of_ours_and_the_next_one_goes_on(kinesis, stream, fault, error):
    kinesis.put(stream.name, [("k", b"1")])
    reader = ShardReader(stream, FIRST, ShardStart())
    for action in ("GetShardIterator", "GetRecords"):
        kinesis.fail(action, fault)
        with pytest.raises(KinesisError) as caught:
            reader.read()
        assert type(caught.value) is error or issubclass(type(caught.value), error)
        assert isinstance(caught.value, KinesisUnavailableError) == issubclass(error, KinesisUnavailableError)
    assert [record.data for record in reader.read().records] == [b"1"]


def test_shards_name_their_parents_after_a_split_and_a_merge(kinesis, stream):
    kinesis.put(stream.name, [("k", b"1")])
    kinesis.split(stream.name)
    kinesis.merge(stream.name)
    parents = {shard.id[-1]: tuple(parent[-1] for parent in shard.parents) for shard in stream.list_shards()}
    assert parents == {"0": (), "1": ("0",), "2": ("0",), "3": ("1", "2")}
    reader = ShardReader(stream, FIRST, ShardStart())
    first, second = reader.read(), reader.read()
    assert [record.data for record in first.records] == [b"1"]
    assert second.is_end
    assert reader.read().is_end


def test_a_stream_that_is_not_there_is_said_so(kinesis, stream):
    with closing(KinesisStream("not-there", region="us-east-1", key=KEY)) as other:
        for call in (other.list_shards, ShardReader(other, FIRST, ShardStart()).read):
            with pytest.raises(KinesisStreamNotFoundError):
                call()


def test_a_kinesis_that_does_not_listen_is_away(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_KINESIS", "http://127.0.0.1:1")
    with (
        closing(KinesisStream("orders", region="us-east-1", key=KEY)) as stream,
        pytest.raises(KinesisUnavailableError),
    ):
        stream.list_shards()


def test_a_key_is_in_no_text():
    assert "secret" not in repr(AwsKey("AKIATEST", "s3cret-of-aws")).replace("secret=", "")
