"""Requests that no typed client would let through: a status in words, never an exception of ours."""

import grpc
import pytest
from google.protobuf import duration_pb2, timestamp_pb2
from google.pubsub_v1 import types

PROJECT = "projects/p"
SNAPSHOT = f"{PROJECT}/snapshots/before"
TOO_LATE = timestamp_pb2.Timestamp(seconds=1 << 40)
SUBSCRIPTION = f"{PROJECT}/subscriptions/all"
RETRIES = {"retry_policy": {"minimum_backoff": duration_pb2.Duration(nanos=-5, seconds=1)}}


def refuse(channel, method, request):
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/google.pubsub.v1.{method}")(request.SerializeToString(), timeout=10)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    return str(caught.value.details())


@pytest.mark.parametrize(
    ("method", "request_type", "fields"),
    [
        ("Subscriber/Seek", types.SeekRequest, {"subscription": SUBSCRIPTION, "time": TOO_LATE}),
        (
            "Subscriber/UpdateSnapshot",
            types.UpdateSnapshotRequest,
            {"snapshot": {"name": SNAPSHOT, "expire_time": TOO_LATE}, "update_mask": {"paths": ["expire_time"]}},
        ),
        (
            "Subscriber/UpdateSubscription",
            types.UpdateSubscriptionRequest,
            {"subscription": {"name": SUBSCRIPTION, **RETRIES}, "update_mask": {"paths": ["retry_policy"]}},
        ),
    ],
)
def test_a_time_that_cannot_be_is_named(shop, channel, method, request_type, fields):
    shop.subscribe("all")
    shop.subscriber.create_snapshot(name=SNAPSHOT, subscription=SUBSCRIPTION)
    assert "is not valid" in refuse(channel, method, request_type.pb()(**fields))


@pytest.mark.parametrize("method", ["Publisher/ListTopics", "Subscriber/ListSnapshots"])
def test_a_page_of_fewer_than_no_entries_is_refused(shop, channel, method):
    request = types.ListTopicsRequest.pb()(project=PROJECT, page_size=-1)
    assert "page_size" in refuse(channel, method, request)
    assert [topic.name for topic in shop.publisher.list_topics(project=PROJECT)] == [shop.topic]


def test_a_snapshot_is_not_dropped_by_an_update_that_names_its_end_and_gives_none(shop, channel):
    shop.subscribe("all")
    shop.subscriber.create_snapshot(name=SNAPSHOT, subscription=SUBSCRIPTION)
    request = types.UpdateSnapshotRequest.pb()(snapshot={"name": SNAPSHOT}, update_mask={"paths": ["expire_time"]})
    assert "expire_time" in refuse(channel, "Subscriber/UpdateSnapshot", request)
    assert shop.subscriber.get_snapshot(snapshot=SNAPSHOT).expire_time
