"""Encoded messages, compared with what Google's own classes read from them."""

import pyarrow as pa
import pytest
from google.pubsub_v1.types import pubsub as messages_pb
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.pubsub.encoding import ATTRIBUTES_TYPE, MESSAGE_SCHEMA, encode_attributes, encode_messages
from connectors.pubsub.requests import RequestCutter
from model.message import MAX_PUBLISH_REQUEST_BYTES

TOPIC = "projects/shop/topics/orders"
# Lengths about those where a varint takes one byte more.
texts = st.one_of(st.text(max_size=8), st.sampled_from(["x" * n for n in (127, 128, 1024)]), st.just("größe😀"))
payloads = st.one_of(st.binary(max_size=300), st.sampled_from([b"y" * n for n in (16_383, 16_384, 70_000)]))
message_rows = st.tuples(
    payloads, st.one_of(st.none(), st.dictionaries(texts, texts, max_size=5)), texts, st.one_of(st.none(), texts)
)


def batch_of(rows):
    attributes = [None if own is None else list(own.items()) for _, own, _, _ in rows]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([data for data, _, _, _ in rows], pa.binary()),
            pa.array(attributes, ATTRIBUTES_TYPE),
            pa.array([key for _, _, key, _ in rows], pa.string()),
            pa.array([tag for _, _, _, tag in rows], pa.string()),
        ],
        schema=pa.schema([*MESSAGE_SCHEMA, pa.field("a tag", pa.string())]),
    )


def decode(bodies):
    request = messages_pb.PublishRequest.pb().FromString(b"".join(bodies))
    return list(request.messages)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(message_rows, min_size=1, max_size=12),
    st.integers(0, 11),
    st.dictionaries(st.sampled_from(["added", "more"]), texts),
)
def test_google_s_own_classes_read_what_went_in(rows, skipped, added):
    skipped = min(skipped, len(rows) - 1)

    encoded = encode_messages(batch_of(rows).slice(skipped), encode_attributes(added.items()))

    read = decode(encoded.to_pylist())
    assert len(read) == len(rows) - skipped
    for message, (data, own, key, tag) in zip(read, rows[skipped:], strict=True):
        assert (message.data, message.ordering_key) == (data, key)
        assert dict(message.attributes) == (own or {}) | ({} if tag is None else {"a tag": tag}) | added


def test_payloads_of_very_different_sizes_stand_beside_each_other():
    sizes = [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152]
    rows = [(bytes([n]) * size, {}, "", None) for n, size in enumerate(sizes)]

    read = decode(encode_messages(batch_of(rows)).to_pylist())

    assert [message.data for message in read] == [data for data, _, _, _ in rows]


def encode_requests(batch, topic_path):
    cutter = RequestCutter(batch, topic_path)
    start = 0
    while start < batch.num_rows:
        request = cutter.cut(start)
        yield request
        start += request.rows


def test_an_empty_batch_has_no_requests():
    assert list(encode_requests(batch_of([]), TOPIC)) == []


@pytest.mark.parametrize("attribute_bytes", [0, 1024])
def test_a_request_is_as_full_as_ten_megabytes_allow_and_never_larger(attribute_bytes):
    own = {f"key{n}": "v" * attribute_bytes for n in range(99 if attribute_bytes else 0)}
    batch = batch_of([(b"z" * 29_990, own, "", None)] * 1_200)

    requests = list(encode_requests(batch, TOPIC))

    sizes = [len(request.body) for request in requests]
    one_message = len(encode_messages(batch.slice(0, 1))[0].as_py())
    assert sum(request.rows for request in requests) == batch.num_rows
    assert max(sizes) <= MAX_PUBLISH_REQUEST_BYTES
    assert all(size + one_message > MAX_PUBLISH_REQUEST_BYTES for size in sizes[:-1])
