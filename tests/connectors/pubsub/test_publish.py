"""The publisher, against a gRPC server whose answers each test writes."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import pyarrow as pa
import pytest
from google.pubsub_v1.types import pubsub as messages_pb

from connectors.pubsub.channel import open_channel
from connectors.pubsub.encoding import MESSAGE_SCHEMA
from connectors.pubsub.publish import Confirmation, Publisher
from connectors.pubsub.requests import key_ends
from model.errors import MessageRefusedError, PubSubError, PubSubUnavailableError, TopicNotFoundError
from model.message import MAX_PUBLISH_REQUEST_BYTES, Message
from tests.worlds.grpc import answering

TOPIC = "projects/shop/topics/orders"
Answer = grpc.StatusCode | Callable[[Any], grpc.StatusCode | None] | None


@dataclass
class Scripted:
    """A Publish that answers as told: OK, or the next status of the script."""

    script: list[Answer] = field(default_factory=list)
    always: Callable[[Any], grpc.StatusCode | None] = lambda _: None
    requests: list[Any] = field(default_factory=list)
    published: list[Any] = field(default_factory=list)
    most_at_once: int = 0
    gate: threading.Event | None = None
    _now: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    target: str = ""

    def publish(self, body: bytes, context: grpc.ServicerContext) -> bytes:
        request = messages_pb.PublishRequest.pb().FromString(body)
        with self._lock:
            self.requests.append(request)
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
            answer = self.script.pop(0) if self.script else None
        try:
            if self.gate is not None:
                assert self.gate.wait(20), "the test never opened the gate"
            status = answer(request) if callable(answer) else answer or self.always(request)
            if status is not None:
                context.abort(status, "as the test wrote")
        finally:
            with self._lock:
                self._now -= 1
        with self._lock:
            first = len(self.published)
            self.published.extend(request.messages)
        ids = [str(first + n) for n in range(len(request.messages))]
        return messages_pb.PublishResponse.pb()(message_ids=ids).SerializeToString()


@pytest.fixture
def scripted():
    state = Scripted()
    with answering({"google.pubsub.v1.Publisher": {"Publish": state.publish}}) as state.target:
        yield state


@pytest.fixture
def publisher(scripted):
    with open_channel(scripted.target) as channel:
        yield Publisher(channel, TOPIC, give_up_seconds=1.0)


def batch(messages: list[Message]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([m.data for m in messages], pa.binary()),
            pa.array([list(m.attributes.items()) for m in messages], MESSAGE_SCHEMA.field("attributes").type),
            pa.array([m.ordering_key for m in messages], pa.string()),
        ],
        schema=MESSAGE_SCHEMA,
    )


def numbered(count: int) -> pa.RecordBatch:
    return batch([Message(str(n).encode(), {"n": str(n)}) for n in range(count)])


def rows_of(confirmations: list[Confirmation]) -> list[tuple[int, int]]:
    return [(c.start, c.rows) for c in confirmations]


def test_a_request_holds_a_thousand_messages_and_ten_megabytes_at_most(publisher, scripted):
    small = numbered(2500)
    large = batch([Message(b"z" * 3_000_000) for _ in range(7)])

    list(publisher.publish_arrow(small))
    list(publisher.publish_arrow(large))

    assert sorted(len(r.messages) for r in scripted.requests) == [1, 3, 3, 500, 1000, 1000]
    assert all(r.ByteSize() <= MAX_PUBLISH_REQUEST_BYTES for r in scripted.requests)


def test_a_lost_answer_is_asked_for_again_and_counted(publisher, scripted):
    scripted.script = [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL]

    (confirmed,) = publisher.publish_arrow(numbered(10))

    assert (confirmed.rows, confirmed.repeated, confirmed.refused) == (10, 20, ())
    assert len(scripted.published) == 10


def test_one_bad_message_is_found_and_the_others_go_out(publisher, scripted):
    bad = {"137", "138", "901"}
    scripted.always = lambda request: (
        grpc.StatusCode.INVALID_ARGUMENT if any(m.attributes["n"] in bad for m in request.messages) else None
    )

    (confirmed,) = publisher.publish_arrow(numbered(1000))

    assert [refusal.row for refusal in confirmed.refused] == [137, 138, 901]
    assert {m.attributes["n"] for m in scripted.published} == {str(n) for n in range(1000)} - bad
    assert len(scripted.published) == 997


def test_a_message_over_the_limit_is_refused_without_being_sent(publisher, scripted):
    rows = batch([Message(b"a"), Message(b"b" * 10_000_000), Message(b"c")])

    confirmations = list(publisher.publish_arrow(rows))

    assert [m.data for m in scripted.published] == [b"a", b"c"]
    assert rows_of(confirmations) == [(0, 1), (1, 1), (2, 1)]
    assert confirmations[1].refused[0].reason.startswith("message_too_large: ")


def test_once_told_to_stop_it_waits_for_what_is_under_way_and_sends_nothing_more(publisher, scripted):
    asked = []

    def room(_start):
        asked.append(1)
        return 1000 if len(asked) <= 3 else None

    confirmations = list(publisher.publish_arrow(numbered(10_000), room=room))

    assert rows_of(confirmations) == [(0, 1000), (1000, 1000), (2000, 1000)]
    assert len(scripted.published) == 3000


def test_a_request_holds_no_more_than_there_is_room_for(publisher, scripted):
    rooms = {0: 3, 3: 0, 4: 1}
    waited = []

    def room(start):
        if start == 3 and len(waited) < 2:
            waited.append(start)
            return 0
        return rooms.get(start, 5) or 1

    confirmations = list(publisher.publish_arrow(numbered(10), room=room))

    assert rows_of(confirmations) == [(0, 3), (3, 1), (4, 1), (5, 5)]
    assert waited == [3, 3]


def test_while_there_is_no_room_the_answers_under_way_are_handed_out(publisher, scripted):
    confirmed = []

    def room(start):
        # The next rows may go out only when all before them are confirmed: a publisher that sat on the answer
        # would wait for ever.
        return 10 if start == sum(confirmed) else 0

    confirmed.extend(c.rows for c in publisher.publish_arrow(numbered(30), room=room))

    assert confirmed == [10, 10, 10]


def test_once_told_to_stop_nothing_is_sent_again_and_what_is_unknown_is_counted(publisher, scripted):
    scripted.always = lambda _: grpc.StatusCode.UNAVAILABLE

    def room(_start):
        return None if len(scripted.requests) >= 4 else 10

    confirmations = list(publisher.publish_arrow(numbered(40), room=room))

    assert rows_of(confirmations) == [(40, 0)]
    assert confirmations[0].repeated >= 40
    assert len(scripted.requests) <= 5, "the one whose retry was due when the order came"


@pytest.mark.parametrize("row", [3, 1003])
def test_a_message_that_fails_for_ever_while_others_are_taken_is_refused_alone(publisher, scripted, row):
    """Its request is the first one, whose answer all others wait for, or a later one."""
    publisher.give_up_seconds = 0.3
    scripted.always = lambda request: (
        grpc.StatusCode.INTERNAL if any(m.attributes["n"] == str(row) for m in request.messages) else None
    )

    confirmations = list(publisher.publish_arrow(numbered(1010)))

    refused = [refusal for c in confirmations for refusal in c.refused]
    assert [(r.row, r.reason.split(": ")[0:2]) for r in refused] == [(row, ["gave_up", "INTERNAL"])]
    assert {m.attributes["n"] for m in scripted.published} == {str(n) for n in range(1010)} - {str(row)}


def keyed(keys: str) -> pa.RecordBatch:
    return batch([Message(key.encode(), {"n": str(n)}, ordering_key=key) for n, key in enumerate(keys)])


def test_no_keys_have_no_end():
    assert key_ends(pa.array([], pa.string())).tolist() == []


def test_by_key_a_request_has_one_key_and_a_key_has_one_request_under_way(publisher, scripted):
    rows = pa.Table.from_batches([keyed("aabbbc")] * 1 + [keyed("d" * 2500)]).combine_chunks().to_batches()[0]

    confirmations = list(publisher.publish_arrow(rows, by_key=True))

    assert rows_of(confirmations) == [(0, 2), (2, 3), (5, 1), (6, 1000), (1006, 1000), (2006, 500)]
    by_key = [[m.ordering_key for m in request.messages] for request in scripted.requests]
    assert all(len(set(keys)) == 1 for keys in by_key)
    sent = [int(m.attributes["n"]) for m in scripted.published if m.ordering_key == "d"]
    assert sent == list(range(2500))


def test_by_key_messages_of_other_keys_do_not_wait_for_an_answer(publisher, scripted):
    gate = scripted.gate = threading.Event()
    opener = threading.Timer(10, gate.set)
    opener.start()

    def room(_start):
        if scripted.most_at_once > 1:
            gate.set()
        return 2

    confirmations = list(publisher.publish_arrow(keyed("aabbccdd"), room=room, by_key=True))
    opener.cancel()
    assert scripted.most_at_once > 1
    assert sum(c.rows for c in confirmations) == 8


@pytest.mark.parametrize("bad", ["4", "5"])
def test_by_key_nothing_of_a_key_overtakes_its_message_that_was_refused(publisher, scripted, bad):
    scripted.always = lambda request: (
        grpc.StatusCode.INVALID_ARGUMENT if any(m.attributes["n"] == bad for m in request.messages) else None
    )

    def room(_start):
        return 2

    confirmations = list(publisher.publish_arrow(keyed("aabbbbbbbbcc"), room=room, by_key=True))

    refused = {r.row: r.reason.split(":")[0] for c in confirmations for r in c.refused}
    first = int(bad)
    assert refused == {first: "refused_by_pubsub"} | dict.fromkeys(range(first + 1, 10), "ordering_key_stopped")
    assert sum(c.rows for c in confirmations) == 12
    assert {int(m.attributes["n"]) for m in scripted.published} == set(range(first)) | {10, 11}


@pytest.mark.parametrize(("messages", "a_request"), [(9000, 1000), (30, 2)], ids=["full ones", "small ones"])
def test_no_more_than_the_promised_requests_are_under_way(publisher, scripted, messages, a_request):
    gate = scripted.gate = threading.Event()

    def open_when_full():
        # Opens in any case, so that a publisher which sends less fails the assertion and not the clock.
        deadline = time.monotonic() + 10
        while scripted.most_at_once < publisher.in_flight and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)  # time for one request too many
        gate.set()

    opener = threading.Thread(target=open_when_full, daemon=True)
    opener.start()
    list(publisher.publish_arrow(numbered(messages), room=lambda _: a_request))
    opener.join()

    assert scripted.most_at_once == publisher.in_flight
    assert publisher.max_unconfirmed_messages == 1000 * publisher.in_flight


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (grpc.StatusCode.NOT_FOUND, TopicNotFoundError),
        (grpc.StatusCode.PERMISSION_DENIED, PubSubError),
        (grpc.StatusCode.UNAVAILABLE, PubSubUnavailableError),
    ],
)
def test_what_can_not_be_mended_is_an_error(publisher, scripted, status, error):
    scripted.always = lambda _: status

    with pytest.raises(error):
        list(publisher.publish_arrow(numbered(1)))


def test_ids_come_back_in_the_order_of_the_messages(publisher, scripted):
    messages = [Message(str(n).encode(), ordering_key="one") for n in range(2500)]

    ids = publisher.publish(messages)

    assert ids == [str(n) for n in range(2500)]
    assert [m.data for m in scripted.published] == [m.data for m in messages]
    assert scripted.most_at_once == 1


def test_a_refused_message_is_named_by_its_place(publisher, scripted):
    scripted.always = lambda request: (
        grpc.StatusCode.INVALID_ARGUMENT if any(m.data == b"bad" for m in request.messages) else None
    )

    with pytest.raises(MessageRefusedError) as caught:
        publisher.publish([Message(b"good"), Message(b"bad")])

    assert caught.value.details == {"row": 1}
