import grpc
import pyarrow as pa
import pytest
from google.pubsub_v1.types import (
    AcknowledgeRequest,
    ModifyAckDeadlineRequest,
    PublishRequest,
    PublishResponse,
    PullRequest,
    PullResponse,
)

from connectors.pubsub.acks import acknowledge, acknowledge_each, extend_each
from model.errors import PubSubError, PubSubUnavailableError

PATH = "projects/p/subscriptions/s"


class Refused(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "the server's words"


class Recorder:
    """A channel that keeps what is sent, and answers the first calls with ``errors``."""

    def __init__(self, *errors: grpc.StatusCode) -> None:
        self.requests: list[bytes] = []
        self._errors = list(errors)

    def unary_unary(self, method, request_serializer, response_deserializer):
        self.method = method
        return self

    def future(self, request, timeout):
        self.requests.append(request)
        return self

    def result(self):
        if self._errors:
            raise Refused(self._errors.pop(0))


def acked(channel: Recorder) -> list[str]:
    requests = [AcknowledgeRequest.deserialize(request) for request in channel.requests]
    assert {request.subscription for request in requests} == {PATH}
    return [ack_id for request in requests for ack_id in request.ack_ids]


def test_every_id_is_sent_once_whatever_their_lengths():
    ids = [f"{'x' * (n % 300)}{n}" for n in range(2_000)]
    channel = Recorder()
    acknowledge(channel, PATH, pa.array(ids))
    assert sorted(acked(channel)) == sorted(ids)


def test_a_slice_of_an_array_sends_only_its_own_ids():
    channel = Recorder()
    acknowledge(channel, PATH, pa.array([f"id-{n:04}" for n in range(100)]).slice(90, 5))
    assert acked(channel) == [f"id-{n:04}" for n in range(90, 95)]


def test_no_request_is_over_the_services_limit():
    channel = Recorder()
    acknowledge(channel, PATH, pa.array([f"{n:0200}" for n in range(10_000)]))
    assert len(channel.requests) > 1
    assert max(map(len, channel.requests)) <= 512 * 1024
    assert len(acked(channel)) == 10_000


def test_nothing_to_acknowledge_sends_nothing():
    channel = Recorder()
    acknowledge(channel, PATH, pa.array([], pa.string()))
    assert channel.requests == []


def test_leases_are_extended_by_the_seconds_asked_for():
    channel = Recorder()
    assert list(extend_each(channel, [(PATH, pa.array(["a", "b"]), 600)])) == [(PATH, None)]
    (request,) = map(ModifyAckDeadlineRequest.deserialize, channel.requests)
    assert (request.subscription, list(request.ack_ids), request.ack_deadline_seconds) == (PATH, ["a", "b"], 600)


def test_a_passing_failure_is_tried_again():
    channel = Recorder(grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAVAILABLE)
    acknowledge(channel, PATH, pa.array(["a"]))
    assert len(channel.requests) == 3


def test_a_lasting_failure_is_ours_and_says_what_the_service_said():
    with pytest.raises(PubSubUnavailableError, match="UNAVAILABLE: the server's words"):
        acknowledge(Recorder(*[grpc.StatusCode.UNAVAILABLE] * 3), PATH, pa.array(["a"]))
    channel = Recorder(grpc.StatusCode.PERMISSION_DENIED)
    with pytest.raises(PubSubError, match="PERMISSION_DENIED"):
        acknowledge(channel, PATH, pa.array(["a"]))
    assert len(channel.requests) == 1


def test_a_subscription_that_fails_keeps_no_other_from_being_acknowledged():
    channel = Recorder(grpc.StatusCode.PERMISSION_DENIED)
    held = [(f"projects/p/subscriptions/s{n}", pa.array([f"id-{n}"])) for n in range(200)]
    answers = dict(acknowledge_each(channel, held))
    sent = [AcknowledgeRequest.deserialize(request) for request in channel.requests]
    assert [(one.subscription, list(one.ack_ids)) for one in sent] == [
        (path, ids.to_pylist()) for path, ids in held
    ]
    failed = {path: str(error) for path, error in answers.items() if error is not None}
    assert list(failed) == ["projects/p/subscriptions/s0"]
    assert "Acknowledge for s0" in failed["projects/p/subscriptions/s0"]


def test_each_subscription_has_its_own_seconds():
    channel = Recorder()
    held = [
        ("projects/p/subscriptions/a", pa.array(["1"]), 10),
        ("projects/p/subscriptions/b", pa.array(["2"]), 0),
    ]
    assert [error for _, error in extend_each(channel, held)] == [None, None]
    sent = [ModifyAckDeadlineRequest.deserialize(request) for request in channel.requests]
    assert [(one.subscription, one.ack_deadline_seconds) for one in sent] == [
        ("projects/p/subscriptions/a", 10),
        ("projects/p/subscriptions/b", 0),
    ]


def pull_ids(channel: grpc.Channel, subscription: str, count: int) -> list[str]:
    pull = channel.unary_unary(
        "/google.pubsub.v1.Subscriber/Pull", PullRequest.serialize, PullResponse.deserialize
    )
    found = pull(PullRequest(subscription=subscription, max_messages=count), timeout=10)
    return [message.ack_id for message in found.received_messages]


def test_a_lease_that_exactly_once_delivery_holds_for_over_is_told_and_keeps_no_other_from_its_ack(pubsub):
    pubsub.create_topic("orders")
    pubsub.attach_backup("orders", token="ab12", ack_deadline_seconds=10, exactly_once=True)
    path = pubsub.subscription_path("refeed-backup.orders")
    publish = pubsub.channel.unary_unary(
        "/google.pubsub.v1.Publisher/Publish", PublishRequest.serialize, PublishResponse.deserialize
    )
    publish(
        PublishRequest(topic=pubsub.topic_path("orders"), messages=[{"data": b"a"}, {"data": b"b"}]), timeout=10
    )
    first, second = pull_ids(pubsub.channel, path, 2)
    acknowledge(pubsub.channel, path, pa.array([first]))
    with pytest.raises(PubSubError, match=r"Acknowledge for .*: INVALID_ARGUMENT"):
        acknowledge(pubsub.channel, path, pa.array([first, second]))
    assert list(extend_each(pubsub.channel, [(path, pa.array([first, second]), 30)])) == [(path, None)]
    assert pull_ids(pubsub.channel, path, 2) == []
