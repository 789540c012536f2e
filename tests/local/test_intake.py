import grpc
import numpy as np
import pytest
from google.pubsub_v1 import types
from hypothesis import given
from hypothesis import strategies as st

from local.intake import are_plain, is_plain, parse_publish
from local.status import StatusError
from local.wire import encode_varint

PubsubMessage = types.PubsubMessage.pb()
PublishRequest = types.PublishRequest.pb()
TOPIC = "projects/p/topics/t"


def render(*bodies: bytes) -> bytes:
    request = b"\x0a" + bytes([len(TOPIC)]) + TOPIC.encode()
    for body in bodies:
        request += b"\x12" + encode_varint(len(body)) + body
    return request


def parse(*bodies: bytes) -> list[bytes]:
    topic, found = parse_publish(render(*bodies))
    assert topic == TOPIC
    return found


def are_plain_bodies(bodies: list[bytes]) -> list[bool]:
    ends = np.cumsum([len(body) for body in bodies])
    starts = ends - [len(body) for body in bodies]
    return are_plain(b"".join(bodies), np.stack([starts, ends], axis=1).astype(np.int64)).tolist()


short = st.text("ago\xe5", max_size=5)
proper = st.builds(
    lambda **fields: PubsubMessage(**fields).SerializeToString(),
    data=st.one_of(st.binary(max_size=4), st.binary(min_size=120, max_size=140)),
    attributes=st.dictionaries(short, st.one_of(short, st.text("a", min_size=100, max_size=130)), max_size=4),
    ordering_key=short,
    message_id=st.sampled_from(["", "", "7"]),
)
mangled = st.builds(
    lambda body, at, byte: body[:at] + bytes([byte]) + body[at + 1 :],
    proper,
    st.integers(0, 20),
    st.integers(0, 255),
)


@given(st.lists(st.one_of(proper, mangled, st.binary(max_size=12)), min_size=1, max_size=12).filter(any))
def test_looking_at_all_messages_at_once_never_takes_more_than_one_by_one(bodies: list[bytes]) -> None:
    for body, plain in zip(bodies, are_plain_bodies(bodies), strict=True):
        if plain:
            assert is_plain(body)
        elif is_plain(body):
            # The one thing that is left to the look one by one.
            assert any(key.startswith("g") for key in PubsubMessage.FromString(body).attributes)


@given(st.one_of(proper, mangled))
def test_a_plain_message_is_a_valid_one_within_the_limits(body: bytes) -> None:
    if is_plain(body):
        message = PubsubMessage.FromString(body)
        assert message.data or message.attributes
        assert not message.message_id
        assert not message.HasField("publish_time")
        assert all(key and not key.startswith("goog") for key in message.attributes)


@pytest.mark.parametrize("count", [1, 31, 32, 100])
def test_few_and_many_messages_are_taken_alike(count: int) -> None:
    odd = PubsubMessage(
        data=b"x", attributes={"\xe5": "\xf6" * 200, "gauge": "1"}, message_id="9"
    ).SerializeToString()
    plain = PubsubMessage(data=b"y" * 300, attributes={"a": "b", "c": ""}, ordering_key="k").SerializeToString()
    got = parse(*[odd, plain] * count)
    assert got[1::2] == [plain] * count
    expected = PubsubMessage(data=b"x", attributes={"\xe5": "\xf6" * 200, "gauge": "1"})
    assert [PubsubMessage.FromString(body) for body in got[::2]] == [expected] * count


@pytest.mark.parametrize("others", [0, 50])
@pytest.mark.parametrize("attributes", [99, 100, 101])
def test_a_hundred_attributes_are_the_most(attributes: int, others: int) -> None:
    body = PubsubMessage(
        attributes={f"k{n}": "v" for n in range(attributes)}, ordering_key="k"
    ).SerializeToString()
    bodies = [body] + [b"\x0a\x01x"] * others
    if attributes <= 100:
        assert len(parse(*bodies)) == others + 1
    else:
        with pytest.raises(StatusError, match="100 attributes"):
            parse(*bodies)


def test_a_request_with_a_field_unknown_here_is_decoded() -> None:
    body = PubsubMessage(data=b"x").SerializeToString()
    topic, bodies = parse_publish(render(body) + b"\x7a\x01z")
    assert (topic, bodies) == (TOPIC, [body])


@given(st.binary(max_size=60))
def test_bytes_taken_as_a_message_are_one_that_every_client_can_read(body: bytes) -> None:
    try:
        (stored,) = parse(body)
    except StatusError:
        return
    message = PubsubMessage.FromString(stored)
    assert message == PubsubMessage.FromString(PubsubMessage.FromString(body).SerializeToString()) or message.data
    assert not message.message_id
    assert not message.HasField("publish_time")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({}, "empty"),
        ({"ordering_key": "k"}, "empty"),
        ({"data": b"x", "attributes": {str(n): "" for n in range(101)}}, "100 attributes"),
        ({"data": b"x", "attributes": {"": "v"}}, "attribute key"),
        ({"data": b"x", "attributes": {"k" * 257: "v"}}, "attribute key"),
        ({"data": b"x", "attributes": {"googly": "v"}}, "goog"),
        ({"data": b"x", "attributes": {"k": "v" * 1025}}, "1024"),
        ({"data": b"x", "ordering_key": "k" * 1025}, "ordering key"),
    ],
)
def test_a_message_beyond_a_limit_is_refused(message: dict, words: str) -> None:
    with pytest.raises(StatusError, match=words) as caught:
        parse(PubsubMessage(**message).SerializeToString())
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT


def test_a_message_at_its_limits_is_taken() -> None:
    message = PubsubMessage(
        data=b"x",
        attributes={"k" * 256: "v" * 1024} | {f"å{n}": "é" * 512 for n in range(99)},
        ordering_key="o" * 1024,
    )
    assert PubsubMessage.FromString(parse(message.SerializeToString())[0]) == message


def test_a_request_has_1_to_1000_messages_and_at_most_10_megabytes() -> None:
    assert len(parse(*[b"\x0a\x01x"] * 1000)) == 1000
    for bodies, words in (
        ([], "0 in the request"),
        ([b"\x0a\x01x"] * 1001, "1001"),
        ([b"x" * 10_000_000], "10000000"),
    ):
        with pytest.raises(StatusError, match=words):
            parse(*bodies)


def test_attributes_that_are_no_utf8_are_refused() -> None:
    with pytest.raises(StatusError):
        parse(b"\x12\x06\x0a\x01k\x12\x01\xff")
