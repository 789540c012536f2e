import hashlib

import pytest

from connectors.kinesis.aggregation import AGGREGATED_RECORD, MAGIC, UserRecord, split_aggregate

# What Amazon's own aggregator for Python (aws-kinesis-agg 1.2.3) makes of these records; one has a hash key.
AMAZON_S = bytes.fromhex(
    "f3899ac20a066f72646572730a04c3a573651201371a0d08001a097b226964223a20317d1a06080110001a001a0a0800"
    "1a0600ff00ff00ff5ced8418f096a00b97ae1600c38acf84"
)
RECORDS = [UserRecord("orders", b'{"id": 1}'), UserRecord("åse", b""), UserRecord("orders", b"\x00\xff" * 3)]


def packed(message: bytes) -> bytes:
    return MAGIC + message + hashlib.md5(message).digest()


def test_what_amazon_s_own_aggregator_packs_comes_out_byte_for_byte():
    assert split_aggregate(AMAZON_S) == RECORDS


def test_tags_and_fields_of_a_later_format_are_passed_over():
    message = AGGREGATED_RECORD(partition_key_table=[b"k"])
    record = message.records.add(partition_key_index=0, data=b"x")
    record.tags.add(key=b"a", value=b"b")
    later = message.SerializeToString() + b"\xa2\x06\x01z"  # field 100
    assert split_aggregate(packed(later)) == [UserRecord("k", b"x")]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[1:],
        lambda data: data[:-1],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: data[:20] + b"!" + data[21:],
        lambda _: MAGIC,
        lambda _: MAGIC + b"x" * 16,
        lambda _: packed(b"\xff\xff"),
        # A record whose key is not in the table, one without its data, and a key that is no text.
        lambda _: packed(b"\x1a\x05\x08\x05\x1a\x01x"),
        lambda _: packed(b"\x0a\x01k\x1a\x02\x08\x00"),
        lambda _: packed(b"\x0a\x01\xff\x1a\x05\x08\x00\x1a\x01x"),
        lambda _: b"",
        lambda _: b'{"id": 1}',
    ],
)
def test_anything_else_is_a_record_of_its_own(spoil):
    assert split_aggregate(spoil(AMAZON_S)) is None


def test_an_aggregate_of_nothing_has_no_records():
    assert split_aggregate(packed(b"")) == []
