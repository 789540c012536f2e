import queue
import threading

import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.subscriber.exceptions import AcknowledgeError, AcknowledgeStatus
from google.pubsub_v1 import types
from google.rpc import error_details_pb2, status_pb2


def refused_ids(error: exceptions.GoogleAPICallError) -> dict[str, str]:
    """Return what the answer's ErrorInfo says of each ack id."""
    metadata = dict(error.errors[0].trailing_metadata())
    status = status_pb2.Status.FromString(metadata["grpc-status-details-bin"])
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain) == ("EXACTLY_ONCE_ACKID_FAILURE", "pubsub.googleapis.com")
    return dict(info.metadata)


@pytest.fixture
def subscription(shop):
    return shop.subscribe(enable_exactly_once_delivery=True)


def test_an_ack_of_a_lease_that_is_over_fails_and_names_the_id(shop, subscription):
    shop.publish(b"a", b"b")
    first, second = shop.pull(subscription)
    shop.nack(subscription, [first])
    (again,) = shop.pull(subscription)
    with pytest.raises(exceptions.InvalidArgument, match="Some acknowledgement ids") as caught:
        shop.ack(subscription, [first, second])
    assert refused_ids(caught.value) == {first.ack_id: "PERMANENT_FAILURE_INVALID_ACK_ID"}
    # The second was acknowledged all the same; the first belongs to its newer delivery.
    shop.ack(subscription, [again])
    assert shop.pull_now(subscription) == []


def test_without_exactly_once_the_same_late_ack_counts(shop):
    subscription = shop.subscribe()
    shop.publish(b"a")
    (first,) = shop.pull(subscription)
    shop.nack(subscription, [first])
    (again,) = shop.pull(subscription)
    shop.ack(subscription, [first])
    shop.nack(subscription, [again])
    assert shop.pull_now(subscription) == []


def test_more_time_for_a_lease_that_is_over_fails(shop, subscription):
    shop.publish(b"a")
    (message,) = shop.pull(subscription)
    shop.ack(subscription, [message])
    with pytest.raises(exceptions.InvalidArgument) as caught:
        shop.nack(subscription, [message])
    assert list(refused_ids(caught.value)) == [message.ack_id]


def test_hundreds_of_ids_that_fail_fit_the_answer(shop, subscription):
    shop.publish(*[b"%d" % n for n in range(500)])
    messages = shop.pull(subscription, 500)
    shop.ack(subscription, messages)
    with pytest.raises(exceptions.InvalidArgument) as caught:
        shop.ack(subscription, messages)
    assert set(refused_ids(caught.value)) <= {m.ack_id for m in messages}


def test_it_can_be_switched_on_later(shop):
    subscription = shop.subscribe()
    shop.publish(b"a")
    (message,) = shop.pull(subscription)
    shop.subscriber.update_subscription(
        request={
            "subscription": {"name": subscription, "enable_exactly_once_delivery": True},
            "update_mask": {"paths": ["enable_exactly_once_delivery"]},
        }
    )
    shop.ack(subscription, [message])
    with pytest.raises(exceptions.InvalidArgument):
        shop.ack(subscription, [message])


def test_a_stream_confirms_each_acknowledgement(shop, subscription):
    shop.publish(b"a")
    requests = queue.Queue()
    requests.put(types.StreamingPullRequest(subscription=subscription, stream_ack_deadline_seconds=60))

    def send():
        while (request := requests.get()) is not None:
            yield request

    stream = shop.subscriber.streaming_pull(requests=send(), timeout=30, retry=None)
    received = next(iter(stream))
    assert received.subscription_properties.exactly_once_delivery_enabled
    ack_id = received.received_messages[0].ack_id
    requests.put(types.StreamingPullRequest(ack_ids=[ack_id]))
    assert list(next(iter(stream)).acknowledge_confirmation.ack_ids) == [ack_id]
    requests.put(types.StreamingPullRequest(ack_ids=[ack_id]))
    assert list(next(iter(stream)).acknowledge_confirmation.invalid_ack_ids) == [ack_id]
    requests.put(None)


def test_googles_high_level_client_learns_whether_its_ack_counted(server, shop, monkeypatch):
    subscription = shop.subscribe(enable_exactly_once_delivery=True)
    shop.publish(b"a")
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", server.emulator_host)
    answers = []
    answered = threading.Event()

    def take(message):
        answers.append(message.ack_with_response().result(timeout=20))
        try:
            answers.append(message.ack_with_response().result(timeout=20))
        except AcknowledgeError as exc:
            answers.append(exc.error_code)
        answered.set()

    with pubsub_v1.SubscriberClient() as client:
        future = client.subscribe(subscription, take)
        assert answered.wait(40), "the client acknowledged nothing in 40 s"
        future.cancel()
        future.result(timeout=20)
    assert answers == [AcknowledgeStatus.SUCCESS, AcknowledgeStatus.INVALID_ACK_ID]
