import queue
from types import SimpleNamespace
from typing import cast

import grpc
import pytest
from google.pubsub_v1 import types

from local import streaming
from local.status import StatusError
from local.streaming import StreamSlots, _Stream, run_streaming_pull

Request = types.StreamingPullRequest.pb()
Response = types.StreamingPullResponse.pb()


class Stream:
    """A client's end of a StreamingPull; ``send`` puts a request on it."""

    def __init__(self, channel: grpc.Channel, subscription: str, **settings: int) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.send(subscription=subscription, **({"stream_ack_deadline_seconds": 60} | settings))
        stub = channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")
        self.call = stub(iter(self._requests.get, None), timeout=30)

    def send(self, **fields: object) -> None:
        self._requests.put(Request(**fields).SerializeToString())

    def end(self) -> None:
        self._requests.put(None)

    def read(self) -> list:
        """The messages of the next response that has any."""
        while True:
            response = Response.FromString(next(self.call))
            if response.received_messages:
                return list(response.received_messages)

    def read_messages(self, count: int) -> list:
        found: list = []
        while len(found) < count:
            found += self.read()
        return found


@pytest.fixture
def open_stream(channel):
    streams = []

    def open_one(subscription, **settings):
        streams.append(Stream(channel, subscription, **settings))
        return streams[-1]

    yield open_one
    for stream in streams:
        stream.end()
        stream.call.cancel()


def data(messages: list) -> list[bytes]:
    return [message.message.data for message in messages]


def test_flow_control_holds_messages_back_until_some_are_acknowledged(shop, open_stream):
    path = shop.subscribe()
    shop.publish(*(b"%d" % n for n in range(10)))
    stream = open_stream(path, max_outstanding_messages=3)
    got = stream.read_messages(3)
    assert len(got) == 3
    assert len(shop.pull_now(path)) == 7
    stream.send(ack_ids=[got[0].ack_id, got[1].ack_id])
    shop.publish(b"x", b"y", b"z")
    assert data(stream.read_messages(2)) == [b"x", b"y"]


def test_flow_control_passes_its_bytes_by_less_than_a_message(shop, open_stream):
    path = shop.subscribe()
    shop.publish(*[b"x" * 1000] * 10)
    stream = open_stream(path, max_outstanding_bytes=2500)
    stream.read_messages(3)
    assert len(shop.pull_now(path)) == 7


def test_a_nack_on_the_stream_frees_its_room_and_brings_the_message_back(shop, open_stream):
    path = shop.subscribe()
    shop.publish(b"a", b"b")
    stream = open_stream(path, max_outstanding_messages=1)
    (first,) = stream.read()
    stream.send(modify_deadline_ack_ids=[first.ack_id], modify_deadline_seconds=[0])
    assert data(stream.read()) == [b"a"]


def test_the_stream_says_whether_its_subscription_is_ordered(shop, open_stream):
    path = shop.subscribe(enable_message_ordering=True)
    stream = open_stream(path)
    shop.publish(b"a")
    assert Response.FromString(next(stream.call)).subscription_properties.message_ordering_enabled


def test_a_quiet_stream_sends_heartbeats(shop, open_stream, monkeypatch):
    monkeypatch.setattr(streaming, "_HEARTBEAT_SECONDS", 0.1)
    stream = open_stream(shop.subscribe())
    assert not Response.FromString(next(stream.call)).received_messages


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ack_ids": ["made up"]}, "invalid ack ID"),
        ({"modify_deadline_ack_ids": ["0" * 32]}, "same length"),
        ({"modify_deadline_ack_ids": ["0" * 32], "modify_deadline_seconds": [601]}, "deadline"),
        ({"stream_ack_deadline_seconds": 9}, "between"),
    ],
)
def test_a_wrong_request_ends_the_stream_with_its_reason(shop, open_stream, fields, words):
    stream = open_stream(shop.subscribe())
    stream.send(**fields)
    with pytest.raises(grpc.RpcError) as caught:
        stream.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in caught.value.details()


def test_a_stream_on_no_subscription_is_not_found(shop, open_stream):
    with pytest.raises(grpc.RpcError) as caught:
        open_stream("projects/p/subscriptions/missing").read()
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_deleted_subscription_ends_its_streams(shop, open_stream):
    path = shop.subscribe()
    stream = open_stream(path)
    shop.publish(b"a")
    stream.read()
    shop.subscriber.delete_subscription(subscription=path)
    with pytest.raises(grpc.RpcError) as caught:
        stream.read()
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_client_that_stops_sending_ends_the_stream(shop, open_stream):
    stream = open_stream(shop.subscribe())
    stream.end()
    assert list(stream.call) == []


def test_two_streams_share_the_messages(shop, open_stream):
    path = shop.subscribe()
    first, second = open_stream(path, max_outstanding_messages=5), open_stream(path, max_outstanding_messages=5)
    shop.publish(*(b"%d" % n for n in range(10)))
    got = first.read_messages(5) + second.read_messages(5)
    assert len(set(data(got))) == 10


def test_slots_are_given_out_once():
    slots = StreamSlots(1)
    assert slots.may_wait()
    with slots.waiting():
        assert not slots.may_wait()
    assert slots.may_wait()


def test_streams_that_open_at_the_same_moment_share_the_slots(server, shop, monkeypatch):
    assert server._resources is not None
    resources, slots = server._resources, StreamSlots(1)
    first = types.StreamingPullRequest.pb()(subscription=shop.subscribe(), stream_ack_deadline_seconds=10)
    context = SimpleNamespace(is_active=lambda: False, add_callback=lambda _call: True)

    def open_one():
        requests = iter([first.SerializeToString()])
        assert list(run_streaming_pull(resources, slots, requests, cast("grpc.ServicerContext", context))) == []

    apply = _Stream.apply

    def apply_beside_another(stream, request):
        monkeypatch.setattr(_Stream, "apply", apply)
        with pytest.raises(StatusError, match="no thread left"):
            open_one()
        stream.apply(request)

    monkeypatch.setattr(_Stream, "apply", apply_beside_another)
    open_one()
    open_one()
