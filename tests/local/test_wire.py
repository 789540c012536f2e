import contextlib
import os

import numpy as np
import pytest
from google.pubsub_v1 import types
from hypothesis import given
from hypothesis import strategies as st

from local import wire
from local.intake import parse_publish
from local.status import StatusError
from tests.local.test_intake import TOPIC, parse

PublishRequest = types.PublishRequest.pb()
PubsubMessage = types.PubsubMessage.pb()
PullResponse = types.PullResponse.pb()
TIME_US = 1_763_726_400_123_456

texts = st.text(max_size=12)
attribute_keys = st.text(min_size=1, max_size=12).filter(lambda key: not key.startswith("goog"))
messages = st.builds(
    dict,
    data=st.binary(max_size=300),
    attributes=st.dictionaries(
        attribute_keys, st.one_of(texts, st.text("ab", min_size=120, max_size=300)), max_size=5
    ),
    ordering_key=texts,
    message_id=st.sampled_from(["", "7"]),
    publish_time=st.sampled_from([None, {"seconds": 5, "nanos": 7}]),
).filter(lambda m: m["data"] or m["attributes"])


def deliver(bodies: list[bytes], first_seq: int = 0, lease: int = 1, subscription: int = 3) -> PullResponse:
    records, lengths = wire.build_records(bodies, 10**15 + first_seq, TIME_US)
    assert len(records) == sum(lengths)
    buffer = np.frombuffer(bytearray(records), dtype=np.uint8)
    seqs = np.arange(first_seq, first_seq + len(bodies), dtype=np.int64)
    wire.fill_ack_ids(buffer, np.array(lengths, dtype=np.int64), seqs, lease, subscription)
    return PullResponse.FromString(buffer.tobytes())


@given(st.lists(messages, min_size=1, max_size=5))
def test_what_is_published_is_what_is_pulled(sent: list[dict]) -> None:
    request = PublishRequest(topic=TOPIC, messages=sent)
    topic, bodies = parse_publish(request.SerializeToString())
    assert topic == TOPIC
    response = deliver(bodies, first_seq=41)
    assert len(response.received_messages) == len(sent)
    for number, (received, original) in enumerate(zip(response.received_messages, sent, strict=True), 41):
        message = received.message
        assert message.data == original["data"]
        assert dict(message.attributes) == original["attributes"]
        assert message.ordering_key == original["ordering_key"]
        assert message.message_id == str(10**15 + number)
        assert message.publish_time.ToMicroseconds() == TIME_US


@pytest.mark.parametrize("number", [1, 0x7FFF, 0x8000, 0xFFFF])
def test_an_ack_id_names_its_subscription_and_message(number: int) -> None:
    (received,) = deliver([b"\x0a\x01x"], first_seq=(1 << 48) - 1, lease=7, subscription=number).received_messages
    ids = wire.parse_ack_ids([received.ack_id])
    assert (ids.subscription.tolist(), ids.seqs.tolist(), ids.leases.tolist()) == ([number], [(1 << 48) - 1], [7])
    assert ids.render() == [received.ack_id]


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_an_invalid_argument(raw: bytes) -> None:
    for parse_any in (parse_publish, wire.parse_acknowledge, wire.parse_modify_ack_deadline):
        with contextlib.suppress(StatusError):
            assert parse_any(raw)


@pytest.mark.parametrize(
    "size", [1, *range(60, 91), 127, 128, 16_200, 16_290, 16_383, 16_384, 2_097_100, 2_097_152, 9_000_000]
)
def test_ack_ids_land_where_they_belong_at_every_length_of_length(size: int) -> None:
    body = PubsubMessage(data=os.urandom(size)).SerializeToString()
    response = deliver([body, body, b"\x0a\x01x"], first_seq=5, lease=77)
    _, ids = wire.parse_acknowledge(
        types.AcknowledgeRequest.pb()(
            subscription="s", ack_ids=[m.ack_id for m in response.received_messages]
        ).SerializeToString()
    )
    assert ids.seqs.tolist() == [5, 6, 7]
    assert ids.leases.tolist() == [77] * 3
    assert ids.subscription.tolist() == [3] * 3
    assert PubsubMessage.FromString(body).data == response.received_messages[1].message.data


def test_a_producer_can_not_choose_an_id_or_a_time_even_in_an_odd_order() -> None:
    body = b"\x22\x02\x08\x05" + b"\x1a\x01x" + b"\x0a\x01d" + b"\x22\x02\x10\x07"
    message = deliver(parse(body)).received_messages[0].message
    assert message.data == b"d"
    assert message.message_id == "1000000000000000"
    assert message.publish_time.ToMicroseconds() == TIME_US


@pytest.mark.parametrize("ack_ids", [["x"], ["0" * 31], ["g" * 32], ["0" * 32, "short"], ["0" * 64], ["é" * 16]])
def test_an_ack_id_of_somebody_else_is_refused(ack_ids: list[str]) -> None:
    request = types.AcknowledgeRequest.pb()(subscription="s", ack_ids=ack_ids).SerializeToString()
    with pytest.raises(StatusError, match="invalid ack ID"):
        wire.parse_acknowledge(request)


@given(st.lists(st.tuples(st.integers(0, 2**48 - 1), st.integers(0, 2**62)), max_size=5), st.integers(0, 600))
def test_a_deadline_request_is_read_however_it_is_written(pairs: list[tuple[int, int]], seconds: int) -> None:
    ack_ids = [f"{(9 << 48) | seq:016x}{lease:016x}" for seq, lease in pairs]
    request = types.ModifyAckDeadlineRequest.pb()(subscription="s", ack_ids=ack_ids, ack_deadline_seconds=seconds)
    reordered = (
        b"".join(b"\x22\x20" + ack_id.encode() for ack_id in ack_ids)
        + b"\x0a\x01s\x18"
        + wire.encode_varint(seconds)
    )
    for raw in (request.SerializeToString(), reordered):
        name, ids, read_seconds = wire.parse_modify_ack_deadline(raw)
        assert (name, read_seconds) == ("s", seconds)
        assert list(zip(ids.seqs.tolist(), ids.leases.tolist(), strict=True)) == pairs
        assert set(ids.subscription.tolist()) <= {9}


def test_attributes_and_ordering_key_are_read_from_a_record() -> None:
    body = PubsubMessage(data=b"d" * 200, attributes={"å": "ö"}, ordering_key="k").SerializeToString()
    record, _ = wire.build_records([body], 10**15, TIME_US)
    assert wire.read_attributes(record) == {"å": "ö"}
    assert wire.read_ordering_key(record) == "k"


def test_many_records_get_the_checksums_that_each_gets_alone() -> None:
    first, time = 1_795_362_596_770_148, 1_700_000_000_123_456
    bodies = [b"\x0a" + bytes([n]) + bytes(n) for n in range(100)]
    joined, lengths = wire.build_records(bodies, first, time)
    place = 0
    for number, (body, length) in enumerate(zip(bodies, lengths, strict=True)):
        record = joined[place : place + length]
        assert record == wire.build_records([body], first + number, time)[0]
        assert wire.is_whole(record, first + number, time)
        for at in range(length):
            changed = record[:at] + bytes([record[at] ^ 4]) + record[at + 1 :]
            assert not wire.is_whole(changed, first + number, time)
        place += length


def test_a_length_without_an_end_is_refused_and_not_added_up() -> None:
    with pytest.raises(IndexError):
        wire.read_varint(b"\xff" * 1_000_000, 0)
